/*-------------------------------------------------------------------------
 *
 * session_tls.c
 *		What sslinfo and the server's log say about a session that uses the
 *		dispatcher's TLS.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "pid_views.h"
#include "pooled_state.h"
#include "session_pid.h"
#include "session_tls.h"

/* ----------------------------------------------------------------
 *		Extension sslinfo, in a session that uses the dispatcher's TLS.
 *
 * Its functions read MyProcPort->ssl (sslinfo.c), which neither a pooled
 * backend nor a native backend with a relayed client has: they would report
 * that there is no TLS.  What pg_stat_ssl shows of the session answers most
 * of them; replacements read it.  Functions that need the certificate itself
 * fail for a client that has one.
 *
 * What PostgreSQL guarantees: fmgr_security_definer() (fmgr.c, 15 to 18),
 * which calls the functions that needs_fmgr_hook has claimed, passes its own
 * FmgrInfo to fmgr_hook, and calls that FmgrInfo's fn_addr only after that.
 * Such an FmgrInfo lives no longer than its query, and the replacements
 * answer for the session in place when they are called.
 *
 * Names are truncated as pg_stat_ssl's are (pid_views.c), and as sslinfo's
 * own are: at NAMEDATALEN.
 */

struct BatonTlsFunction
{
	const char *symbol;
	PGFunction	ours;			/* NULL: needs the certificate itself */
};

/* All zeroes without TLS. */
static BatonTls
session_tls(void)
{
	BatonTls	none = {0};
	BatonIdentity identity;

	if (baton_relayed_tls.in_use != 0)
		return baton_relayed_tls;
	if (!BatonPlaced.identity.is_relayed)
		return none;
	if (!baton_identity_read(BatonServed.session, &identity) || identity.tls.in_use == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("functions of extension \"sslinfo\" do not know the TLS of this session"),
				 errhint("Use the view pg_stat_ssl.")));
	return identity.tls;
}

/* Each certificate has a serial number. */
static bool
has_certificate(const BatonTls *tls)
{
	return tls->client_serial[0] != '\0';
}

/* NULL for an empty text. */
static Datum
text_result(FunctionCallInfo fcinfo, const uint8 *bytes)
{
	if (bytes[0] == '\0')
		PG_RETURN_NULL();
	PG_RETURN_DATUM(baton_tls_text(bytes));
}

static Datum
is_used(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(session_tls().in_use != 0);
}

static Datum
version(PG_FUNCTION_ARGS)
{
	BatonTls	tls = session_tls();

	return text_result(fcinfo, tls.version);
}

static Datum
cipher(PG_FUNCTION_ARGS)
{
	BatonTls	tls = session_tls();

	return text_result(fcinfo, tls.cipher);
}

static Datum
certificate_present(PG_FUNCTION_ARGS)
{
	BatonTls	tls = session_tls();

	PG_RETURN_BOOL(has_certificate(&tls));
}

static Datum
client_serial(PG_FUNCTION_ARGS)
{
	BatonTls	tls = session_tls();

	if (!has_certificate(&tls))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(DirectFunctionCall3(numeric_in, CStringGetDatum((char *) tls.client_serial),
										ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static Datum
client_dn(PG_FUNCTION_ARGS)
{
	BatonTls	tls = session_tls();

	return text_result(fcinfo, tls.client_dn);
}

static Datum
issuer_dn(PG_FUNCTION_ARGS)
{
	BatonTls	tls = session_tls();

	return text_result(fcinfo, tls.issuer_dn);
}

static const BatonTlsFunction functions[] = {
	{"ssl_is_used", is_used},
	{"ssl_version", version},
	{"ssl_cipher", cipher},
	{"ssl_client_cert_present", certificate_present},
	{"ssl_client_serial", client_serial},
	{"ssl_client_dn", client_dn},
	{"ssl_issuer_dn", issuer_dn},
	{"ssl_client_dn_field", NULL},
	{"ssl_issuer_field", NULL},
	{"ssl_extension_info", NULL},
};

const BatonTlsFunction *
baton_tls_function_find(const char *library, const char *symbol)
{
	const char *slash = strrchr(library, '/');

	if (slash != NULL)
		library = slash + 1;
	if (strcmp(library, "sslinfo") != 0 && strcmp(library, "sslinfo" DLSUFFIX) != 0)
		return NULL;
	for (Size i = 0; i < lengthof(functions); i++)
		if (strcmp(functions[i].symbol, symbol) == 0)
			return &functions[i];
	return NULL;
}

void
baton_tls_function_call(FmgrInfo *function, const BatonTlsFunction *which)
{
	BatonTls	tls;

	if (which->ours != NULL)
	{
		function->fn_addr = which->ours;
		return;
	}

	/* for a client without a certificate the function answers correctly */
	tls = session_tls();
	if (has_certificate(&tls))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("function %s() does not know the certificate of this session's client",
						which->symbol),
				 errdetail("It was shown to pg_baton's dispatcher."),
				 errhint("Functions ssl_client_dn() and ssl_issuer_dn() have its names.")));
}

/* ----------------------------------------------------------------
 *		"connection authorized" of a client that uses the dispatcher's TLS.
 *
 * What PostgreSQL guarantees: PerformAuthentication() (postinit.c, 15 to 18)
 * writes one LOG message, with that line: the user and database, then " SSL
 * enabled (...)" if port->ssl_in_use, which a native backend behind a relay
 * cannot set (client_ticket.c), then the GSSAPI part.  So this code inserts
 * the missing part, in the server's own words and language, between the two.
 * emit_log_hook may change the message (EmitErrorReport, elog.c), and is
 * called in the message's own memory context.
 */

/* The length of the first part, made as PerformAuthentication() makes it. */
static Size
length_before(const char *message)
{
	StringInfoData before;
	Size		length;

	initStringInfo(&before);
	appendStringInfo(&before, am_walsender ?
					 _("replication connection authorized: user=%s") :
					 _("connection authorized: user=%s"), MyProcPort->user_name);
	if (!am_walsender)
		appendStringInfo(&before, _(" database=%s"), MyProcPort->database_name);
	if (MyProcPort->application_name != NULL)
		appendStringInfo(&before, _(" application_name=%s"), MyProcPort->application_name);
	length = (Size) before.len;
	if (strncmp(message, before.data, length) != 0)
		length = strlen(message);
	pfree(before.data);
	return length;
}

void
baton_tls_log(ErrorData *edata)
{
	const BatonTls *tls = &baton_relayed_tls;
	char	   *message;
	char	   *enabled;
	int			before;

	if (tls->in_use == 0 || edata->elevel != LOG || edata->funcname == NULL ||
		strcmp(edata->funcname, "PerformAuthentication") != 0)
		return;
	before = (int) length_before(edata->message);
	enabled = psprintf(_(" SSL enabled (protocol=%s, cipher=%s, bits=%d)"),
					   (const char *) tls->version, (const char *) tls->cipher, (int) tls->bits);
	message = psprintf("%.*s%s%s", before, edata->message, enabled, edata->message + before);
	pfree(enabled);
	pfree(edata->message);
	edata->message = message;
}
