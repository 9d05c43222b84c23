/*-------------------------------------------------------------------------
 *
 * client_ticket.h
 *		A starting backend takes the client's own socket, before it
 *		authenticates.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CLIENT_TICKET_H
#define BATON_CLIENT_TICKET_H

/* ----------------------------------------------------------------
 *		The one message that a backend has asked a client for.
 * ----------------------------------------------------------------
 */

/*
 * Waits for it, and has the server read it and nothing that follows it.  Up to
 * baton_ticket_message_end() the server's socket is not the client's.  True: all
 * of it is in pqcomm.c's buffer.
 */
extern bool baton_ticket_message_await(void);

/* The server is about to say something: to the client. */
extern void baton_ticket_message_end(void);

/* ----------------------------------------------------------------
 *		A client's request for GSSAPI encryption, answered by the backend that
 *		becomes its own.  See client_ticket.c.
 * ----------------------------------------------------------------
 */

/*
 * The client's socket is in place, and nothing has been answered.  Afterwards the
 * server knows all that the client's own startup packet says.
 */
extern void baton_gss_startup(int dispatcher);

/* ----------------------------------------------------------------
 *		A starting backend takes the client's own socket, before it
 *		authenticates.
 * ----------------------------------------------------------------
 */

/*
 * The NegotiateProtocolVersion that a backend is about to send, as its first
 * message of all: true if it was about a ticket, and shall not be sent.
 */
extern bool baton_ticket_take(const char *body, size_t length);

/* ClientAuthentication() has come to its end, and calls its hook. */
extern void baton_ticket_authenticated(void);

#endif							/* BATON_CLIENT_TICKET_H */
