/*-------------------------------------------------------------------------
 *
 * batch_scheduling.h
 *		Whether a pooled backend that is woken may interrupt who is at work.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BATCH_SCHEDULING_H
#define BATON_BATCH_SCHEDULING_H

/* The backend has slept between two transactions. */
extern void baton_batch_scheduling_woken(void);

/* It is pooled no more. */
extern void baton_batch_scheduling_end(void);

#endif							/* BATON_BATCH_SCHEDULING_H */
