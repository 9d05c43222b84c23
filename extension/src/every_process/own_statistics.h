/*-------------------------------------------------------------------------
 *
 * own_statistics.h
 *		pg_stat_get_xact_*(): counters of the session and no other's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_OWN_STATISTICS_H
#define BATON_OWN_STATISTICS_H

/* Postmaster only, from _PG_init. */
extern void baton_own_statistics_init(void);

/*
 * The session in place has come, or has ended a transaction; outside of
 * transactions.  What other sessions have counted is reported, if it is time to.
 */
extern void baton_own_statistics_begin(int64 now);

/* All that was counted has been reported. */
extern void baton_own_statistics_reported(void);

#endif							/* BATON_OWN_STATISTICS_H */
