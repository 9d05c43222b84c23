/*-------------------------------------------------------------------------
 *
 * self_check.h
 *		Properties of this server that were found not to be as pg_baton
 *		expects.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SELF_CHECK_H
#define BATON_SELF_CHECK_H

/*
 * pg_baton.test_constants: entries name=value, separated by commas. "break_"
 * and a check's name makes that check fail.  Others are in parameters.c and in
 * the dispatcher's parameters.rs.
 */
extern char *baton_test_constants;

/* The value of that name in such a list, or `otherwise` if it is missing. */
extern int	baton_test_constant(const char *list, const char *name, int otherwise);

/* The loss that a failed check causes. */
typedef enum
{
	BATON_COSTS_POOLING,		/* sessions keep their backends for life */
	BATON_COSTS_SPEED,			/* a hand-over takes longer */
	BATON_COSTS_PIDS,			/* SQL shows sessions under their backends'
								 * numbers */
	BATON_COSTS_FUNCTIONS,		/* PL/pgSQL's plans may be another session's */
	BATON_COSTS_LOGINS,			/* a backend authenticates each client */
	BATON_COSTS_BACKENDS,		/* the pool cannot open backends: each client
								 * has a connection of its own */
	BATON_COSTS_BINDING,		/* clients that a backend authenticates are
								 * not offered channel binding */
	BATON_COSTS_SYSTEM_USER,	/* SYSTEM_USER is the backend's */
	BATON_COSTS_STATISTICS,		/* pg_stat_xact_* shows other sessions' counts */
	BATON_COSTS_ROLES			/* a backend serves one role for life */
} BatonCost;

#define BATON_COSTS (BATON_COSTS_ROLES + 1)

/* Postmaster only, called by _PG_init. */
extern void baton_self_check_init(void);

/*
 * Must this check fail, whatever it finds?  For tests: pg_baton.test_constants
 * names such checks.
 */
extern bool baton_self_check_is_broken(const char *check);

/*
 * Reports the failure in the log, the first time since the server started, and
 * in the view.
 */
extern void baton_self_check_failed(BatonCost cost, const char *problem);

/* Has this check failed in any process since the server started? */
extern bool baton_self_check_has_failed(BatonCost cost);

/*
 * Has a check that pooling needs failed in this backend?  Then the only
 * session it takes keeps it for life.
 */
extern bool baton_unpooled(void);

#endif							/* BATON_SELF_CHECK_H */
