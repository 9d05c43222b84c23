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

/* ----------------------------------------------------------------
 *		What the client in place has sent, before PostgresMain reads it.
 * ----------------------------------------------------------------
 */

/* What the client has for us. */
typedef enum ClientSays
{
	CLIENT_NOTHING,				/* no byte yet */
	CLIENT_SPEAKS,				/* a message has begun */
	CLIENT_BEGINS,				/* of which too little is there to be read */
	CLIENT_SENDS_NOOP,			/* one that PostgresMain would only ignore */
	CLIENT_LEAVES				/* Terminate, or end of file */
} ClientSays;

/* Looks at the first bytes, which stay in the socket. */
extern ClientSays baton_input_peek(void);

/*
 * What the last peek saw: the bytes, and whether PostgresMain can go through
 * them to the next boundary without waiting for more (COPY aside).
 */
extern const char *baton_input_peeked(Size *length);
extern bool baton_input_is_whole(void);

/* How many bytes the client has sent that are still in its socket. */
extern Size baton_input_unread(void);

/* How much of a batch is there, as far as that decides whether a backend reads it. */
typedef enum
{
	INPUT_PART,					/* part of a message */
	INPUT_PAUSE,				/* whole messages, none of which is answered
								 * before a Sync or Flush */
	INPUT_ENOUGH				/* a message that is answered, whatever
								 * follows it, or BATON_MESSAGE_MAY_BEGIN */
} InputExtent;

extern InputExtent baton_input_extent(void);

/*
 * Reads into pqcomm.c's buffer what the socket, known to be readable, has.
 * The session cannot leave this backend until that has been answered.
 */
extern ClientSays baton_input_read(void);

/*
 * Do pqcomm.c's buffer's contents, which are some, begin with Terminate, or
 * with a message that PostgresMain would ignore?
 */
extern bool baton_input_ends_session(void);
extern bool baton_input_is_noop(void);

/*
 * Takes the message that PostgresMain would ignore, and those after it that
 * are in the buffer; waits for the rest of one that has only begun.  False:
 * the client left in its middle.
 */
extern bool baton_input_skip(void);

/* Throws away what is in pqcomm.c's buffer. */
extern void baton_input_discard(void);

/*
 * Throws away what is in the socket, before it is closed: the kernel resets a
 * TCP connection that is closed with something unread, and the client may not
 * get the last message.
 */
extern void baton_input_discard_unread(void);

#endif							/* BATON_CLIENT_INPUT_H */
