/*-------------------------------------------------------------------------
 *
 * session_tls.h
 *		What sslinfo and the server's log say about a session that uses the
 *		dispatcher's TLS.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SESSION_TLS_H
#define BATON_SESSION_TLS_H

#include "fmgr.h"

/* ----------------------------------------------------------------
 *		Extension sslinfo, in a session that uses the dispatcher's TLS.
 */

typedef struct BatonTlsFunction BatonTlsFunction;

/*
 * sslinfo's C function of that name, or NULL if it is not one of sslinfo's.
 */
extern const BatonTlsFunction *baton_tls_function_find(const char *library, const char *symbol);

/*
 * Called by fmgr_hook before the function: has its replacement called, or
 * raises an error.
 */
extern void baton_tls_function_call(FmgrInfo *function, const BatonTlsFunction *which);

/* ----------------------------------------------------------------
 *		"connection authorized" of a client that uses the dispatcher's TLS.
 */

/*
 * Called by emit_log_hook (pg_baton.c): adds the missing part, if the message
 * is that line.
 */
extern void baton_tls_log(ErrorData *edata);

#endif							/* BATON_SESSION_TLS_H */
