/*-------------------------------------------------------------------------
 *
 * opening_notices.c
 *		What a backend was warned of while it started.
 *
 * In stock each client is told at its login that its database's collations
 * are of another version (CheckMyDatabase in postinit.c), or that a setting of
 * its role is not valid.  A pool's backend hears that once, before it serves
 * anybody.  So it keeps what it was warned of, and tells each session that it
 * greets; the dispatcher does the same with what it has heard from it.
 *
 * One that was warned of its database, whose row in pg_database has changed since, greets
 * nobody: it ends, and one that starts now is warned or is not.
 *
 * What a parameter's check hook refused of a string is not kept: it may be good
 * by now, or may have become bad.  Each greeting checks those anew, and warns
 * (reset_greet.c).
 *
 * They are noticed on their way to the log, so only what log_min_messages
 * lets through, as it does by default.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "tcop/tcopprot.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "opening_notices.h"
#include "own_transaction.h"

/* Whoever is warned of more hears no more of it. */
#define MOST_NOTICES 16

static bool starting = true;
static bool becoming = false;	/* settings are applied: another role's, or
								 * its own again */
static List *notices = NIL;
static bool database_changed = false;	/* since it heard them */

static char *
copy_of(const char *text)
{
	return text !=NULL ? MemoryContextStrdup(TopMemoryContext, text) : NULL;
}

static void
keep(const ErrorData *edata)
{
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);
	ErrorData  *copy = palloc0(sizeof(ErrorData));

	copy->sqlerrcode = edata->sqlerrcode;
	copy->message = copy_of(edata->message);
	copy->detail = copy_of(edata->detail);
	copy->hint = copy_of(edata->hint);
	copy->context = copy_of(edata->context);
	copy->filename = edata->filename;	/* of the program's text */
	copy->lineno = edata->lineno;
	copy->funcname = edata->funcname;
	notices = lappend(notices, copy);
	MemoryContextSwitchTo(caller);
}

/* set_config_option's warning of a string, which guc.c gives in one place. */
static bool
is_checked_anew(const ErrorData *edata)
{
	return edata->funcname != NULL &&
		strcmp(edata->funcname, "call_string_check_hook") == 0;
}

void
baton_opening_notices_log(ErrorData *edata)
{
	if (((starting && edata->output_to_client) || becoming) && edata->elevel == WARNING &&
		MyProcPort != NULL && debug_query_string == NULL &&
		list_length(notices) < MOST_NOTICES && !is_checked_anew(edata))
		keep(edata);
}

static bool
is_of_database(const ErrorData *edata)
{
	return edata->funcname != NULL && strcmp(edata->funcname, "CheckMyDatabase") == 0;
}

static bool
any_of_database(void)
{
	ListCell   *cell;

	foreach(cell, notices)
	{
		if (is_of_database(lfirst(cell)))
			return true;
	}
	return false;
}

/* pg_database has changed, in whatever row. */
static void
note_change(Datum argument, int cache, uint32 hash)
{
	database_changed = true;
}

void
baton_opening_notices_end(void)
{
	starting = false;
	if (any_of_database())
		CacheRegisterSyscacheCallback(DATABASEOID, note_change, (Datum) 0);
}

bool
baton_opening_notices_may_be_past(void)
{
	MemoryContext caller = CurrentMemoryContext;

	if (likely(notices == NIL) || !any_of_database())
		return false;
	if (!database_changed)
	{
		baton_own_transaction_start();
		AcceptInvalidationMessages();
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
	}
	return database_changed;
}

/*
 * CheckMyDatabase's are of the database, and stay; the others are of the settings that go.
 * Warnings go to the log and to the sessions that are greeted, and to no client now.
 */
void
baton_opening_notices_begin_role(void)
{
	ListCell   *cell;

	foreach(cell, notices)
	{
		ErrorData  *edata = lfirst(cell);

		if (!is_of_database(edata))
		{
			FreeErrorData(edata);
			notices = foreach_delete_current(notices, cell);
		}
	}
	becoming = true;
	whereToSendOutput = DestNone;
}

void
baton_opening_notices_end_role(void)
{
	becoming = false;
	whereToSendOutput = DestRemote;
}

/* One field, if there is a text for it. */
static void
error_field(StringInfo message, char field, const char *text)
{
	if (text == NULL)
		return;
	pq_sendbyte(message, field);
	pq_sendstring(message, text);
}

void
baton_error_body(StringInfo message, const ErrorData *edata, const char *severity)
{
	error_field(message, PG_DIAG_SEVERITY, _(severity));
	error_field(message, PG_DIAG_SEVERITY_NONLOCALIZED, severity);
	error_field(message, PG_DIAG_SQLSTATE, unpack_sql_state(edata->sqlerrcode));
	error_field(message, PG_DIAG_MESSAGE_PRIMARY, edata->message);
	error_field(message, PG_DIAG_MESSAGE_DETAIL, edata->detail);
	error_field(message, PG_DIAG_MESSAGE_HINT, edata->hint);
	error_field(message, PG_DIAG_CONTEXT, edata->context);
	error_field(message, PG_DIAG_SOURCE_FILE, edata->filename);
	if (edata->lineno > 0)
		error_field(message, PG_DIAG_SOURCE_LINE, psprintf("%d", edata->lineno));
	error_field(message, PG_DIAG_SOURCE_FUNCTION, edata->funcname);
	pq_sendbyte(message, '\0');
}

void
baton_opening_notices_send(StringInfo sent)
{
	ListCell   *cell;

	foreach(cell, notices)
	{
		StringInfoData body;
		uint32		length;

		initStringInfo(&body);
		baton_error_body(&body, lfirst(cell), "WARNING");
		(void) pq_putmessage('N', body.data, body.len);
		length = pg_hton32(body.len + sizeof(length));
		appendStringInfoChar(sent, 'N');
		appendBinaryStringInfo(sent, (char *) &length, sizeof(length));
		appendBinaryStringInfo(sent, body.data, body.len);
		pfree(body.data);
	}
}
