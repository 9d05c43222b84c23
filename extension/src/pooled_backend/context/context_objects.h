/*-------------------------------------------------------------------------
 *
 * context_objects.h
 *		Sequence values and the temporary namespace in the session context.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_OBJECTS_H
#define BATON_CONTEXT_OBJECTS_H

#include "arena.h"
#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		The part of the session context for currval(), lastval() and the numbers
 *		cached by sequences.
 * ----------------------------------------------------------------
 */

/*
 * Called once, at attach. Returns NULL, or the reason why this backend cannot
 * pool.
 */
extern const char *baton_sequences_attach(void);

/* See baton_context_install, _capture and _forget in context.h. */
extern void baton_sequences_install(const BatonSessionRecord *record);
extern bool baton_sequences_capture(uint64 session);
extern void baton_sequences_forget(uint64 session);

/* ----------------------------------------------------------------
 *		The part of the session context that records whether the session has a
 *		temporary namespace yet.
 * ----------------------------------------------------------------
 */

/* Is the entry that item? */
extern bool baton_temporary_is_item(const BatonStored *entry);

/* Shows this backend's temporary namespace to the session, or hides it. */
extern void baton_temporary_install(bool wanted);

/* See baton_context_capture and _forget in context.h. */
extern bool baton_temporary_capture(void);
extern void baton_temporary_forget(void);

/* A transaction has committed; its callbacks are being called. */
extern void baton_temporary_commits(void);

#endif							/* BATON_CONTEXT_OBJECTS_H */
