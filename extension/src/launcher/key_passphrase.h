/*-------------------------------------------------------------------------
 *
 * key_passphrase.h
 *		The passphrase of the server's key, for the dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_KEY_PASSPHRASE_H
#define BATON_KEY_PASSPHRASE_H

/*
 * Sends it, if ssl_key_file needs one and ssl_passphrase_command may be run: when a
 * dispatcher starts, or with ssl_passphrase_command_supports_reload.  False if the
 * dispatcher has gone.
 */
extern bool baton_key_passphrase_send(int channel, bool is_start);

#endif							/* BATON_KEY_PASSPHRASE_H */
