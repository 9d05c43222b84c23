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

#include "pooled_state.h"
#include "scheduling_log.h"

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
