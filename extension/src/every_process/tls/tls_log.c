/*-------------------------------------------------------------------------
 *
 * tls_log.c
 *		"connection authorized" of a client whose TLS the dispatcher speaks.
 *
 * What PostgreSQL guarantees: PerformAuthentication() (postinit.c, 15 to 18) says
 * LOG once, in that line: who has come, then " SSL enabled (...)" if
 * port->ssl_in_use, which a native backend behind a relay cannot say
 * (client_ticket.c), then what GSSAPI has to say.  So here the part that is
 * missing is put in, in the server's own words and language, between what comes
 * before and what comes after it.  emit_log_hook may change what is written
 * (EmitErrorReport, elog.c), and is called in the message's own memory.
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

#include "pid_tls.h"
#include "tls_log.h"

/* How long what comes before is, made as PerformAuthentication() has made it. */
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
