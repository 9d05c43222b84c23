/*-------------------------------------------------------------------------
 *
 * attach.h
 *		How an ordinary backend becomes a pooled one.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ATTACH_H
#define BATON_ATTACH_H

#include "libpq/libpq-be.h"

/* ----------------------------------------------------------------
 *		A backend that the dispatcher opens for a role's sessions.
 * ----------------------------------------------------------------
 */

/* From _PG_init, in the postmaster. */
extern void baton_opening_init(void);

/*
 * ClientAuthentication() is over: the dispatcher has opened this backend, and
 * InitPostgres() has yet to look up as whom it starts.
 */
extern void baton_opening_authenticated(void);

/*
 * As whom it was to start, if that role may log in, and whether it is to serve no other;
 * InvalidOid if the dispatcher has not opened it.
 */
extern Oid	baton_opened_for(bool *apart);

/* ----------------------------------------------------------------
 *		How an ordinary backend becomes a pooled one.
 * ----------------------------------------------------------------
 */

/*
 * ClientAuthentication_hook, before other libraries', and behind them, where a
 * backend learns that it shall attach.
 */
extern void baton_attach_authentication_ends(void);
extern void baton_attach_authenticated(Port *port, int status);

#endif							/* BATON_ATTACH_H */
