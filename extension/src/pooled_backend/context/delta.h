/*-------------------------------------------------------------------------
 *
 * delta.h
 *		Changes of the session's context on their way to the dispatcher, and what
 *		the client has been told by ParameterStatus.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DELTA_H
#define BATON_DELTA_H

#include "lib/stringinfo.h"

#include "arena.h"
#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		Changes of the held session's context on their way to the dispatcher.
 * ----------------------------------------------------------------
 */

/*
 * More than any memory can hold, but small enough that sums do not wrap
 * around.
 */
#define DELTA_TOO_LARGE (SIZE_MAX / 4)

/*
 * Collects a PUT or DELETE for the held session. Called during
 * baton_context_capture and baton_context_greet only.
 */
extern void baton_delta_put(uint16 kind, const char *key, Size key_length,
							const char *value, Size value_length,
							const BatonStatementCounter *counters, int64 aux);
extern void baton_delta_delete(uint16 kind, const char *key, Size key_length);

/* The same for an item that is too large. */
extern void baton_delta_give_up(void);

/*
 * Bytes collected and not sent; 0 if there is no news, DELTA_TOO_LARGE if a
 * change was too large to be collected.
 */
extern Size baton_delta_size(void);

/*
 * Upper bound of the growth of the session's context in bytes, as
 * context_bytes in the views counts them. Exact after baton_delta_settle.
 */
extern int64 baton_delta_growth(void);

/*
 * Do the collected changes free as much memory as they take? Known after
 * settling.
 */
extern bool baton_delta_shrinks(void);

/*
 * Drops changes that later ones have made void. They occur if a session has to
 * stay and changes the same things again, or removes them.
 */
extern void baton_delta_settle(const BatonSessionRecord *record);

/* Sends the collected changes of `session`, and forgets them. */
extern void baton_delta_send(int fd, uint64 session);

/* Drops the collected changes, because their session has ended. */
extern void baton_delta_drop(void);

/* ----------------------------------------------------------------
 *		Changes that were sent, and that the dispatcher may not have stored yet.
 * ----------------------------------------------------------------
 */

/*
 * The collected changes of `session`, if it is the one in place, are about to
 * be sent, and after them a message of that kind, which `told` of its identity
 * counts already.
 */
extern void baton_unheard_add(uint64 session, uint16 kind,
							  const char *payload, int length);

/* Are there any? */
extern bool baton_unheard_any(void);

/* Appends a u32 count, and their sessions, as HELLO_AGAIN names them. */
extern void baton_unheard_sessions(StringInfo into);

/* Sends them again, to the dispatcher to which HELLO_AGAIN has named them. */
extern void baton_unheard_tell(int fd);

/* ----------------------------------------------------------------
 *		ParameterStatus: the values that each client has been told.
 * ----------------------------------------------------------------
 */

extern const char *baton_report_attach(void);

/*
 * The client has been told the entry's values (NULL: nothing); the next
 * ReadyForQuery is preceded by those that differ. Parameters must be in place.
 */
extern void baton_report_install(const BatonStored *entry);

/* A ParameterStatus came before its time, and was discarded. */
extern void baton_report_withhold(void);

/* The session's own message is about to be read. */
extern void baton_report_arm(void);

/* Sends a new client all values, and appends what was sent. */
extern void baton_report_greet(StringInfo reported);

/* Puts the REPORTED item and returns true if the client was told something. */
extern bool baton_report_capture(void);

/* A message of this type goes to the client. */
extern void baton_report_note_message(char type);

#endif							/* BATON_DELTA_H */
