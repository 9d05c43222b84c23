/*-------------------------------------------------------------------------
 *
 * client_port.c
 *		What MyProcPort says of the client that this backend serves.
 *
 * Port (libpq-be.h) is filled in while a backend starts (ProcessStartupPacket
 * and BackendInitialize, postmaster.c; backend_startup.c since 18), and only
 * read from then on: by elog.c, by hba.c and auth.c, by inet_client_addr() and
 * its like, by pqcomm.c.  What is relied on, in 15 to 18:
 *	- Nothing in the server frees remote_host, remote_port, remote_hostname,
 *	  peer_cn or peer_dn, but be_tls_close() (be-secure-openssl.c) the last two,
 *	  of a connection that has OpenSSL state.
 *	- remote_hostname NULL with remote_hostname_resolv 0 means that nobody has
 *	  looked it up yet (check_hostname, hba.c).
 *	- For the settings of a socket 0 means that the parameter is not set, and of
 *	  the default_ ones that the kernel has not been asked (pqcomm.c,
 *	  pq_getkeepalivesidle() and its like).
 *	- secure_read() and secure_write() (be-secure.c) take ssl_in_use at its word.
 *	- noblock decides whether secure_read() waits.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "address.h"
#include "client_port.h"

static void
set_end(SockAddr *address, const BatonPortEnd *end)
{
	(void) baton_address_make(address, end->family, end->port, end->address, end->scope);
}

static void
forget_hostname(void)
{
	MyProcPort->remote_hostname = NULL;
	MyProcPort->remote_hostname_resolv = 0;
}

void
baton_port_set_ends(const BatonPortEnd *remote, const BatonPortEnd *local)
{
	set_end(&MyProcPort->raddr, remote);
	set_end(&MyProcPort->laddr, local);
	forget_hostname();
}

void
baton_port_set_remote_text(char *host, char *port)
{
	MyProcPort->remote_host = host;
	MyProcPort->remote_port = port;
}

void
baton_port_set_protocol(uint32 protocol)
{
	MyProcPort->proto = protocol;
}

void
baton_port_set_socket(pgsocket socket)
{
	MyProcPort->sock = socket;
}

void
baton_port_set_blocking(void)
{
	MyProcPort->noblock = false;
}

void
baton_port_forget_keepalives(void)
{
	Port	   *port = MyProcPort;

	port->default_keepalives_idle = 0;
	port->default_keepalives_interval = 0;
	port->default_keepalives_count = 0;
	port->default_tcp_user_timeout = 0;
	port->keepalives_idle = 0;
	port->keepalives_interval = 0;
	port->keepalives_count = 0;
	port->tcp_user_timeout = 0;
}

void
baton_port_set_kernel_keepalives(int idle, int interval, int count)
{
	MyProcPort->default_keepalives_idle = idle;
	MyProcPort->default_keepalives_interval = interval;
	MyProcPort->default_keepalives_count = count;
}

void
baton_port_forget_user_timeout(void)
{
	MyProcPort->default_tcp_user_timeout = 0;
}

void
baton_port_claim_tls(bool claimed)
{
	MyProcPort->ssl_in_use = claimed;
}

void
baton_port_set_certificate(bool valid, char *common_name, char *distinguished_name)
{
	MyProcPort->peer_cert_valid = valid;
	MyProcPort->peer_cn = common_name;
	MyProcPort->peer_dn = distinguished_name;
}

void
baton_port_forget_certificate(void)
{
	Port	   *port = MyProcPort;

	if (port->peer_cn != NULL)
		pfree(port->peer_cn);
	if (port->peer_dn != NULL)
		pfree(port->peer_dn);
	baton_port_set_certificate(false, NULL, NULL);
}

BatonPortPeer
baton_port_peer(void)
{
	BatonPortPeer peer = {
		.socket = MyProcPort->sock,
		.address = MyProcPort->raddr,
		.hostname = MyProcPort->remote_hostname,
		.hostname_resolv = MyProcPort->remote_hostname_resolv
	};

	return peer;
}

void
baton_port_set_peer(const BatonPortPeer *peer)
{
	MyProcPort->sock = peer->socket;
	MyProcPort->raddr = peer->address;
	MyProcPort->remote_hostname = peer->hostname;
	MyProcPort->remote_hostname_resolv = peer->hostname_resolv;
}

void
baton_port_assume_remote(const BatonPortEnd *remote)
{
	set_end(&MyProcPort->raddr, remote);
	forget_hostname();
}
