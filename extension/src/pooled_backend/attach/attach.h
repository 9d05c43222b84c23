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

/*
 * ClientAuthentication_hook, before other libraries', and behind them, where a
 * backend learns that it shall attach.
 */
extern void baton_attach_authentication_ends(void);
extern void baton_attach_authenticated(Port *port, int status);

#endif							/* BATON_ATTACH_H */
