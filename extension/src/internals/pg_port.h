/*-------------------------------------------------------------------------
 *
 * pg_port.h
 *		PostgreSQL's record of its client (Port, MyClientConnectionInfo):
 *		addresses, identity, certificate.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_PORT_H
#define BATON_PG_PORT_H

#include "libpq/libpq-be.h"
#include "libpq/pqcomm.h"

/* ----------------------------------------------------------------
 *		Socket addresses as baton_shared.h has them.
 * ----------------------------------------------------------------
 */

/* True if it is of a family we know; AF_UNIX has no port and no bytes. */
extern bool baton_address_make(SockAddr *address, uint16 family, uint16 port,
							   const uint8 *bytes, uint32 scope);

/* ----------------------------------------------------------------
 *		What MyProcPort says of the client that this backend serves.
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		How a client has proved itself, and as whom: what SYSTEM_USER says (16).
 * ----------------------------------------------------------------
 */

/* Is there anything to be known?  Not in 15. */
extern bool baton_client_identities(void);

/*
 * As whom this backend has authenticated its client, and how: NULL if it did not
 * have to.
 */
extern const char *baton_client_identity(const char **method);

/*
 * What parallel workers of this backend shall say from now on: method:identity,
 * which stays where it is until the next call; or NULL.
 */
extern void baton_client_identity_put(const char *system_user);

/* ----------------------------------------------------------------
 *		The certificate that a client was shown by somebody else.
 * ----------------------------------------------------------------
 */

/*
 * Puts it into a connection that has no TLS of its own; false if it cannot be
 * bound to.  In DER; of length 0: none, where a session is only asserted.
 */
extern bool baton_certificate_put(Port *port, const char *certificate, Size length);

/* Takes it out again. */
extern void baton_certificate_remove(Port *port);

#endif							/* BATON_PG_PORT_H */
