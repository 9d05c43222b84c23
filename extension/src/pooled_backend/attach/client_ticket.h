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


/*
 * A backend is about to send NegotiateProtocolVersion as its first message.
 * Returns true if the message was about a ticket and shall not be sent.
 */
extern bool baton_ticket_take(const char *body, size_t length);

/* ClientAuthentication() has finished, and calls its hook. */
extern void baton_ticket_authenticated(void);

#endif							/* BATON_CLIENT_TICKET_H */
