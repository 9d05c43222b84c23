/*-------------------------------------------------------------------------
 *
 * pid_activity.c
 *		pg_stat_get_activity(), beneath pg_stat_activity, pg_stat_ssl and
 *		pg_stat_gssapi: each session of the pool once, whoever has it.
 *
 * The server's function gives a row a backend, from the transaction's copy of
 * the backends' entries, in the order of that copy (pgstatfuncs.c, 15 to 18).
 * A pooled backend's entry says whose it is; its row becomes that session's, or
 * is left out if it is nobody's.  Every other session that lives is shown from
 * what CONTROL has of it (BatonIdentity); nobody is asked for that, and nobody
 * held up.
 *
 * A session that goes from one backend to another while the entries are copied
 * may be in two of them: the first is shown.  One that went to a backend after
 * that backend's entry had been copied is shown as it was before, idle.
 *
 * A session that waits for a backend has asked something, which is still in its
 * socket: it is active, and what it has asked is not known yet.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "backend_entry.h"
#include "pid_functions.h"
#include "pid_idle.h"
#include "pid_rows.h"
#include "pid_tls.h"
#include "session_pid.h"

typedef struct ActivityRows
{
	int			wanted;			/* a process ID, 0: all */
	int		   *shown;			/* sessions that have their row */
	int			shown_count;
} ActivityRows;

static int
compare_pids(const void *one, const void *other)
{
	int			a = *(const int *) one;
	int			b = *(const int *) other;

	return (a > b) - (a < b);
}

/* The session that a backend's entry of the transaction's copy was for. */
static int
leader_in_copy(int process)
{
	int			count = pgstat_fetch_stat_numbackends();
	int			pid;

	for (int i = 0; i < count; i++)
	{
		LocalPgBackendStatus *entry = baton_entry_local(i);

		if (entry != NULL && entry->backendStatus.st_procpid == process)
			return baton_entry_session(&entry->backendStatus, &pid) && pid != 0 ? pid : process;
	}
	return process;
}

static bool
change_row(TupleDesc columns, int n, Datum *values, bool *nulls, void *argument)
{
	ActivityRows *rows = argument;
	int			pid_at = baton_rows_column(columns, "pid");
	int			leader_at = baton_rows_column(columns, "leader_pid");
	LocalPgBackendStatus *entry = baton_entry_local(n);
	BatonIdentity identity;
	int			process;
	int			session;

	if (pid_at < 0 || nulls[pid_at] || entry == NULL)
		return rows->wanted == 0;
	process = DatumGetInt32(values[pid_at]);
	if (entry->backendStatus.st_procpid != process)
		elog(ERROR, "row %d of pg_stat_get_activity() is of another process than expected", n);

	if (leader_at >= 0 && !nulls[leader_at])
		values[leader_at] = Int32GetDatum(leader_in_copy(DatumGetInt32(values[leader_at])));
	if (!baton_entry_session(&entry->backendStatus, &session))
		return rows->wanted == 0 || rows->wanted == process;
	if (session == 0)
		return rows->wanted == process;
	for (int i = 0; i < rows->shown_count; i++)
		if (rows->shown[i] == session)
			return false;
	rows->shown[rows->shown_count++] = session;
	values[pid_at] = Int32GetDatum(session);
	if (baton_identity_read(baton_pid_find(session), &identity))
	{
		baton_tls_show(columns, &identity.tls, values, nulls);
		baton_gss_show(columns, &identity, values, nulls);
	}
	return rows->wanted == 0 || rows->wanted == process || rows->wanted == session;
}

/* What a column shows of a session that no backend has. */
typedef enum IdleColumn
{
	IDLE_NOTHING,
	IDLE_FALSE,					/* TLS, GSSAPI: see pid_tls.c */
	IDLE_DATABASE,
	IDLE_PID,
	IDLE_ROLE,
	IDLE_APPLICATION_NAME,
	IDLE_QUERY,
	IDLE_FOR_ALL = IDLE_QUERY,	/* who may see nothing else sees these */
	IDLE_STATE,
	IDLE_WAIT_EVENT_TYPE,
	IDLE_WAIT_EVENT,
	IDLE_QUERY_START,
	IDLE_BACKEND_START,
	IDLE_STATE_CHANGE,
	IDLE_CLIENT_ADDRESS,
	IDLE_CLIENT_PORT,
	IDLE_BACKEND_TYPE,
	IDLE_QUERY_ID
} IdleColumn;

static const struct
{
	const char *name;
	IdleColumn	column;
}			idle_columns[] =

{
	{"datid", IDLE_DATABASE},
	{"pid", IDLE_PID},
	{"usesysid", IDLE_ROLE},
	{"application_name", IDLE_APPLICATION_NAME},
	{"query", IDLE_QUERY},
	{"state", IDLE_STATE},
	{"wait_event_type", IDLE_WAIT_EVENT_TYPE},
	{"wait_event", IDLE_WAIT_EVENT},
	{"query_start", IDLE_QUERY_START},
	{"backend_start", IDLE_BACKEND_START},
	{"state_change", IDLE_STATE_CHANGE},
	{"client_addr", IDLE_CLIENT_ADDRESS},
	{"client_port", IDLE_CLIENT_PORT},
	{"backend_type", IDLE_BACKEND_TYPE},
	{"query_id", IDLE_QUERY_ID}
};

