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
 *		The background worker that keeps a dispatcher running and answers its
 *		questions.
 */

/* The function by which the background worker is registered and found. */
#define BATON_LAUNCHER_FUNCTION "baton_launcher_main"

/* Called by _PG_init, while the server preloads libraries. */
extern void baton_launcher_register(void);

/* ---- launcher.c ------------------------------------------------- */

/* Registers a background worker of the library, with these bgw_flags. */
extern void baton_worker_register(const char *name, const char *function, int flags);

/* The dispatcher's exit code if a port of the pool is in use. */
#define BATON_EXIT_PORT_TAKEN 75

/* A dispatcher and the channel to it. */
typedef struct BatonDispatcher
{
	int			pid;			/* 0: none */
	int			adopted;		/* pidfd of a dispatcher that is no child of
								 * this launcher, or -1 */
	int			channel;		/* -1: none */
} BatonDispatcher;

#define BATON_NO_DISPATCHER ((BatonDispatcher) {.pid = 0, .adopted = -1, .channel = -1})

/* Starts a dispatcher.  If that fails, logs why and returns false. */
extern bool baton_dispatcher_spawn(BatonDispatcher *dispatcher);

/*
 * Takes over a dispatcher that runs without a launcher.  Returns false if
 * there is none.
 */
extern bool baton_dispatcher_adopt(BatonDispatcher *dispatcher);

/*
 * Closes the channel and waits for the process to end, killing it if it does
 * not end by itself.  Blocks for four seconds at most.  Logs how it ended, and
 * writes that and the reason (BATON_ENDED_*) into CONTROL.  Returns whether it
 * has ended on purpose, with exit status 0.
 */
extern bool baton_dispatcher_end(BatonDispatcher *dispatcher, uint32 reason);

/* Sends SIGKILL. */
extern void baton_dispatcher_kill(const BatonDispatcher *dispatcher);

/* Has the last dispatcher that was started begun its event loop? */
extern bool baton_dispatcher_has_begun(void);

/* ----------------------------------------------------------------
 *		The passphrase of the server's key, for the dispatcher.
 * ----------------------------------------------------------------
 */

/*
 * Sends it, if ssl_key_file needs a passphrase and ssl_passphrase_command may
 * be run: when a dispatcher starts, or with
 * ssl_passphrase_command_supports_reload.  Returns false if the dispatcher has
 * gone.
 */
extern bool baton_key_passphrase_send(int channel, bool is_start);

#endif							/* BATON_LAUNCHER_H */
