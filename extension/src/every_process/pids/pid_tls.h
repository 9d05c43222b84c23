/*-------------------------------------------------------------------------
 *
 * pid_tls.h
 *		What pg_stat_ssl and pg_stat_gssapi show of a session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_TLS_H
#define BATON_PID_TLS_H

#include "access/tupdesc.h"

#include "baton_shared.h"

/*
 * Puts it into a row of pg_stat_get_activity(), which has that of a session
 * without TLS, or NULL in all columns if its reader may not see it.
 */
extern void baton_tls_show(TupleDesc columns, const BatonTls *tls, Datum *values, bool *nulls);

/* Likewise what pg_stat_gssapi shows of it. */
extern void baton_gss_show(TupleDesc columns, const BatonIdentity *identity, Datum *values,
						   bool *nulls);

/* Of the client of a native backend behind a relay (client_ticket.c); not in use: none. */
extern BatonTls baton_relayed_tls;

/* One of its texts, in the database's encoding. */
extern Datum baton_tls_text(const uint8 *bytes);

#endif							/* BATON_PID_TLS_H */
