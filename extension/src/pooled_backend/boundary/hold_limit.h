/*-------------------------------------------------------------------------
 *
 * hold_limit.h
 *		A limit on how long a transaction may hold a shared backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HOLD_LIMIT_H
#define BATON_HOLD_LIMIT_H

#include "access/xact.h"

/* pg_baton.transaction_timeout, milliseconds; 0: no limit */
extern int	baton_transaction_timeout_ms;

/* Once a backend. */
extern void baton_hold_limit_start(void);

/* At each boundary, before anything else is put on the stack of error contexts. */
extern void baton_hold_limit_watch(void);

/* A command of the session in place is about to run, outside of a transaction. */
extern void baton_hold_limit_begin(void);

/* It has been answered, and no transaction is open. */
extern void baton_hold_limit_end(void);

/* From hooks.c: a procedure, or VACUUM, may go on with another one. */
extern void baton_hold_limit_transaction(XactEvent event);

#endif							/* BATON_HOLD_LIMIT_H */
