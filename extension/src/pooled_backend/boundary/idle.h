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
 *		Whether a pooled backend that is woken may interrupt a running process.
 * ----------------------------------------------------------------
 */

/* The backend is no longer pooled. */
extern void baton_batch_scheduling_end(void);

/* ----------------------------------------------------------------
 *		A pooled backend between two transactions.
 * ----------------------------------------------------------------
 */

/*
 * Called once, after attach: the dispatcher may assign sessions from now on.
 */
extern void baton_idle_start(void);

/*
 * Waits until the client of the session in place (which may be another session
 * by then) has begun to send; the transaction status has just been sent.
 * Returns true if the protocol messages appended to `messages` must be read
 * before the client's input.
 */
extern bool baton_idle_wait(char status, StringInfo messages);

#endif							/* BATON_IDLE_H */
