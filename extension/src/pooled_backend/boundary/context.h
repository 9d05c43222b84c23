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
 *		The session context: the state of a session, which one backend captures
 *		and another installs.
 *
 * The boundary (boundary.c) calls these functions, outside of any transaction
 * unless stated otherwise. They know nothing of sockets and scheduling.
 *
 * "Base" is the backend's own state after its start, before any session: its
 * parameters as postgresql.conf, ALTER DATABASE and ALTER ROLE set them. A
 * session's context is described relative to the base.
 * ----------------------------------------------------------------
 */

/*
 * Called once, at attach. Returns NULL, or the reason why this backend cannot
 * pool.
 */
extern const char *baton_context_attach(void);

/*
 * Greets a session. Applies its STARTUP items, sends the warnings of this
 * backend's start and a ParameterStatus for each reported parameter, and puts
 * the RESET items into the delta.
 *
 * Appends the contents of GREETED: the messages to *notices, and name NUL
 * value NUL ... to *reported. Sets *login_triggers if login triggers are to be
 * fired. Returns BATON_GREETING_*, which says for how long the dispatcher may
 * send other sessions the same greeting.
 *
 * Raises ERROR with the server's own message and SQLSTATE if an option is bad;
 * the caller reports it to that session as FATAL.
 */
extern uint32 baton_context_greet(const BatonSessionRecord *record, StringInfo notices,
								  StringInfo reported, bool *login_triggers);

/*
 * Puts the session's context in place and replaces the previous one (another
 * session's, captured earlier, or none). May start and end transactions of its
 * own. If it raises ERROR, the session cannot go on.
 */
extern void baton_context_install(const BatonSessionRecord *record);

/*
 * Compares the state in place with what was last installed or captured and
 * appends the difference to the delta. Returns true if there was a difference;
 * costs next to nothing otherwise.
 */
extern bool baton_context_capture(uint64 session);

/* The session has ended: forgets its context and returns to the base. */
extern void baton_context_forget(uint64 session);

/* Removes all state of sessions; the backend must hold none. */
extern void baton_context_leave(void);

/*
 * The same, but the session's reset values stay: install compares them with
 * those of the next session. Returns false, having done nothing, if they may
 * not stay. What the session has SET must go before they do, a role of its own
 * before another user comes, and a library's parameters together with the user
 * that set them (reset_values.h).
 */
extern bool baton_context_leave_resets(void);

/* Processes ConfigReloadPending as the base must see it. */
extern void baton_context_reload(void);

/*
 * Decides about the unnamed statement from the first bytes of the next message
 * of the session just installed. If messages must be injected before that one
 * is read, appends complete protocol messages, ending in Sync, to *messages
 * and returns true.
 */
extern bool baton_context_unnamed(uint64 session, const char *first_bytes,
								  Size length, StringInfo messages);
#define BATON_UNNAMED_PEEK_BYTES 6

/*
 * A ParameterStatus was not sent, because no answer to the client is due yet.
 */
extern void baton_context_withhold_report(void);

/* The session's own message is about to be read. Cannot fail. */
extern void baton_context_begin(void);

/* The putmessage wrapper calls this for every message to the client. */
extern void baton_context_note_message(char type);

#endif							/* BATON_CONTEXT_H */
