/*-------------------------------------------------------------------------
 *
 * context_temporary.h
 *		The part of the session context that tells whether the session has a
 *		temporary namespace yet.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_TEMPORARY_H
#define BATON_CONTEXT_TEMPORARY_H

#include "arena.h"

/* Is the entry the item that says so? */
extern bool baton_temporary_is_item(const BatonStored *entry);

/* Shows this backend's temporary namespace to the session, or hides it. */
extern void baton_temporary_install(bool wanted);

/* See baton_context_capture and _forget in context.h. */
extern bool baton_temporary_capture(void);
extern void baton_temporary_forget(void);

/* A transaction has committed; its callbacks are being called. */
extern void baton_temporary_commits(void);

#endif							/* BATON_CONTEXT_TEMPORARY_H */
