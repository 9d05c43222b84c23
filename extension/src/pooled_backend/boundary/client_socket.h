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
 * Once, at attach: puts a placeholder on descriptor `number`, makes it
 * MyProcPort->sock, rebuilds FeBeWaitSet on it.  NULL, or why it cannot.
 * The dispatcher's socket is waited for when there is nothing to do.
 */
extern const char *baton_socket_attach(int number);

/* Puts a client's socket in place; `fd` is consumed. */
extern void baton_socket_put(int fd);

/* Puts the placeholder in place: this backend serves nobody. */
extern void baton_socket_clear(void);

/*
 * Puts a socket in place from which exactly `messages` can be read; the
 * client's socket is kept aside until baton_socket_resume.
 */
extern void baton_socket_inject(const char *messages, Size length);
extern void baton_socket_resume(void);

/*
 * A wait set like FeBeWaitSet for a backend that has nothing to do, with the
 * dispatcher's socket as well, until another socket stands in place.  Before
 * sleeping on it: it shall wait for what stands there.
 */
#define BATON_IDLE_CONTROL_POS FeBeWaitSetNEvents
extern WaitEventSet *baton_socket_idle_set(void);
extern void baton_socket_expect_sleep(void);
extern bool baton_socket_expects_sleep(void);

/*
 * FeBeWaitSet shall wait for what stands in place.  To be called before
 * PostgreSQL could wait on it, which it does (FeBeWaitSet's users in 15 to 18)
 * in secure_read for input, in secure_write for room, and in
 * pq_check_connection; a wait without this would not end.
 */
extern void baton_socket_expect_waits(void);
extern bool baton_socket_expects_waits(void);

/* ----------------------------------------------------------------
 *		The settings of a client's socket that parameters ask for.
 * ----------------------------------------------------------------
 */

/* Once, at attach.  NULL, or why the parameters are not as expected. */
extern const char *baton_keepalive_attach(void);

/* Another session's socket is in place; it is a relay's (TLS), or is not. */
extern void baton_keepalive_relayed(bool relayed);

/* Socket and parameters of the session are in place; it leaves, with both. */
extern void baton_keepalive_put(BatonSessionSlot *slot);
extern void baton_keepalive_leave(BatonSessionSlot *slot);

#endif							/* BATON_CLIENT_SOCKET_H */
