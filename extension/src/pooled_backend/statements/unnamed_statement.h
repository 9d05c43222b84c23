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

/* As the functions of context.h, for this part of a context. */
extern void baton_unnamed_install(const BatonSessionRecord *record);
extern bool baton_unnamed_capture(uint64 session);
extern void baton_unnamed_forget(uint64 session);
extern bool baton_unnamed_messages(uint64 session, const char *first_bytes,
								   Size length, StringInfo messages);

/*
 * The session has no unnamed statement any more, if that is so large that others
 * should not wait for want of memory for it.  False if it is not.
 */
extern bool baton_unnamed_give_up(uint64 session);

/*
 * Is the unnamed statement of the session in place still to be made?  And makes
 * it, unless these bytes, which the client sends next, do not ask for it.
 */
extern bool baton_unnamed_is_put_off(void);
extern void baton_unnamed_make(const char *first_bytes, Size length);

/* Must see the messages that answer injected ones, too. */
extern void baton_unnamed_note_message(char type);

/*
 * What was injected has been answered: the session has its unnamed statement,
 * or ends.
 */
extern void baton_unnamed_injected(void);

#endif							/* BATON_UNNAMED_STATEMENT_H */
