/*-------------------------------------------------------------------------
 *
 * views.h
 *		The functions beneath the views, and functions of the server that show
 *		the session's own counters and user.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_VIEWS_H
#define BATON_VIEWS_H

/* ----------------------------------------------------------------
 *		pg_stat_get_xact_*(): counters of the session and no other's.
 * ----------------------------------------------------------------
 */

/* Postmaster only, from _PG_init. */
extern void baton_own_statistics_init(void);

/*
 * The session in place has come, or has ended a transaction; outside of
 * transactions.  What other sessions have counted is reported, if it is time to.
 */
extern void baton_own_statistics_begin(int64 now);

/* All that was counted has been reported. */
extern void baton_own_statistics_reported(void);

/* ----------------------------------------------------------------
 *		SYSTEM_USER of a session, whichever backend serves it.
 * ----------------------------------------------------------------
 */

/* Postmaster only, from _PG_init. */
extern void baton_system_user_init(void);

#endif							/* BATON_VIEWS_H */
