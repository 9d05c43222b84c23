/*-------------------------------------------------------------------------
 *
 * launcher.h
 *		The background worker that starts, replaces and ends the dispatcher and
 *		answers its questions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LAUNCHER_H
#define BATON_LAUNCHER_H

/* ----------------------------------------------------------------
 *		The background worker that keeps a dispatcher running and answers it.
 * ----------------------------------------------------------------
 */

/* What its background worker is registered with, and found by. */
#define BATON_LAUNCHER_FUNCTION "baton_launcher_main"

/* From _PG_init, while the server preloads libraries. */
extern void baton_launcher_register(void);

/* ---- launcher.c ------------------------------------------------- */

/* The dispatcher's exit code when a port of the pool's is taken. */
#define BATON_EXIT_PORT_TAKEN 75

/* A dispatcher and the way to speak to it. */
typedef struct BatonDispatcher
{
	int			pid;			/* 0: none */
	int			adopted;		/* pidfd of one that is no child of ours, or
								 * -1 */
	int			channel;		/* -1: none */
} BatonDispatcher;

#define BATON_NO_DISPATCHER ((BatonDispatcher) {.pid = 0, .adopted = -1, .channel = -1})

/* Starts one.  False, and logged, if that is not possible. */
extern bool baton_dispatcher_spawn(BatonDispatcher *dispatcher);

/* Takes over one that lives without a launcher.  False if there is none. */
extern bool baton_dispatcher_adopt(BatonDispatcher *dispatcher);

/*
 * The channel is of no use any more: closes it and sees the process out, by
 * force if it does not go by itself.  Blocks for four seconds at most.  Logs
 * how it ended.
 */
extern void baton_dispatcher_end(BatonDispatcher *dispatcher);

/* ----------------------------------------------------------------
 *		The passphrase of the server's key, for the dispatcher.
 * ----------------------------------------------------------------
 */

/*
 * Sends it, if ssl_key_file needs one and ssl_passphrase_command may be run: when a
 * dispatcher starts, or with ssl_passphrase_command_supports_reload.  False if the
 * dispatcher has gone.
 */
extern bool baton_key_passphrase_send(int channel, bool is_start);

#endif							/* BATON_LAUNCHER_H */
