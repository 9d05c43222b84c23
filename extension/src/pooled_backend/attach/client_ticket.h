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
