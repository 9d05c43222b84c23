/*-------------------------------------------------------------------------
 *
 * pg_port.c
 *		PostgreSQL's record of its client (Port, MyClientConnectionInfo):
 *		addresses, identity, certificate.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netinet/in.h>
#include <sys/un.h>

#include "libpq/hba.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "pg_port.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		Socket addresses in the form of baton_shared.h.
 */

bool
baton_address_make(SockAddr *address, uint16 family, uint16 port,
				   const uint8 *bytes, uint32 scope)
{
	memset(address, 0, sizeof(*address));
	if (family == AF_INET)
	{
		struct sockaddr_in *in = (struct sockaddr_in *) &address->addr;

		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		memcpy(&in->sin_addr, bytes, sizeof(in->sin_addr));
		address->salen = sizeof(*in);
	}
	else if (family == AF_INET6)
	{
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *) &address->addr;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		in6->sin6_scope_id = scope;
		memcpy(&in6->sin6_addr, bytes, sizeof(in6->sin6_addr));
		address->salen = sizeof(*in6);
	}
	else
	{
		struct sockaddr_un *un = (struct sockaddr_un *) &address->addr;

		un->sun_family = AF_UNIX;
		address->salen = sizeof(sa_family_t);
	}
	return family == AF_INET || family == AF_INET6 || family == AF_UNIX;
}

/* ----------------------------------------------------------------
 *		What MyProcPort says of the client that this backend serves.
 *
 * A backend fills in its Port (libpq-be.h) while it starts
 * (ProcessStartupPacket and BackendInitialize, postmaster.c;
 * backend_startup.c since 18).  From then on it is only read: by elog.c, by
 * hba.c and auth.c, by inet_client_addr() and related functions, by pqcomm.c.
 * This file relies on the following, in 15 to 18:
 * - Nothing in the server frees remote_host, remote_port, remote_hostname,
 *   peer_cn or peer_dn, except that be_tls_close() (be-secure-openssl.c)
 *   frees the last two, of a connection that has OpenSSL state.
 * - remote_hostname NULL with remote_hostname_resolv 0 means that it has not
 *   been looked up yet (check_hostname, hba.c).
 * - For the settings of a socket 0 means that the parameter is not set, and
 *   for the default_ members that the kernel has not been asked (pqcomm.c,
 *   pq_getkeepalivesidle() and related functions).
 * - secure_read() and secure_write() (be-secure.c) rely on ssl_in_use.
 * - noblock decides whether secure_read() waits.
 *
 * baton_port_attach() checks what is visible from outside: that addresses and
 * the settings of sockets are read from these members, with that meaning.
 */

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

/* Does SQL show this address and port of the client? */
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

/*
 * Tests with a socket that is not TCP, for which asking the kernel would be an
 * error.
 */
