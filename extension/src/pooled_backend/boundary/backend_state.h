/*-------------------------------------------------------------------------
 *
 * backend_state.h
 *		The words by which this backend and the dispatcher agree on who serves
 *		whom.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BACKEND_STATE_H
#define BATON_BACKEND_STATE_H

#include "control.h"
#include "majors.h"

/* Sets it, whatever it was; a full barrier. */
extern void baton_state_set(uint32 state);

/*
 * Claims the backend for ourselves.  False if the dispatcher was first: then
 * its ASSIGN is on the way and must be obeyed.
 */
extern bool baton_state_claim(uint32 state_after);

/* By the counter, which may be ahead of what is there. */
extern bool baton_queue_has_some(void);

/*
 * The last of the pool's ready queue has been taken: the dispatcher is told, if it holds
 * others back.
 */
extern void baton_queue_is_low(void);

/* By the queue itself. */
extern bool baton_queue_is_readable(void);

/*
 * Has the dispatcher asked for our place?  If it has left open whose, we have
 * promised to go by having asked: not to be asked twice.
 */
extern bool baton_retire_asked(void);

/* This backend ends, and tells the dispatcher why; "": it was asked to. */
pg_noreturn extern void baton_backend_retire(uint32 cause, const char *why);

/* Shall each transaction of a session be served by another backend? */
static inline bool
baton_migration_forced(void)
{
	return BatonControlMemory->force_migration != 0;
}

#endif							/* BATON_BACKEND_STATE_H */
