/*-------------------------------------------------------------------------
 *
 * shown_certificate.c
 *		The certificate that a client was shown by somebody else.
 *
 * SCRAM's channel binding (tls-server-end-point, RFC 5929) ties a password's
 * proof to the server's certificate, not to the TLS session.  The dispatcher
 * has shown one to the client; a backend that authenticates that client needs to
 * know no more.
 *
 * What PostgreSQL guarantees: read_client_final_message() (auth-scram.c, 15 to 18)
 * has the hash from be_tls_get_certificate_hash() (be-secure-openssl.c), which
 * asks port->ssl for its certificate and nothing else.  So port->ssl is a session
 * of OpenSSL's that has the certificate, and no peer, no key and no socket.
 * Nobody else looks at it while port->ssl_in_use is false, but for
 * CheckCertAuth()'s assertion (auth.c) that there is one.
 *
 * Checked with each certificate: the server's hash of it is that of RFC 5929.
 * Where it is not, binding is not offered.
 *
 * OpenSSL is the server's own: libpq-be.h needs its headers, and the server has
 * loaded it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "self_check.h"
#include "shown_certificate.h"

#ifdef USE_OPENSSL

static SSL *
session_with(X509 *certificate)
{
	SSL_CTX    *context = SSL_CTX_new(SSLv23_method());
	SSL		   *session = NULL;

	if (context == NULL)
		return NULL;
#if OPENSSL_VERSION_NUMBER >= 0x10100000L
	/* whether it is strong enough the dispatcher has decided */
	SSL_CTX_set_security_level(context, 0);
#endif
	if (certificate != NULL)
		(void) SSL_CTX_use_certificate(context, certificate);
	session = SSL_new(context);
	/* the session has its own reference */
	SSL_CTX_free(context);
	return session;
}

/* NULL if a certificate of this kind has none: the server says so when it is asked. */
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

/* Is what a client is to bind to what the server will compare with? */
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
	/* errors are kept by thread, and the server would report them as its own */
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
