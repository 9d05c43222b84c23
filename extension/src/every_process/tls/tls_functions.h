/*-------------------------------------------------------------------------
 *
 * tls_functions.h
 *		Extension sslinfo, in a session whose TLS the dispatcher speaks.
 *
 * See tls_functions.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TLS_FUNCTIONS_H
#define BATON_TLS_FUNCTIONS_H

#include "fmgr.h"

typedef struct BatonTlsFunction BatonTlsFunction;

/* Is that C function one of sslinfo's?  NULL: no. */
extern const BatonTlsFunction *baton_tls_function_find(const char *library, const char *symbol);

/* It is about to be called (fmgr_hook): in its place something else is, or it fails. */
extern void baton_tls_function_call(FmgrInfo *function, const BatonTlsFunction *which);

#endif							/* BATON_TLS_FUNCTIONS_H */
