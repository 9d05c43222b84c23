/*-------------------------------------------------------------------------
 *
 * identity.h
 *		Who the backend says it serves, and whose cancel requests it obeys.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_IDENTITY_H
#define BATON_IDENTITY_H

#include "libpq/pqcomm.h"

#include "baton_shared.h"

/* The library's hooks for cancels of waiting sessions, from _PG_init. */
extern void baton_cancel_init(void);

/* Once, at attach: takes over SIGINT. */
extern void baton_identity_attach(BatonBackendSlot *slot);

/* Addresses, start time and the rest, as a backend of that client has them. */
extern void baton_identity_put(const BatonSessionRecord *record);

/* A socket address of the wire form in a session record. */
extern void baton_address_fill(SockAddr *address, uint16 family, uint16 port,
							   const uint8 *bytes, uint32 scope);

/* No session: nothing of the last one is shown any more. */
extern void baton_identity_clear(void);

/*
 * A cancel came while the session waited for a backend: cancel the next thing
 * it runs.  Disarmed at the next boundary.
 */
extern void baton_cancel_arm(void);
extern void baton_cancel_disarm(void);

#endif							/* BATON_IDENTITY_H */
