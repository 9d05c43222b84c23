/*-------------------------------------------------------------------------
 *
 * statement_settings.h
 *		The settings that literals of a prepared statement were read by.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_SETTINGS_H
#define BATON_STATEMENT_SETTINGS_H

#include "catalog/namespace.h"
#include "statement_description.h"
#include "search_path.h"

/*
 * Lies in the plan's context, is the argument of its parser setup callback.
 */
typedef struct PlanSettings
{
	CachedPlanSource *plan;
	char	   *settings;		/* those of its analysis, as one string; NULL:
								 * it will be analysed by those in force then */
	bool		armed;			/* not analysed here yet: to be, by settings */
	bool		changed;		/* not what baton_settings_changed() told last */
	BatonSearchPath path;		/* if armed: the search path it was analysed
								 * under */
} PlanSettings;

/* What input functions look at. */
extern const char *const baton_literal_settings[];
extern const int baton_literal_settings_count;

/* Some plan was analysed again; reset by whoever looks. */
extern bool baton_settings_touched;

/* NULL if the text of the plan holds no literal. */
extern PlanSettings *baton_settings_find(const CachedPlanSource *plan);

/* The plan has just been analysed, under the settings in force. */
extern void baton_settings_note(CachedPlanSource *plan);

/* The plan was made from a description, and not analysed. */
extern void baton_settings_attach(CachedPlanSource *plan,
								  const Description *description);

/* Are its settings others than last time? */
extern bool baton_settings_changed(CachedPlanSource *plan);

/*
 * The plan has become invalid on behalf of others: analyse it as described.
 */
extern void baton_settings_rearm(CachedPlanSource *plan);

/* The session discards its plans. */
extern void baton_settings_disarm(CachedPlanSource *plan);

/* Installs the hook on the end of parse analysis; from _PG_init. */
extern void baton_settings_init(void);

#endif							/* BATON_STATEMENT_SETTINGS_H */
