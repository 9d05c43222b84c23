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

/* What follows in a startup packet's options: <slot>:<token>[:<client>]. */
#define BATON_ATTACH_OPTION "pg_baton.attach="

/*
 * ClientAuthentication_hook, before other libraries', and behind them, where a
 * backend learns that it shall attach.
 */
extern void baton_attach_authentication_ends(void);
extern void baton_attach_authenticated(Port *port, int status);

/*
 * Speaks to the dispatcher and takes the socket over.  ereport(FATAL)s, to
 * the dispatcher's own connection, if this backend cannot pool.
 */
extern void baton_attach(void);

#endif							/* BATON_ATTACH_H */
