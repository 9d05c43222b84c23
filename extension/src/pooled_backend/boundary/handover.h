/*-------------------------------------------------------------------------
 *
 * handover.h
 *		A session comes to this backend, and leaves it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HANDOVER_H
#define BATON_HANDOVER_H

#include "dispatcher_link.h"
#include "majors.h"
#include "parameters.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		The words by which this backend and the dispatcher agree on who serves
 *		whom.
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		Lines of the scheduling log (pg_baton.log_scheduling).
 * ----------------------------------------------------------------
 */

/* How this backend got a session. */
typedef enum BatonTakenBy
{
	BATON_TAKEN_FROM_QUEUE,		/* it took the ready queue's next */
	BATON_TAKEN_IDLE,			/* it held nobody */
	BATON_TAKEN_LINGERING		/* the session that it held had nothing to say */
} BatonTakenBy;

/* ----------------------------------------------------------------
 *		A bound on the memory that a backend keeps beyond one session.
 * ----------------------------------------------------------------
 */

/* Once, when the backend is ready to serve. */
extern void baton_cache_memory_start(void);

/* A statement has run, or a session has left. */
extern void baton_cache_memory_used(void);

/* Looks at the process's memory if that is due.  No transaction may be open. */
extern void baton_cache_memory_look(void);

/* The backend may sleep so long (ms) before the next look; -1: for ever. */
extern long baton_cache_memory_sleep(void);

/* ----------------------------------------------------------------
 *		A session comes to this backend, and leaves it.
 * ----------------------------------------------------------------
 */

/* Once, after attach. */
extern void baton_session_start(void);

/*
 * A session's socket has come: it is given back should this process end before
 * it is taken or bounced.
 */
extern void baton_session_received(uint64 session);

/*
 * Puts a session in place; `fd`, its socket, is consumed.  The backend must
 * hold none.  It has come to speak, and is to be listened to.  A session that
 * has not been greeted is.  If its context cannot be put in place the client
 * gets an error and the session has ended.  `why` it came here is for the log.
 */
extern void baton_session_take(uint64 session, int fd, BatonTakenBy why);

/*
 * Gives the held session back to the dispatcher.  `state_after` is what the
 * backend slot's state becomes before anybody can notice.  `tell`: send a
 * message even if there is no news (the dispatcher waits for it).  Its socket
 * still stands in place: the caller takes another session at once or clears.
 *
 * False: its context does not fit into the dispatcher's session memory, or into
 * what its role's may take in its database.  It stays, and is dedicated, as long as
 * baton_session_lacks_memory says so.
 */
extern bool baton_session_release(uint32 state_after, bool tell_always);

/*
 * BATON_CAUSE_CONTEXT_MEMORY or _POOL_MEMORY if what is collected of the held
 * session's context does not fit; 0 if it does, or nothing is.
 */
extern uint32 baton_session_lacks_memory(void);

/* Is it one of these? */
static inline bool
baton_session_lacks(uint32 cause)
{
	return cause == BATON_CAUSE_CONTEXT_MEMORY || cause == BATON_CAUSE_POOL_MEMORY;
}

/*
 * PostgresMain has armed its timeouts for an idle session before
 * ReadyForQuery, but nobody, or another session, is idle here.
 */
extern void baton_idle_timeouts_end(void);

/*
 * The held session cannot go on: its client gets `edata` with severity FATAL, as
 * a stock backend would end with it, but this backend lives on.
 */
extern void baton_session_send_fatal(ErrorData *edata);

/* Gives back a session that was assigned and has not been taken. */
extern void baton_session_bounce(uint64 session, int fd);

/*
 * The held session's message is about to be read: if a cancel came for it
 * while it waited, that cancels what it runs.
 */
extern void baton_session_arm_cancel(void);

/* The held session has asked nothing: such a cancel meant nothing. */
extern void baton_session_void_cancel(void);

/*
 * The held session has ended (BATON_END_*); its context is forgotten.  The
 * backend slot's state becomes `state_after` before anybody can notice.
 */
extern void baton_session_end(uint32 how, uint32 state_after);

/* Tells the dispatcher that the held session is dedicated (0: shared again). */
extern void baton_session_note_cause(uint32 cause);

/* The dispatcher has gone; the held session stays here for good. */
extern void baton_session_orphaned(void);

#endif							/* BATON_HANDOVER_H */
