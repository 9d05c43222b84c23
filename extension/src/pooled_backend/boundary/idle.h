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

/* The backend has slept between two transactions. */
extern void baton_batch_scheduling_woken(void);

/* It is pooled no more. */
extern void baton_batch_scheduling_end(void);

/* ----------------------------------------------------------------
 *		What becomes of a pooled backend whose dispatcher has died.
 * ----------------------------------------------------------------
 */

/* Its end of the control socket is closed: leaves it, or exits. */
extern void baton_dispatcher_gone(void);

/*
 * To be asked before a session is given back or taken: a dispatcher that has
 * died can do neither, and the next one has the same slots.
 */
extern bool baton_dispatcher_is_there(void);

/* ----------------------------------------------------------------
 *		What the dispatcher sends to a pooled backend.
 * ----------------------------------------------------------------
 */

/*
 * Takes the next session from the ready queue, giving back the one in place.
 * The slot must be BUSY.  False if there was none after all.
 */
extern bool baton_assignments_take_next(void);

/*
 * Reads what has come by the control socket, and does it; returns when there
 * is no more, or when another session is in place, or none.  `cause`: why the
 * one in place is dedicated.
 */
extern void baton_assignments_handle(uint32 cause);

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
