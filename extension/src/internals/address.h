/*-------------------------------------------------------------------------
 *
 * address.h
 *		Socket addresses as baton_shared.h has them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ADDRESS_H
#define BATON_ADDRESS_H

#include "libpq/pqcomm.h"

/* True if it is of a family we know; AF_UNIX has no port and no bytes. */
extern bool baton_address_make(SockAddr *address, uint16 family, uint16 port,
							   const uint8 *bytes, uint32 scope);

#endif							/* BATON_ADDRESS_H */
