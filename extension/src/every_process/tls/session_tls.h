/*-------------------------------------------------------------------------
 *
 * session_tls.h
 *		What sslinfo and the server's log say about a session whose TLS the
 *		dispatcher speaks.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SESSION_TLS_H
#define BATON_SESSION_TLS_H

#include "fmgr.h"

/* ----------------------------------------------------------------
 *		Extension sslinfo, in a session whose TLS the dispatcher speaks.
 * ----------------------------------------------------------------
 */

typedef struct BatonTlsFunction BatonTlsFunction;

/* Is that C function one of sslinfo's?  NULL: no. */
extern const BatonTlsFunction *baton_tls_function_find(const char *library, const char *symbol);

/* It is about to be called (fmgr_hook): in its place something else is, or it fails. */
extern void baton_tls_function_call(FmgrInfo *function, const BatonTlsFunction *which);

/* ----------------------------------------------------------------
 *		"connection authorized" of a client whose TLS the dispatcher speaks.
 * ----------------------------------------------------------------
 */

/* From emit_log_hook (pg_baton.c): adds what is missing, if it is that line. */
extern void baton_tls_log(ErrorData *edata);

#endif							/* BATON_SESSION_TLS_H */