static bool
are_answered_from_port(Port *port)
{
	baton_port_forget_keepalives();
	baton_port_set_kernel_keepalives(1001, 1002, 1003);
	port->default_tcp_user_timeout = 1004;
	if (pq_getkeepalivesidle(port) != 1001 || pq_getkeepalivesinterval(port) != 1002 ||
		pq_getkeepalivescount(port) != 1003 || pq_gettcpusertimeout(port) != 1004)
		return false;

	/* setting an equal value changes nothing */
	if (pq_setkeepalivesidle(0, port) != STATUS_OK ||
		pq_setkeepalivesinterval(0, port) != STATUS_OK ||
		pq_setkeepalivescount(0, port) != STATUS_OK ||
		pq_settcpusertimeout(0, port) != STATUS_OK)
		return false;

	/* values that were set are returned without asking the kernel */
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

/* ----------------------------------------------------------------
 *		How a client was authenticated, and as which identity: the value of
 *		SYSTEM_USER (16).
 *
 * What PostgreSQL guarantees, 16 to 18: set_authn_id() (auth.c) writes
 * MyClientConnectionInfo, once, when a client has been authenticated.
 * InitPostgres() (postinit.c) makes of it the value of system_user(), in a
 * variable of miscinit.c that is written once (InitializeSystemUser), so
 * views.c replaces that function.  A parallel worker gets the struct from its
 * leader (SerializeClientConnectionInfo, when the workers are started), and
 * makes its own variable of it (ParallelWorkerMain).  The struct is not read
 * otherwise once a backend has started, and authn_id is never freed.
 */

#if PG_VERSION_NUM >= 160000

bool
baton_client_identities(void)
{
	return true;
}

const char *
baton_client_identity(const char **method)
{
	*method = hba_authname(MyClientConnectionInfo.auth_method);
	return MyClientConnectionInfo.authn_id;
}

void
baton_client_identity_put(const char *system_user)
{
	const char *colon = system_user != NULL ? strchr(system_user, ':') : NULL;

	MyClientConnectionInfo.authn_id = NULL;
	if (colon == NULL)
		return;
	for (int i = 0; i <= (int) USER_AUTH_LAST; i++)
	{
		const char *method = hba_authname((UserAuth) i);
		size_t		length = colon - system_user;

		if (strlen(method) == length && strncmp(method, system_user, length) == 0)
		{
			MyClientConnectionInfo.auth_method = (UserAuth) i;
			MyClientConnectionInfo.authn_id = colon + 1;
		}
	}
}

#else

bool
baton_client_identities(void)
{
	return false;
}

const char *
baton_client_identity(const char **method)
{
	*method = "";
	return NULL;
}

void
baton_client_identity_put(const char *system_user)
{
}

#endif

/* ----------------------------------------------------------------
 *		The certificate that the dispatcher has shown to a client.
 *
 * SCRAM's channel binding (tls-server-end-point, RFC 5929) ties the proof of
 * a password to the server's certificate, not to the TLS session.  The
 * dispatcher has shown a certificate to the client; a backend that
 * authenticates that client needs nothing else.
 *
 * What PostgreSQL guarantees: read_client_final_message() (auth-scram.c, 15
 * to 18) gets the hash from be_tls_get_certificate_hash()
 * (be-secure-openssl.c), which asks port->ssl for its certificate and nothing
 * else.  So port->ssl is set to an OpenSSL session that has the certificate,
 * and no peer, no key and no socket.  While port->ssl_in_use is false, no
 * other code uses it, except that an assertion of CheckCertAuth() (auth.c)
 * demands that there is one.
 *
 * Checked with each certificate: the server's hash of it is that of RFC 5929.
 * If it is not, binding is not offered.
 *
 * OpenSSL is the server's own: libpq-be.h needs its headers, and the server
 * has loaded it.
 */

#ifdef USE_OPENSSL

static SSL *
session_with(X509 *certificate)
{
	SSL_CTX    *context = SSL_CTX_new(SSLv23_method());
	SSL		   *session = NULL;

	if (context == NULL)
		return NULL;
#if OPENSSL_VERSION_NUMBER >= 0x10100000L
	/* the dispatcher has decided whether it is strong enough */
	SSL_CTX_set_security_level(context, 0);
#endif
	if (certificate != NULL)
		(void) SSL_CTX_use_certificate(context, certificate);
	session = SSL_new(context);
	/* the session has its own reference */
	SSL_CTX_free(context);
	return session;
}

/*
 * NULL if a certificate of this kind has none; then the server reports an
 * error when asked.
 */
static const EVP_MD *
hash_of(X509 *certificate)
{
	int			digest;

	if (!X509_get_signature_info(certificate, &digest, NULL, NULL, NULL))
		return NULL;
	if (digest == NID_md5 || digest == NID_sha1)
		return EVP_sha256();
	return EVP_get_digestbynid(digest);
}

/*
 * Is the hash that a client must bind to the one that the server will compare
 * with?
 */
static bool
is_the_server_s(Port *port, X509 *certificate)
{
	const EVP_MD *kind = hash_of(certificate);
	unsigned char hash[EVP_MAX_MD_SIZE];
	unsigned int length;
	char	   *server_hash;
	size_t		server_length;
	bool		same;

	if (kind == NULL)
		return true;
	if (!X509_digest(certificate, kind, hash, &length))
		return false;
	server_hash = be_tls_get_certificate_hash(port, &server_length);
	same = server_hash != NULL && server_length == length && memcmp(server_hash, hash, length) == 0;
	if (server_hash != NULL)
		pfree(server_hash);
	return same && !baton_self_check_is_broken("certificate");
}

bool
baton_certificate_put(Port *port, const char *certificate, Size length)
{
	const unsigned char *at = (const unsigned char *) certificate;
	X509	   *parsed = length > 0 ? d2i_X509(NULL, &at, (long) length) : NULL;
	bool		is_shown;

	Assert(port->ssl == NULL);
	port->ssl = session_with(parsed);
	is_shown = port->ssl != NULL && SSL_get_certificate(port->ssl) != NULL;
	if (is_shown && !is_the_server_s(port, parsed))
	{
		baton_self_check_failed(BATON_COSTS_BINDING, "the hash of a certificate is not the server's");
		is_shown = false;
	}
	X509_free(parsed);

	/*
	 * errors are kept for each thread, and the server would report them as
	 * its own
	 */
	ERR_clear_error();
	return is_shown;
}

void
baton_certificate_remove(Port *port)
{
	SSL_free(port->ssl);
	port->ssl = NULL;
}

#else

bool
baton_certificate_put(Port *port, const char *certificate, Size length)
{
	return false;
}

void
baton_certificate_remove(Port *port)
{
}

#endif
