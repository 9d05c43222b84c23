/*-------------------------------------------------------------------------
 *
 * log_settings.h
 *		log_connections and log_disconnections, as a new backend has them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LOG_SETTINGS_H
#define BATON_LOG_SETTINGS_H

/* From _PG_init, in the postmaster. */
extern void baton_log_settings_init(void);

/*
 * In any process of the server: does log_connections ask for "connection
 * received", "connection authenticated", "connection authorized"?  Up to 17 it
 * asks for all three or none.
 */
extern bool baton_log_receipt(void);
extern bool baton_log_authentication(void);
extern bool baton_log_authorization(void);
extern bool baton_log_disconnections(void);

#endif							/* BATON_LOG_SETTINGS_H */
