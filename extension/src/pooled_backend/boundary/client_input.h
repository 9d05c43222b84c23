/*-------------------------------------------------------------------------
 *
 * client_input.h
 *		What the client has sent: before PostgresMain reads it, how many bytes,
 *		and how long the rest of a message may take.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CLIENT_INPUT_H
#define BATON_CLIENT_INPUT_H

/* ----------------------------------------------------------------
 *		A limit on how long a client takes to send the rest of a message.
 * ----------------------------------------------------------------
 */

/* Called once per backend. */
extern void baton_message_timeout_start(void);

/*
 * PostgresMain is about to read a message that is not whole yet, or, if
 * `ignored`, this library drops it as it arrives.
 */
extern void baton_message_timeout_begin(bool ignored);

/*
 * The same, but the first period passes without a look at what has arrived.
 * That saves a system call for a client that sends one message after the
 * other.
 */
extern void baton_message_timeout_begin_late(void);

/*
 * The message has been read to its end, if BatonServed.message says that there
 * was one.
 */
extern void baton_message_timeout_end(void);

/* ----------------------------------------------------------------
 *		What the client in place has sent, before PostgresMain reads it.
 * ----------------------------------------------------------------
 */

/* What the client's next bytes are. */
typedef enum ClientSays
{
	CLIENT_NOTHING,				/* no byte yet */
	CLIENT_SPEAKS,				/* a message has begun */
	CLIENT_BEGINS,				/* a message has begun, with too little to
								 * read it */
	CLIENT_SENDS_NOOP,			/* a message that PostgresMain would ignore */
	CLIENT_LEAVES				/* Terminate, or end of file */
} ClientSays;

/* Looks at the first bytes, which stay in the socket. */
extern ClientSays baton_input_peek(void);

/*
 * What the last peek saw: the bytes, and whether PostgresMain can process them
 * up to the next boundary without waiting for more (COPY aside).
 */
extern const char *baton_input_peeked(Size *length);
extern bool baton_input_is_whole(void);

/*
 * The number of bytes that the client has sent and that are still in its
 * socket.
 */
extern Size baton_input_unread(void);

/*
 * How much of a batch has arrived, as far as that decides whether a backend
 * reads it.
 */
typedef enum
{
	INPUT_PART,					/* part of a message */
	INPUT_PAUSE,				/* whole messages, none of which is answered
								 * before a Sync or Flush */
	INPUT_ENOUGH				/* a message that is answered whatever follows
								 * it, or BATON_MESSAGE_MAY_BEGIN bytes */
} InputExtent;

extern InputExtent baton_input_extent(void);

/*
 * Reads the socket, which must be readable, into pqcomm.c's buffer. The
 * session cannot leave this backend until the message has been answered.
 */
extern ClientSays baton_input_read(void);

/*
 * Does pqcomm.c's buffer, which must not be empty, begin with Terminate, or
 * with a message that PostgresMain would ignore?
 */
extern bool baton_input_ends_session(void);
extern bool baton_input_is_noop(void);

/*
 * Consumes what has arrived of a message that PostgresMain would ignore, and
 * any such messages after it in the buffer. Returns CLIENT_SENDS_NOOP when
 * they are consumed to their end, CLIENT_NOTHING if the rest of the last one
 * must be waited for, CLIENT_LEAVES if it will not come.
 */
extern ClientSays baton_input_skip(void);

/* Is the rest of such a message still to be consumed? */
extern bool baton_input_is_within_noop(void);

/* Lets PostgresMain read, and ignore, that rest. */
extern void baton_input_give_noop_back(void);

/* Discards the contents of pqcomm.c's buffer. */
extern void baton_input_discard(void);

/*
 * Discards the contents of the socket before it is closed. The kernel resets a
 * TCP connection that is closed with unread data, and the client might then
 * not receive the last message.
 */
extern void baton_input_discard_unread(void);

#endif							/* BATON_CLIENT_INPUT_H */
