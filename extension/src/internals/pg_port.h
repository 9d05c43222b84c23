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
 *		Socket addresses in the form of baton_shared.h.
 */

/*
 * Returns true if the family is supported; AF_UNIX has no port and no bytes.
 */
extern bool baton_address_make(SockAddr *address, uint16 family, uint16 port,
							   const uint8 *bytes, uint32 scope);

/* ----------------------------------------------------------------
 *		What MyProcPort says of the client that this backend serves.
 * ----------------------------------------------------------------
 */

/*
 * Checks this in a pooled backend that starts.  Returns NULL, or what is not
 * as expected.
 */
extern const char *baton_port_attach(void);

/* One end of a connection; for a Unix socket only the family. */
typedef struct BatonPortEnd
{
	uint16		family;
	uint16		port;
	const uint8 *address;
	uint32		scope;
} BatonPortEnd;

/*
 * Sets the client's address, and the one that it has connected to; the host
 * name is unknown.
 */
extern void baton_port_set_ends(const BatonPortEnd *remote, const BatonPortEnd *local);

/*
 * Sets the client's address and port as text; the texts must stay allocated.
 */
extern void baton_port_set_remote_text(char *host, char *port);

/* Sets the protocol that the client speaks. */
extern void baton_port_set_protocol(uint32 protocol);

/*
 * The contents of a startup packet, stored as by ProcessStartupPacket().  The
 * texts must stay allocated.
 */
extern void baton_port_set_database(char *name);
extern void baton_port_set_user(char *name);
extern void baton_port_set_options(char *options);
extern void baton_port_add_parameter(char *name, char *value);
extern void baton_port_set_application_name(char *name);

/* Sets the descriptor of the client's socket. */
extern void baton_port_set_socket(pgsocket socket);

/*
 * The settings of the client's socket.  They become unknown; or the kernel's
 * defaults, which a socket without settings has, become known as these.  The
 * default of TCP_USER_TIMEOUT is 0, which also means unknown.
 */
extern void baton_port_forget_keepalives(void);
extern void baton_port_set_kernel_keepalives(int idle, int interval, int count);
extern void baton_port_forget_user_timeout(void);

/*
 * Marks the connection as encrypted, or not.  There is no OpenSSL state behind
 * it: nothing may be read or written meanwhile.
 */
extern void baton_port_claim_tls(bool claimed);

/*
 * The certificate that the client has shown to its relay; names are NULL if
 * there is none.
 */
extern void baton_port_set_certificate(bool valid, char *common_name, char *distinguished_name);
extern void baton_port_forget_certificate(void);

/* ----------------------------------------------------------------
 *		How a client was authenticated, and as which identity: the value of
 *		SYSTEM_USER (16).
 */

/* Does this major have such an identity?  Not 15. */
extern bool baton_client_identities(void);

/*
 * The identity as which this backend has authenticated its client, and the
 * method; NULL if it did not have to.
 */
extern const char *baton_client_identity(const char **method);

/*
 * Sets the value that parallel workers of this backend show from now on:
 * method:identity, which must stay allocated until the next call; or NULL.
 */
extern void baton_client_identity_put(const char *system_user);

/* ----------------------------------------------------------------
 *		The certificate that the dispatcher has shown to a client.
 */

/*
 * Puts it into a connection without TLS of its own; false if binding to it is
 * impossible.  In DER; length 0: no certificate, where only the existence of a
 * session is asserted.
 */
extern bool baton_certificate_put(Port *port, const char *certificate, Size length);

/* Removes it again. */
extern void baton_certificate_remove(Port *port);

#endif							/* BATON_PG_PORT_H */
