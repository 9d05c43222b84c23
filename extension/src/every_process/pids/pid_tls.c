/*-------------------------------------------------------------------------
 *
 * pid_tls.c
 *		What pg_stat_ssl and pg_stat_gssapi show of a session.
 *
 * A backend writes its connection's TLS into its entry when it starts
 * (pgstat_bestart, backend_status.c), and a pooled one has none; the dispatcher,
 * which speaks TLS with the client, has put it beside who the session is, and so
 * has it what the backend has said that authenticated the client by GSSAPI.  The
 * columns are found by name: 15 to 18 have the same.
 *
 * Texts are UTF-8 (X509_NAME_to_cstring in be-secure-openssl.c converts them
 * then, and cuts them afterwards as we do before).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "pid_rows.h"
#include "pid_tls.h"

BatonTls	baton_relayed_tls;

static void
put(TupleDesc columns, Datum *values, bool *nulls, const char *name, bool null, Datum value)
{
	int			at = baton_rows_column(columns, name);

	if (at < 0)
		return;
	nulls[at] = null;
	values[at] = value;
}

Datum
baton_tls_text(const uint8 *bytes)
{
	const char *text = (const char *) bytes;
	int			length = pg_encoding_mbcliplen(PG_UTF8, text, strlen(text), NAMEDATALEN - 1);
	char	   *cut = pnstrdup(text, length);

	/* any process may have written there */
	if (pg_encoding_verifymbstr(PG_UTF8, cut, length) != length)
		return CStringGetTextDatum("???");
	return CStringGetTextDatum(pg_any_to_server(cut, length, PG_UTF8));
}

static void
put_text(TupleDesc columns, Datum *values, bool *nulls, const char *name, const uint8 *bytes)
{
	put(columns, values, nulls, name, bytes[0] == '\0', baton_tls_text(bytes));
}

void
baton_tls_show(TupleDesc columns, const BatonTls *tls, Datum *values, bool *nulls)
{
	int			ssl = baton_rows_column(columns, "ssl");
	const char *serial = (const char *) tls->client_serial;

	if (tls->in_use == 0 || ssl < 0 || nulls[ssl])
		return;
	values[ssl] = BoolGetDatum(true);
	put(columns, values, nulls, "sslbits", false, Int32GetDatum((int32) tls->bits));
	put_text(columns, values, nulls, "sslversion", tls->version);
	put_text(columns, values, nulls, "sslcipher", tls->cipher);
	put_text(columns, values, nulls, "ssl_client_dn", tls->client_dn);
	put_text(columns, values, nulls, "ssl_issuer_dn", tls->issuer_dn);
	if (serial[0] != '\0')
		put(columns, values, nulls, "ssl_client_serial", false,
			DirectFunctionCall3(numeric_in, CStringGetDatum(serial),
								ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

/* Encryption makes a session native, and so does delegation. */
void
baton_gss_show(TupleDesc columns, const BatonIdentity *identity, Datum *values, bool *nulls)
{
	int			authenticated = baton_rows_column(columns, "gss_auth");

	if (identity->gss_authenticated == 0 || authenticated < 0 || nulls[authenticated])
		return;
	values[authenticated] = BoolGetDatum(true);
	put(columns, values, nulls, "gss_princ", false, baton_tls_text(identity->gss_principal));
}
