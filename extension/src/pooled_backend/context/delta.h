/*-------------------------------------------------------------------------
 *
 * delta.h
 *		Changes of the held session's context on their way to the dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DELTA_H
#define BATON_DELTA_H

#include "baton_shared.h"

/* More than there can be room for, but not so much that sums wrap around. */
#define DELTA_TOO_LARGE (SIZE_MAX / 4)

/*
 * Collects a PUT or DELETE for the session at hand.
 * Called during baton_context_capture and baton_context_greet only.
 */
extern void baton_delta_put(uint16 kind, const char *key, Size key_length,
							const char *value, Size value_length,
							const BatonStatementCounter *counters, int64 aux);
extern void baton_delta_delete(uint16 kind, const char *key, Size key_length);

/* Likewise: what would have to be put is too large. */
extern void baton_delta_give_up(void);

/*
 * Bytes collected and not sent; 0 if there is no news, DELTA_TOO_LARGE if
 * something was too large to be collected.
 */
extern Size baton_delta_size(void);

/*
 * By how many bytes the session's context would grow at most, as context_bytes in
 * the views counts them.  Exactly, since baton_delta_settle.
 */
extern int64 baton_delta_growth(void);

/*
 * Does what is collected free as much memory as it takes?  Known once it has been
 * settled.
 */
extern bool baton_delta_shrinks(void);

/*
 * Changes that later ones have made void go.  Those are what a session collects
 * that has to stay, and changes the same things again, or takes them away.
 */
extern void baton_delta_settle(const BatonSessionRecord *record);

/* Sends what was collected as changes of `session`, and forgets it. */
extern void baton_delta_send(int fd, uint64 session);

/* The session they belonged to has ended. */
extern void baton_delta_drop(void);

#endif							/* BATON_DELTA_H */
