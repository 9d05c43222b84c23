/*-------------------------------------------------------------------------
 *
 * dispatcher_loss.h
 *		What becomes of a pooled backend whose dispatcher has died.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DISPATCHER_LOSS_H
#define BATON_DISPATCHER_LOSS_H

/* Its end of the control socket is closed: leaves it, or exits. */
extern void baton_dispatcher_gone(void);

/*
 * To be asked before a session is given back or taken: a dispatcher that has
 * died can do neither, and the next one has the same slots.
 */
extern bool baton_dispatcher_is_there(void);

#endif							/* BATON_DISPATCHER_LOSS_H */
