/*-------------------------------------------------------------------------
 *
 * client_port.h
 *		What MyProcPort says of the client that this backend serves.
 *
 * See client_port.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CLIENT_PORT_H
#define BATON_CLIENT_PORT_H

#include "libpq/libpq-be.h"

/* Checks it in a pooled backend that starts: NULL, or what is not as expected. */
extern const char *baton_port_attach(void);

/* One end of a connection; a Unix socket's has its family only. */
typedef struct BatonPortEnd
{
	uint16		family;
	uint16		port;
	const uint8 *address;
	uint32		scope;
} BatonPortEnd;

/* Where the client is, and where it has connected to; no host name is known. */
extern void baton_port_set_ends(const BatonPortEnd *remote, const BatonPortEnd *local);

/* The first as text, which must stay where it is. */
extern void baton_port_set_remote_text(char *host, char *port);

/* The protocol that it speaks. */
extern void baton_port_set_protocol(uint32 protocol);

/*
 * What a startup packet says, as ProcessStartupPacket() puts it there.  Texts must
 * stay where they are.
 */
extern void baton_port_set_database(char *name);
extern void baton_port_set_user(char *name);
extern void baton_port_set_options(char *options);
extern void baton_port_add_parameter(char *name, char *value);
extern void baton_port_set_application_name(char *name);

/* The descriptor that it is served by. */
extern void baton_port_set_socket(pgsocket socket);

/* Reading waits until there is something. */
extern void baton_port_set_blocking(void);

/*
 * Its socket's own settings: they are not known; or the kernel's, of a socket
 * that nothing was set for, are these.  Of TCP_USER_TIMEOUT that one is 0, which
 * also says that it is not known.
 */
extern void baton_port_forget_keepalives(void);
extern void baton_port_set_kernel_keepalives(int idle, int interval, int count);
extern void baton_port_forget_user_timeout(void);

/*
 * Is its connection said to be encrypted?  There is no OpenSSL state behind it:
 * nothing may be read or written meanwhile.
 */
extern void baton_port_claim_tls(bool claimed);

/* The certificate that it has shown to its relay; names are NULL where none is. */
extern void baton_port_set_certificate(bool valid, char *common_name, char *distinguished_name);
extern void baton_port_forget_certificate(void);

#endif							/* BATON_CLIENT_PORT_H */
