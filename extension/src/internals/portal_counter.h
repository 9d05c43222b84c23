/*-------------------------------------------------------------------------
 *
 * portal_counter.h
 *		Access to the number of the last portal that was opened without a name.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PORTAL_COUNTER_H
#define BATON_PORTAL_COUNTER_H

#include "utils/portal.h"

/* Drops a portal that nothing has been run in. */
extern void baton_portal_discard(Portal portal);

/* Once, at attach; in a transaction.  NULL, or why it cannot be done. */
extern const char *baton_portal_counter_attach(void);

extern uint32 baton_portal_counter(void);
extern void baton_portal_counter_set(uint32 count);

#endif							/* BATON_PORTAL_COUNTER_H */
