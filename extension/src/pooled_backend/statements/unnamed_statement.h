/*-------------------------------------------------------------------------
 *
 * unnamed_statement.h
 *		The unnamed prepared statement of a session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_UNNAMED_STATEMENT_H
#define BATON_UNNAMED_STATEMENT_H

#include "lib/stringinfo.h"
#include "utils/plancache.h"

#include "baton_shared.h"

/* These work as the functions of context.h, for this part of a context. */
extern void baton_unnamed_install(const BatonSessionRecord *record);
extern bool baton_unnamed_capture(uint64 session);
extern void baton_unnamed_forget(uint64 session);
extern bool baton_unnamed_messages(uint64 session, const char *first_bytes,
								   Size length, StringInfo messages);

/*
 * Drops the session's unnamed statement, if it is so large that other sessions
 * should not wait because of its memory. Returns false if it is not.
 */
extern bool baton_unnamed_give_up(uint64 session);

/*
 * Is the unnamed statement of the session in place still to be made? The
 * second function makes it, unless these bytes, which the client sends next,
 * do not need it.
 */
extern bool baton_unnamed_is_put_off(void);
extern void baton_unnamed_make(const char *first_bytes, Size length);

/* Must also be called for the messages that answer injected ones. */
extern void baton_unnamed_note_message(char type);

/*
 * The injected messages have been answered: the session has its unnamed
 * statement, or ends.
 */
extern void baton_unnamed_injected(void);

#endif							/* BATON_UNNAMED_STATEMENT_H */
