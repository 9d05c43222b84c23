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
 * baton_port_attach() checks, of what can be seen from outside, that addresses and
 * the settings of sockets are asked of these very members, and mean that.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq.h"
#include "miscadmin.h"
#include "utils/builtins.h"

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
baton_port_set_database(char *name)
{
	MyProcPort->database_name = name;
}

void
baton_port_set_user(char *name)
{
	MyProcPort->user_name = name;
}

void
baton_port_set_options(char *options)
{
	MyProcPort->cmdline_options = options;
}

/* In the current memory context. */
void
baton_port_add_parameter(char *name, char *value)
{
	MyProcPort->guc_options = lappend(MyProcPort->guc_options, name);
	MyProcPort->guc_options = lappend(MyProcPort->guc_options, value);
}

void
baton_port_set_application_name(char *name)
{
	MyProcPort->application_name = name;
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

/* What SQL says of the client's end: address, and port. */
static bool
is_shown(const char *address, int port)
{
	LOCAL_FCINFO(call, 0);
	Datum		shown;

	InitFunctionCallInfoData(*call, NULL, 0, InvalidOid, NULL, NULL);
	shown = inet_client_addr(call);
	if (call->isnull ||
		strcmp(DatumGetCString(DirectFunctionCall1(inet_out, shown)), address) != 0)
		return false;
	shown = inet_client_port(call);
	return !call->isnull && DatumGetInt32(shown) == port;
}

/* Of a socket that is none of TCP's: to ask the kernel would be an error. */
static bool
are_answered_from_port(Port *port)
{
	baton_port_forget_keepalives();
	baton_port_set_kernel_keepalives(1001, 1002, 1003);
	port->default_tcp_user_timeout = 1004;
	if (pq_getkeepalivesidle(port) != 1001 || pq_getkeepalivesinterval(port) != 1002 ||
		pq_getkeepalivescount(port) != 1003 || pq_gettcpusertimeout(port) != 1004)
		return false;

	/* the same again is not set again */
	if (pq_setkeepalivesidle(0, port) != STATUS_OK ||
		pq_setkeepalivesinterval(0, port) != STATUS_OK ||
		pq_setkeepalivescount(0, port) != STATUS_OK ||
		pq_settcpusertimeout(0, port) != STATUS_OK)
		return false;

	/* what was set is known without the kernel, too */
	port->keepalives_idle = 2001;
	port->keepalives_interval = 2002;
	port->keepalives_count = 2003;
	port->tcp_user_timeout = 2004;
	return pq_getkeepalivesidle(port) == 2001 && pq_getkeepalivesinterval(port) == 2002 &&
		pq_getkeepalivescount(port) == 2003 && pq_gettcpusertimeout(port) == 2004;
}

const char *
baton_port_attach(void)
{
	/* for documentation, RFC 5737 */
	static const uint8 address[16] = {192, 0, 2, 1};
	const BatonPortEnd end = {.family = AF_INET,.port = 5431,.address = address};
	const Port	own = *MyProcPort;
	const char *problem = NULL;

	if (own.ssl_in_use)
		problem = "a pooled backend speaks TLS";
	baton_port_set_ends(&end, &end);
	if (!is_shown("192.0.2.1", 5431))
		problem = "a client's address is not where it is asked for";
	else if (!are_answered_from_port(MyProcPort))
		problem = "the settings of a client's socket are not where they are asked for";
	*MyProcPort = own;
	return problem;
}
