/*-------------------------------------------------------------------------
 *
 * views.h
 *		The functions beneath the views, and the server's functions that show
 *		the session's own counters and user.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_VIEWS_H
#define BATON_VIEWS_H

/* ----------------------------------------------------------------
 *		pg_stat_get_xact_*(): counters of the session alone.
 */

/* Postmaster only, called by _PG_init. */
extern void baton_own_statistics_init(void);

/*
 * Called outside transactions when a session has been put in place, or has
 * ended a transaction.  Reports what other sessions have counted, if it is
 * time to.
 */
extern void baton_own_statistics_begin(int64 now);

/* Called when everything counted has been reported. */
extern void baton_own_statistics_reported(void);

/* ----------------------------------------------------------------
 *		SYSTEM_USER of a session, independent of the backend that serves it.
 */

/* Postmaster only, called by _PG_init. */
extern void baton_system_user_init(void);

#endif							/* BATON_VIEWS_H */
