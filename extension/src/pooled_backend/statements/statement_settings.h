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
#include "parser/parse_node.h"
#include "utils/plancache.h"

#include "search_path.h"

/*
 * Lies in the plan's context, is the argument of its parser setup callback.
 */
typedef struct PlanSettings
{
	CachedPlanSource *plan;
	const char *settings;		/* those of its analysis, as one string; NULL:
								 * it will be analysed by those in force then */
	bool		shared;			/* that and the path are a common statement's */
	bool		armed;			/* not analysed here yet: to be, by settings */
	bool		changed;		/* not what baton_settings_changed() told last */
	BatonSearchPath path;		/* if armed: the search path it was analysed
								 * under */
} PlanSettings;

/* What input functions look at. */
extern const char *const baton_literal_settings[];
extern const int baton_literal_settings_count;

/* NULL if the text of the plan holds no literal. */
extern PlanSettings *baton_settings_find(const CachedPlanSource *plan);

/* The plan has just been analysed, under the settings in force. */
extern void baton_settings_note(CachedPlanSource *plan);

/*
 * The plan was made from a description with these settings (NULL: none), and not
 * analysed.
 */
extern void baton_settings_attach(CachedPlanSource *plan, const char *described,
								  const BatonSearchPath *path);

/* Are its settings others than last time? */
extern bool baton_settings_changed(CachedPlanSource *plan);

/*
 * A common statement has settings and search path as they are described, for
 * plans that refer to it (statement_held.c), which are analysed by these if it
 * is invalid.
 */
extern void baton_settings_make_common(CachedPlanSource *common);
extern void baton_settings_share(CachedPlanSource *plan, const CachedPlanSource *common);

/* The plan is to be analysed again, as it was first. */
extern void baton_settings_rearm(CachedPlanSource *plan, const CachedPlanSource *common);

/* Is what the plan was analysed to what the common statement describes? */
extern bool baton_settings_fit(const CachedPlanSource *plan, const CachedPlanSource *common);

/* The session discards its plans. */
extern void baton_settings_disarm(CachedPlanSource *plan);

/* Parse analysis of a statement ends (hooks.c). */
extern void baton_settings_analysis_ends(const ParseState *pstate);

#endif							/* BATON_STATEMENT_SETTINGS_H */
