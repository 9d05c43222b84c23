/*-------------------------------------------------------------------------
 *
 * message_timeout.h
 *		A limit on how long a client takes to send the rest of a message.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_MESSAGE_TIMEOUT_H
#define BATON_MESSAGE_TIMEOUT_H

/* pg_baton.message_timeout, milliseconds; 0: no limit */
extern int	baton_message_timeout_ms;

/* Once a backend. */
extern void baton_message_timeout_start(void);

/*
 * A message is about to be read that is not whole.  `ignored`: by us, and not
 * by PostgresMain.
 */
extern void baton_message_timeout_begin(bool ignored);

/*
 * The same, but its first period passes without a look at what has come: that
 * saves a system call for who sends one message behind the other.
 */
extern void baton_message_timeout_begin_late(void);

/* It has been read to its end; BatonServed.message says whether there was one. */
extern void baton_message_timeout_end(void);

#endif							/* BATON_MESSAGE_TIMEOUT_H */
