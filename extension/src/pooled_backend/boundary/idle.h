/*-------------------------------------------------------------------------
 *
 * idle.h
 *		A pooled backend between two transactions: it waits for its client, the
 *		ready queue and the dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_IDLE_H
#define BATON_IDLE_H

#include "lib/stringinfo.h"

/* ----------------------------------------------------------------
 *		Whether a pooled backend that is woken may interrupt who is at work.
 * ----------------------------------------------------------------
 */

/* It is pooled no more. */
extern void baton_batch_scheduling_end(void);

/* ----------------------------------------------------------------
 *		A pooled backend between two transactions.
 * ----------------------------------------------------------------
 */

/* Once, after attach: the dispatcher may assign sessions from now on. */
extern void baton_idle_start(void);

/*
 * Waits, with the transaction status just sent, until the session in place
 * (which may be another one then) has begun to speak.  True if the protocol
 * messages appended to `messages` must be read before what the client sent.
 */
extern bool baton_idle_wait(char status, StringInfo messages);

#endif							/* BATON_IDLE_H */
