/*-------------------------------------------------------------------------
 *
 * socket_switch.h
 *		Exchanging the client's socket under a running backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SOCKET_SWITCH_H
#define BATON_SOCKET_SWITCH_H

#include "storage/latch.h"

/*
 * Once, at attach: puts a placeholder on descriptor `number`, makes it
 * MyProcPort->sock, rebuilds FeBeWaitSet on it.  NULL, or why it cannot.
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

/* The epoll descriptor of FeBeWaitSet: readable when that set has an event. */
extern int	baton_socket_wait_descriptor(void);

/* Makes FeBeWaitSet wait for the client to send (not for room to write). */
extern void baton_socket_expect_input(void);

#endif							/* BATON_SOCKET_SWITCH_H */
