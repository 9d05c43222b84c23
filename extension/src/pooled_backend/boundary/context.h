/*-------------------------------------------------------------------------
 *
 * context.h
 *		The session context: the order in which its parts are installed and
 *		captured.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_H
#define BATON_CONTEXT_H

#include "lib/stringinfo.h"

#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		The session context: what makes a session a session, taken out of one
 *		backend and put into another.
 *
 * The boundary (boundary.c) calls these, outside any transaction unless said
 * otherwise; they know nothing of sockets and scheduling.
 *
 * "Base" is the backend's own state as it was after it started, before any
 * session: its parameters as postgresql.conf, ALTER DATABASE and ALTER ROLE
 * made them.  A session's context is described relative to that.
 * ----------------------------------------------------------------
 */

/* Once, at attach.  NULL if all is well, else why this backend cannot pool. */
extern const char *baton_context_attach(void);

/*
 * Applies the STARTUP items of a session that has not been greeted, sends
 * what this backend was warned of at its start and ParameterStatus for all
 * that is reported, and puts the RESET items into the delta.  What GREETED
 * says is appended: the messages to *notices, and name NUL value NUL ... to
 * *reported; returns BATON_GREETING_*, for how long others may be told the same.
 * *login_triggers says whether there are any to be fired.
 * ereport(ERROR)s with the server's own message and SQLSTATE if
 * an option is bad; the caller makes a FATAL of it for that session.
 */
extern uint32 baton_context_greet(const BatonSessionRecord *record, StringInfo notices,
								  StringInfo reported, bool *login_triggers);

/*
 * Puts the session's context in place.  Whatever context was in place before
 * (another session's, captured earlier, or none) is replaced.  May start and
 * end transactions of its own.  ereport(ERROR) means the session cannot go on.
 */
extern void baton_context_install(const BatonSessionRecord *record);

/*
 * Compares what is in place with what was last installed or captured, and
 * appends the difference to the delta.  True if there was any.  Costs next to
 * nothing if there is none.
 */
extern bool baton_context_capture(uint64 session);

/* The session has ended; forget everything of it, back to base. */
extern void baton_context_forget(uint64 session);

/* Nothing of a session's stays in place, and none is held. */
extern void baton_context_leave(void);

/*
 * The same, but its reset values stay: install compares them with those of the session
 * that comes.  False if they may not, and nothing was done: what it has SET goes before
 * they do, a role of its own before another user comes, and a library's parameters with
 * who has given them a value (reset_values.h).
 */
extern bool baton_context_leave_resets(void);

/* ConfigReloadPending was seen: process it as the base must see it. */
extern void baton_context_reload(void);

/*
 * The unnamed statement.  Given the first bytes of the next message of the
 * session just installed: must messages be injected before it is read?  If
 * so, appends complete protocol messages (ending in Sync) to *messages.
 */
extern bool baton_context_unnamed(uint64 session, const char *first_bytes,
								  Size length, StringInfo messages);
#define BATON_UNNAMED_PEEK_BYTES 6

/* A ParameterStatus was not sent, as no answer of the client's is due yet. */
extern void baton_context_withhold_report(void);

/* The session's own message is about to be read; cannot fail. */
extern void baton_context_begin(void);

/* Called from the putmessage wrapper for every message to the client. */
extern void baton_context_note_message(char type);

#endif							/* BATON_CONTEXT_H */
