/*-------------------------------------------------------------------------
 *
 * context_statements.h
 *		The named prepared statements of a session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_STATEMENTS_H
#define BATON_CONTEXT_STATEMENTS_H

#include "baton_shared.h"

/* Once a backend; NULL if all is well, else why it cannot pool. */
extern const char *baton_statements_attach(void);

/* The rest: as the functions of context.h, for this part of a context. */
extern void baton_statements_install(const BatonSessionRecord *record);
extern bool baton_statements_capture(uint64 session);
extern void baton_statements_forget(uint64 session);

/* The session in place was captured: did its context or its counters change? */
extern void baton_statements_captured(bool context, bool counters);

#endif							/* BATON_CONTEXT_STATEMENTS_H */
