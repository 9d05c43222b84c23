/*-------------------------------------------------------------------------
 *
 * settings_standby.h
 *		Noticing on a standby what a backend reads only when it starts.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SETTINGS_STANDBY_H
#define BATON_SETTINGS_STANDBY_H

/* The launcher, in a transaction, before it answers a client that logs in. */
extern void baton_settings_standby_look(void);

#endif							/* BATON_SETTINGS_STANDBY_H */
