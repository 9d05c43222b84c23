/*-------------------------------------------------------------------------
 *
 * scheduling_log.h
 *		Lines of the scheduling log (pg_baton.log_scheduling).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SCHEDULING_LOG_H
#define BATON_SCHEDULING_LOG_H


#include "parameters.h"

/* How this backend got a session. */
typedef enum BatonTakenBy
{
	BATON_TAKEN_FROM_QUEUE,		/* it took the ready queue's next */
	BATON_TAKEN_IDLE,			/* it held nobody */
	BATON_TAKEN_LINGERING		/* the session that it held had nothing to say */
} BatonTakenBy;

extern void baton_scheduling_log_taken(uint64 session, BatonTakenBy why, bool is_last,
									   int64 waits_since);
extern void baton_scheduling_log_cause(uint64 session, uint32 cause, uint32 cause_before);

#endif							/* BATON_SCHEDULING_LOG_H */
