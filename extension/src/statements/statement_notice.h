/*-------------------------------------------------------------------------
 *
 * statement_notice.h
 *		Noticing what a session does to its prepared statements.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_NOTICE_H
#define BATON_STATEMENT_NOTICE_H

#include "statement_known.h"
#include "utility_hook.h"

#define TOUCHED_MAX 8

/* What may have changed since the session came, or was captured. */
typedef struct StatementNotice
{
	bool		statements;		/* prepared or dropped */
	bool		analysis;		/* maybe invalidated by the session itself */
	bool		settings;		/* a parameter or the role was set, be it for
								 * a moment */
	bool		counters;		/* executed: those touched, or all */
	bool		touched_all;
	int			touched_count;
	KnownStatement *touched[TOUCHED_MAX];
} StatementNotice;

extern StatementNotice baton_notice;

/* Raised when plans of all sessions became invalid on behalf of one. */
extern uint64 baton_discards;

/* A utility statement begins, and has succeeded (utility_hook.c). */
extern void baton_notice_utility_begins(BatonUtility *utility);
extern void baton_notice_utility_done(const BatonUtility *utility);

/*
 * A parameter or the role is set otherwise (taint_watch.c): by set_config(),
 * which will only do so now, or while a function runs.
 */
extern void baton_notice_set_config(void);
extern void baton_notice_settings(void);

/* NULL if all is well, else why nothing can be noticed. */
extern const char *baton_notice_attach(void);

/* All is captured, or another session comes. */
extern void baton_notice_reset(void);

#endif							/* BATON_STATEMENT_NOTICE_H */
