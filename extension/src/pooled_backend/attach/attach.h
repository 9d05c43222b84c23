/*-------------------------------------------------------------------------
 *
 * attach.h
 *		An ordinary backend becomes a pooled one.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ATTACH_H
#define BATON_ATTACH_H

#include "libpq/libpq-be.h"

/* ----------------------------------------------------------------
 *		A backend that the dispatcher opens for a pool's sessions.
 * ----------------------------------------------------------------
 */

/* Called from _PG_init, in the postmaster. */
extern void baton_opening_init(void);

/* ----------------------------------------------------------------
 *		An ordinary backend becomes a pooled one.
 * ----------------------------------------------------------------
 */

/*
 * The parts of ClientAuthentication_hook that run before and after other
 * libraries' hooks. In the second part a backend learns that it shall attach.
 */
extern void baton_attach_authentication_ends(void);
extern void baton_attach_authenticated(Port *port, int status);

#endif							/* BATON_ATTACH_H */
