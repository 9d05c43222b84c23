/*-------------------------------------------------------------------------
 *
 * held_client.h
 *		The client of the session in place: what it sends between transactions,
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

/* Called once per backend. */
extern void baton_hold_limit_start(void);

/*
 * Called at each boundary, before anything else is put on the stack of error
 * contexts.
 */
extern void baton_hold_limit_watch(void);

/*
 * A command of the session in place is about to run, outside of a transaction.
 */
extern void baton_hold_limit_begin(void);

/* The command has been answered, and no transaction is open. */
extern void baton_hold_limit_end(void);

/*
 * Called from pg_baton.c: a procedure, or VACUUM, may go on with another
 * transaction.
 */
extern void baton_hold_limit_transaction(XactEvent event);

/* ----------------------------------------------------------------
 *		What the client of the session in place sends.
 * ----------------------------------------------------------------
 */

/*
 * Looks at what the client of the held session has sent. `ready`: its socket
 * is known to be readable. `may_leave`: another backend may serve the session,
 * so half a message shall not keep this one. The backend is claimed before
 * anything is taken out of the socket; the result is CLIENT_NOTHING if the
 * dispatcher was first.
 */
extern ClientSays baton_client_listen(bool ready, bool may_leave);

/*
 * The session's next message has arrived, and PostgresMain shall read it.
 * Returns true if `messages` must be read first.
 */
extern bool baton_client_runs(StringInfo messages);

/*
 * The held session is idle after all. A cancel request that came while it
 * waited for a backend must not apply to its next statement.
 */
extern void baton_client_asks_nothing(void);

/*
 * The client has sent messages that were read and ignored, and nothing beyond
 * them. The rest of its input may be the beginning of a message.
 */
extern void baton_client_rest_may_begin(void);

/*
 * The client has sent part of a message: the session is idle, and the
 * dispatcher waits for the rest. Returns false if the session cannot leave.
 */
extern bool baton_client_waits_for_rest(void);

/*
 * A message of this type is about to be sent to the client. A batch may have
 * waited outside of any backend for longer than its session's
 * statement_timeout (BATON_SESSION_PAUSE): the server would then read the next
 * message and raise its error.
 */
extern void baton_client_is_told(char type);

/*
 * The client has disconnected (BATON_END_*), which ends its session. Returns
 * true if the backend is clean; if false, the backend must exit.
 */
extern bool baton_client_left(uint32 cause, uint32 how);

/*
 * The client disconnected while the backend wrote to it; the transaction
 * status was to be `status`. Ends the session.
 */
extern void baton_client_lost(char status);

#endif							/* BATON_HELD_CLIENT_H */
