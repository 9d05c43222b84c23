/*-------------------------------------------------------------------------
 *
 * tls_log.h
 *		"connection authorized" of a client whose TLS the dispatcher speaks.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TLS_LOG_H
#define BATON_TLS_LOG_H

/* From emit_log_hook (hooks.c): adds what is missing, if it is that line. */
extern void baton_tls_log(ErrorData *edata);

#endif							/* BATON_TLS_LOG_H */
