/*-------------------------------------------------------------------------
 *
 * context_sequences.h
 *		The part of the session context that currval(), lastval() and the
 *		numbers cached by sequences make.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_SEQUENCES_H
#define BATON_CONTEXT_SEQUENCES_H

#include "baton_shared.h"

/* Once, at attach.  NULL, or why this backend cannot pool. */
extern const char *baton_sequences_attach(void);

/* See baton_context_install, _capture and _forget in context.h. */
extern void baton_sequences_install(const BatonSessionRecord *record);
extern bool baton_sequences_capture(uint64 session);
extern void baton_sequences_forget(uint64 session);

#endif							/* BATON_CONTEXT_SEQUENCES_H */
