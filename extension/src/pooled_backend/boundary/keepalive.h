/*-------------------------------------------------------------------------
 *
 * keepalive.h
 *		The settings of a client's socket that parameters ask for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_KEEPALIVE_H
#define BATON_KEEPALIVE_H

#include "baton_shared.h"

/* Once, at attach.  NULL, or why the parameters are not as expected. */
extern const char *baton_keepalive_attach(void);

/* Another session's socket is in place; it is a relay's (TLS), or is not. */
extern void baton_keepalive_relayed(bool relayed);

/* Socket and parameters of the session are in place; it leaves, with both. */
extern void baton_keepalive_put(BatonSessionSlot *slot);
extern void baton_keepalive_leave(BatonSessionSlot *slot);

#endif							/* BATON_KEEPALIVE_H */
