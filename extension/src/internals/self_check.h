/*-------------------------------------------------------------------------
 *
 * self_check.h
 *		What was found not to be as pg_baton expects it of this server.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SELF_CHECK_H
#define BATON_SELF_CHECK_H

/*
 * pg_baton.test_constants: entries name=value, separated by commas.  "break_" and
 * a check's name: that check fails.  Others are in parameters.c and in the
 * dispatcher's parameters.rs.
 */
extern char *baton_test_constants;

/* The value of that name in such a list, or the other if it is not there. */
extern int	baton_test_constant(const char *list, const char *name, int otherwise);

/* What a failed check costs. */
typedef enum
{
	BATON_COSTS_POOLING,		/* sessions keep their backends for life */
	BATON_COSTS_SPEED,			/* a hand-over takes longer */
	BATON_COSTS_PIDS,			/* SQL knows sessions by their backends'
								 * numbers */
	BATON_COSTS_FUNCTIONS,		/* PL/pgSQL's plans may be another session's */
	BATON_COSTS_LOGINS,			/* a backend authenticates each client */
	BATON_COSTS_BACKENDS,		/* none can be opened: clients have
								 * connections of their own */
	BATON_COSTS_BINDING,		/* these are not offered channel binding */
	BATON_COSTS_SYSTEM_USER,	/* SYSTEM_USER is the backend's */
	BATON_COSTS_STATISTICS,		/* pg_stat_xact_* shows other sessions' counts */
	BATON_COSTS_ROLES			/* a backend serves one role for life */
} BatonCost;

#define BATON_COSTS (BATON_COSTS_ROLES + 1)

/* Postmaster only, from _PG_init. */
extern void baton_self_check_init(void);

/*
 * Is this check to fail, whatever it finds?  For tests: pg_baton.test_constants
 * names some.
 */
extern bool baton_self_check_is_broken(const char *check);

/* Says so in the log, the first time since the server started, and in the view. */
extern void baton_self_check_failed(BatonCost cost, const char *problem);

/* Has this check failed in any process since the server started? */
extern bool baton_self_check_has_failed(BatonCost cost);

/*
 * Has a check failed in this backend that pooling needs?  Then the one session
 * it takes keeps it for life.
 */
extern bool baton_unpooled(void);

#endif							/* BATON_SELF_CHECK_H */
