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
 *		The words by which this backend and the dispatcher agree which session
 *		the backend serves.
 * ----------------------------------------------------------------
 */

/* Sets the state unconditionally; a full barrier. */
extern void baton_state_set(uint32 state);

/*
 * The backend claims itself. Returns false if the dispatcher has claimed it
 * already: its ASSIGN is then on the way and must be obeyed.
 */
extern bool baton_state_claim(uint32 state_after);

/*
 * According to the counter, which may be raised before the message is in the
 * queue.
 */
extern bool baton_queue_has_some(void);

/*
 * The backend has taken the last session of the pool's ready queue. Tells the
 * dispatcher, if it holds sessions back from the queue.
 */
extern void baton_queue_is_low(void);

/* According to the queue's socket. */
extern bool baton_queue_is_readable(void);

/*
 * Has the dispatcher asked for this backend's place? If the request was open
 * to several backends, a true result means that this backend has won it and
 * must retire: call this once only.
 */
extern bool baton_retire_asked(void);

/*
 * Ends this backend and tells the dispatcher why. `why` is "" if the
 * dispatcher asked for it.
 */
pg_noreturn extern void baton_backend_retire(uint32 cause, const char *why);

/* Is every transaction of a session to be served by another backend? */
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
	BATON_TAKEN_FROM_QUEUE,		/* the next of the ready queue */
	BATON_TAKEN_IDLE,			/* the backend held no session */
	BATON_TAKEN_LINGERING		/* the session that the backend held was
								 * silent */
} BatonTakenBy;

/* ----------------------------------------------------------------
 *		A bound on the memory that a backend keeps beyond one session.
 * ----------------------------------------------------------------
 */

/* Called once, when the backend is ready to serve. */
extern void baton_cache_memory_start(void);

/* A statement has run, or a session has left. */
extern void baton_cache_memory_used(void);

/*
 * Checks the process's memory if a check is due. No transaction may be open.
 */
extern void baton_cache_memory_look(void);

/*
 * Milliseconds that the backend may sleep before the next check; -1: no limit.
 */
extern long baton_cache_memory_sleep(void);

/* ----------------------------------------------------------------
 *		A session comes to this backend, and leaves it.
 * ----------------------------------------------------------------
 */

/* Called once, after attach. */
extern void baton_session_start(void);

/*
 * A session's socket has arrived. If the process ends before the session is
 * taken or bounced, it gives the session back.
 */
extern void baton_session_received(uint64 session);

/*
 * Puts a session in place and consumes `fd`, its socket. The backend must hold
 * no session. The session has come because its client has sent something,
 * which must be read next. Greets a session that has not been greeted. If the
 * context cannot be put in place, the client gets an error and the session
 * ends. `why` is for the log. `given_us`: when the dispatcher gave it, of
 * CLOCK_MONOTONIC; 0: unknown.
 */
extern void baton_session_take(uint64 session, int fd, BatonTakenBy why, int64 given_us);

/*
 * Gives the held session back to the dispatcher. `state_after` becomes the
 * state of the backend slot before another process can notice the release.
 * `tell_always`: send a message even if there is no news, because the
 * dispatcher waits for it. The session's socket stays in place: the caller
 * takes another session at once, or clears it.
 *
 * Returns false if the context does not fit into the dispatcher's session
 * memory, or into the share of its tenant. The session then stays and is
 * dedicated for as long as baton_session_lacks_memory says so.
 */
extern bool baton_session_release(uint32 state_after, bool tell_always);

/*
 * BATON_CAUSE_CONTEXT_MEMORY or BATON_CAUSE_POOL_MEMORY if the collected
 * changes of the held session's context do not fit; 0 if they do, or if there
 * are none.
 */
extern uint32 baton_session_lacks_memory(void);

/* Is `cause` one of these two? */
static inline bool
baton_session_lacks(uint32 cause)
{
	return cause == BATON_CAUSE_CONTEXT_MEMORY || cause == BATON_CAUSE_POOL_MEMORY;
}

/*
 * Disables the timeouts that PostgresMain armed for an idle session before
 * ReadyForQuery. No session, or another session, is idle here now.
 */
extern void baton_idle_timeouts_end(void);

/*
 * The held session cannot go on: sends its client `edata` with severity FATAL,
 * as a stock backend would, but the backend stays.
 */
extern void baton_session_send_fatal(ErrorData *edata);

/* Gives back a session that was assigned but not taken. */
extern void baton_session_bounce(uint64 session, int fd);

/*
 * The held session's message is about to be read. A cancel request that came
 * while the session waited for a backend now cancels what the session runs.
 */
extern void baton_session_arm_cancel(void);

/* The held session has sent no request: discards such a cancel request. */
extern void baton_session_void_cancel(void);

/*
 * The held session has ended (BATON_END_*): forgets its context. `state_after`
 * becomes the state of the backend slot before another process can notice.
 */
extern void baton_session_end(uint32 how, uint32 state_after);

/*
 * Tells the dispatcher that the held session is dedicated (0: shared again).
 */
extern void baton_session_note_cause(uint32 cause);

/*
 * The dispatcher has gone: the held session, if any, stays on this backend
 * until another dispatcher has adopted it, or it ends.
 */
extern void baton_session_orphaned(void);

#endif							/* BATON_HANDOVER_H */
