/*-------------------------------------------------------------------------
 *
 * held_client.h
 *		The client of the session in place: what it says between transactions,
 *		and how long it may hold the backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HELD_CLIENT_H
#define BATON_HELD_CLIENT_H

#include "access/xact.h"
#include "lib/stringinfo.h"

#include "client_input.h"

/* ----------------------------------------------------------------
 *		A limit on how long a transaction may hold a shared backend.
 * ----------------------------------------------------------------
 */

/* pg_baton.transaction_timeout, milliseconds; 0: no limit */
extern int	baton_transaction_timeout_ms;

/* Once a backend. */
extern void baton_hold_limit_start(void);

/* At each boundary, before anything else is put on the stack of error contexts. */
extern void baton_hold_limit_watch(void);

/* A command of the session in place is about to run, outside of a transaction. */
extern void baton_hold_limit_begin(void);

/* It has been answered, and no transaction is open. */
extern void baton_hold_limit_end(void);

/* From pg_baton.c: a procedure, or VACUUM, may go on with another one. */
extern void baton_hold_limit_transaction(XactEvent event);

/* ----------------------------------------------------------------
 *		What the client of the session in place says.
 * ----------------------------------------------------------------
 */

/*
 * What does the client of the held session say?  `ready`: its socket is known
 * to be readable.  `may_leave`: it may be served elsewhere, and shall not keep
 * the backend for half a message.  The backend is claimed before anything is
 * taken out of the socket: if the dispatcher was first this is CLIENT_NOTHING.
 */
extern ClientSays baton_client_listen(bool ready, bool may_leave);

/*
 * The session's next message is there: PostgresMain shall read it.  True if
 * `messages` must be read before.
 */
extern bool baton_client_runs(StringInfo messages);

/*
 * The held session is idle after all.  A cancel that came as it waited for a
 * backend must not wait on for its next statement.
 */
extern void baton_client_asks_nothing(void);

/*
 * It has sent something that was read to be ignored, and exactly so far.  What
 * lies behind that may begin.
 */
extern void baton_client_rest_may_begin(void);

/*
 * It has sent part of a message: it is idle, and the dispatcher waits for the
 * rest.  False: the session cannot leave.
 */
extern bool baton_client_waits_for_rest(void);

/*
 * The client is about to be told this.  A batch may have waited outside of any backend
 * for longer than its session's statement_timeout (BATON_SESSION_PAUSE): the server
 * would then read the next message to raise its error.
 */
extern void baton_client_is_told(char type);

/*
 * It has gone (BATON_END_*), and its session with it.  True if the backend is
 * clean.  False: it must exit.
 */
extern bool baton_client_left(uint32 cause, uint32 how);

/*
 * It has gone while it was being written to; the transaction status was to be
 * `status`.  Ends the session.
 */
extern void baton_client_lost(char status);

#endif							/* BATON_HELD_CLIENT_H */
