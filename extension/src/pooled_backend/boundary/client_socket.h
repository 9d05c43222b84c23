/*-------------------------------------------------------------------------
 *
 * client_socket.h
 *		The client's socket under a running backend: exchanging it, and the
 *		settings that parameters ask for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CLIENT_SOCKET_H
#define BATON_CLIENT_SOCKET_H

#include "storage/latch.h"

#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		Exchanging the client's socket under a running backend.
 * ----------------------------------------------------------------
 */

/*
 * Called once, at attach. Puts a placeholder on descriptor `number`, makes it
 * MyProcPort->sock and rebuilds FeBeWaitSet on it. Returns NULL, or the reason
 * why this failed. An idle backend also waits for the dispatcher's socket.
 */
extern const char *baton_socket_attach(int number);

/* Puts a client's socket in place and consumes `fd`. */
extern void baton_socket_put(int fd);

/* Puts the placeholder in place: this backend serves no session. */
extern void baton_socket_clear(void);

/*
 * Puts a socket in place from which exactly `messages` can be read. The
 * client's socket is kept aside until baton_socket_resume.
 */
extern void baton_socket_inject(const char *messages, Size length);
extern void baton_socket_resume(void);

/*
 * A wait set for an idle backend: FeBeWaitSet's events and the dispatcher's
 * socket. It is valid until another socket is put in place. Call
 * baton_socket_expect_sleep before sleeping on it, so that it watches the
 * socket in place.
 */
#define BATON_IDLE_CONTROL_POS FeBeWaitSetNEvents
extern WaitEventSet *baton_socket_idle_set(void);

/* The dispatcher's socket is another one now: the set watches that. */
extern void baton_socket_control_is_new(void);
extern void baton_socket_expect_sleep(void);
extern bool baton_socket_expects_sleep(void);

/*
 * Makes FeBeWaitSet watch the socket in place. This must be called before
 * PostgreSQL can wait on the set; a wait without it would not end. PostgreSQL
 * (15 to 18) waits on FeBeWaitSet in secure_read for input, in secure_write
 * for room, and in pq_check_connection.
 */
extern void baton_socket_expect_waits(void);
extern bool baton_socket_expects_waits(void);

/* ----------------------------------------------------------------
 *		The settings of a client's socket that parameters ask for.
 * ----------------------------------------------------------------
 */

/*
 * Called once, at attach. Returns NULL, or the reason why the parameters are
 * not as expected.
 */
extern const char *baton_keepalive_attach(void);

/*
 * Another session's socket has been put in place; `relayed`: it is a TLS
 * relay's.
 */
extern void baton_keepalive_relayed(bool relayed);

/* The session's socket and parameters are in place, or are about to leave. */
extern void baton_keepalive_put(BatonSessionSlot *slot);
extern void baton_keepalive_leave(BatonSessionSlot *slot);

#endif							/* BATON_CLIENT_SOCKET_H */
