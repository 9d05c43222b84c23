/*-------------------------------------------------------------------------
 *
 * signal_barrier.h
 *		Barriers that a starting process has missed.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SIGNAL_BARRIER_H
#define BATON_SIGNAL_BARRIER_H

/* Takes part in what was asked of all processes while this one started. */
extern void baton_barrier_catch_up(void);

/* Checks it in a pooled backend that starts: NULL, or what is not as expected. */
extern const char *baton_barrier_attach(void);

#endif							/* BATON_SIGNAL_BARRIER_H */