static IdleColumn
idle_column(TupleDesc columns, int at)
{
	for (int i = 0; i < (int) lengthof(idle_columns); i++)
		if (strcmp(NameStr(TupleDescAttr(columns, at)->attname), idle_columns[i].name) == 0)
			return idle_columns[i].column;
	return TupleDescAttr(columns, at)->atttypid == BOOLOID ? IDLE_FALSE : IDLE_NOTHING;
}

static Datum
timestamp_or_null(TimestampTz timestamp, bool *null)
{
	*null = timestamp == 0;
	return TimestampTzGetDatum(timestamp);
}

static Datum
text_or_null(const char *string, bool *null)
{
	*null = string == NULL;
	return string != NULL ? CStringGetTextDatum(string) : (Datum) 0;
}

static Datum
idle_value(const BatonIdleSession *idle, IdleColumn column, bool *null)
{
	*null = column == IDLE_NOTHING ||
		(!idle->is_permitted && (column > IDLE_FOR_ALL || column == IDLE_FALSE));
	if (*null)
		return (Datum) 0;
	switch (column)
	{
		case IDLE_NOTHING:
			break;
		case IDLE_FALSE:
			return BoolGetDatum(false);
		case IDLE_DATABASE:
			return ObjectIdGetDatum(idle->identity.database_oid);
		case IDLE_PID:
			return Int32GetDatum(idle->identity.pid);
		case IDLE_ROLE:
			return ObjectIdGetDatum(idle->identity.role_oid);
		case IDLE_APPLICATION_NAME:
			return CStringGetTextDatum((const char *) idle->identity.application_name);
		case IDLE_QUERY:
			return CStringGetTextDatum(idle->query);
		case IDLE_STATE:
			return text_or_null(idle->state, null);
		case IDLE_WAIT_EVENT_TYPE:
			return CStringGetTextDatum(idle->wait_event_type);
		case IDLE_WAIT_EVENT:
			return CStringGetTextDatum(idle->wait_event);
		case IDLE_QUERY_START:
			return timestamp_or_null(idle->query_start, null);
		case IDLE_BACKEND_START:
			return timestamp_or_null(idle->identity.login_time_us, null);
		case IDLE_STATE_CHANGE:
			return timestamp_or_null(idle->state_change, null);
		case IDLE_CLIENT_ADDRESS:
			*null = !baton_idle_has_address(idle);
			return *null ? (Datum) 0 : baton_idle_address(idle);
		case IDLE_CLIENT_PORT:
			return Int32GetDatum(baton_idle_port(idle));
		case IDLE_BACKEND_TYPE:
			return CStringGetTextDatum("client backend");
		case IDLE_QUERY_ID:
			*null = idle->identity.query_id == 0 || idle->is_waiting;
			return UInt64GetDatum(idle->identity.query_id);
	}
	return (Datum) 0;
}

static void
add_idle(ReturnSetInfo *result, ActivityRows *rows)
{
	TupleDesc	columns = result->setDesc;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext row_context = AllocSetContextCreate(caller, "pg_baton row",
													  ALLOCSET_DEFAULT_SIZES);
	Datum	   *values = palloc(sizeof(Datum) * columns->natts);
	bool	   *nulls = palloc(sizeof(bool) * columns->natts);
	IdleColumn *shown = palloc(sizeof(IdleColumn) * columns->natts);
	BatonIdleSession *idle = baton_idle_begin();
	uint32		used = baton_identities_used();

	for (int i = 0; i < columns->natts; i++)
		shown[i] = idle_column(columns, i);

	qsort(rows->shown, rows->shown_count, sizeof(int), compare_pids);
	for (uint32 index = 0; index < used; index++)
	{
		if (!baton_idle_read(index, idle) ||
			(rows->wanted != 0 && rows->wanted != idle->identity.pid) ||
			bsearch(&idle->identity.pid, rows->shown, rows->shown_count,
					sizeof(int), compare_pids) != NULL)
			continue;
		MemoryContextSwitchTo(row_context);
		for (int i = 0; i < columns->natts; i++)
			values[i] = idle_value(idle, shown[i], &nulls[i]);
		baton_tls_show(columns, &idle->identity.tls, values, nulls);
		baton_gss_show(columns, &idle->identity, values, nulls);
		tuplestore_putvalues(result->setResult, columns, values, nulls);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextDelete(row_context);
}

Datum
baton_sql_activity(PG_FUNCTION_ARGS)
{
	ActivityRows rows = {.wanted = PG_ARGISNULL(0) ? 0 : PG_GETARG_INT32(0)};
	Datum		result;

	/* as the server's own: whoever asks for another's finds nothing */
	if (!PG_ARGISNULL(0) && rows.wanted == 0)
		return pg_stat_get_activity(fcinfo);
	fcinfo->args[0].isnull = true;
	result = pg_stat_get_activity(fcinfo);
	rows.shown = palloc(sizeof(int) * (pgstat_fetch_stat_numbackends() + 1));
	baton_rows_change(fcinfo, change_row, &rows);
	add_idle((ReturnSetInfo *) fcinfo->resultinfo, &rows);
	return result;
}
