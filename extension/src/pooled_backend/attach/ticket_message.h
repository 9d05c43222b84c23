/*-------------------------------------------------------------------------
 *
 * ticket_message.h
 *		The one message that a backend has asked a client for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TICKET_MESSAGE_H
#define BATON_TICKET_MESSAGE_H

/*
 * Waits for it, and has the server read it and nothing that follows it.  Up to
 * baton_ticket_message_end() the server's socket is not the client's.  True: all
 * of it is in pqcomm.c's buffer.
 */
extern bool baton_ticket_message_await(void);

/* The server is about to say something: to the client. */
extern void baton_ticket_message_end(void);

#endif							/* BATON_TICKET_MESSAGE_H */
