/*-------------------------------------------------------------------------
 *
 * pid_views.c
 *		pg_stat_activity and related views: each session of the pool once,
 *		with or without a backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inet.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "majors.h"
#include "pg_process.h"
#include "pid_views.h"
#include "session_pid.h"

/* ----------------------------------------------------------------
 *		What pg_stat_ssl and pg_stat_gssapi show of a session.
 *
 * A backend writes its connection's TLS into its entry when it starts
 * (pgstat_bestart, backend_status.c), and a pooled backend has none.  The
 * dispatcher speaks TLS with the client, and stores its properties in the
 * session's BatonIdentity.  There it also stores what a backend has reported
 * about a client that was authenticated by GSSAPI.  The columns are found by
 * name: 15 to 18 have the same.
 *
 * Texts are UTF-8 (X509_NAME_to_cstring in be-secure-openssl.c converts first
 * and truncates afterwards; this code truncates first).
 */

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

/*
 * Puts the session's TLS into a row of pg_stat_get_activity().  The row shows
 * a session without TLS, or NULL in all columns if its reader may not see
 * them.
 */
static void
tls_show(TupleDesc columns, const BatonTls *tls, Datum *values, bool *nulls)
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

/*
 * Likewise puts the session's GSSAPI properties into the row.
 *
 * Encryption and delegation make a session native, so neither is shown here.
 */
static void
gss_show(TupleDesc columns, const BatonIdentity *identity, Datum *values, bool *nulls)
{
	int			authenticated = baton_rows_column(columns, "gss_auth");

	if (identity->gss_authenticated == 0 || authenticated < 0 || nulls[authenticated])
		return;
	values[authenticated] = BoolGetDatum(true);
	put(columns, values, nulls, "gss_princ", false, baton_tls_text(identity->gss_principal));
}

/* ----------------------------------------------------------------
 *		What the views show of a session that no backend serves.
 *
 * Permissions are those for backends (HAS_PGSTAT_PERMISSIONS, pgstatfuncs.c).
 */

int			baton_show_idle_sessions;

/*
 * pg_baton.show_idle_sessions: lists leave such a session out that has nothing
 * to do, but not what asks for it by its number.  auto: they do for a login
 * that may watch sessions and end none, as the roles of agents.  The session's
 * user counts, since agents read pg_stat_activity by functions of superusers.
 */
static bool
is_listed(const BatonIdleSession *idle)
{
	Oid			user = GetSessionUserId();

	if (baton_show_idle_sessions == BATON_SHOW_AUTO)
		return idle->is_waiting ||
			!has_privs_of_role(user, ROLE_PG_MONITOR) ||
			has_privs_of_role(user, ROLE_PG_SIGNAL_BACKEND);
	return baton_show_idle_sessions == BATON_SHOW_ON || idle->is_waiting;
}

/* palloc'd; idle_read() may fill it repeatedly. */
static BatonIdleSession *
idle_begin(void)
{
	BatonIdleSession *idle = palloc0(sizeof(BatonIdleSession));

	idle->buffer = palloc(BatonControlMade.query_size);
	return idle;
}

static bool
is_permitted(BatonIdleSession *idle, Oid role)
{
	if (idle->asked_role != role)
	{
		idle->asked_role = role;
		idle->asked_answer = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), role);
	}
	return idle->asked_answer;
}

/* Reads the session in that slot; false if the slot is free. */
static bool
idle_read(uint32 index, BatonIdleSession *idle)
{
	const BatonSessionSlot *slot;
	uint32		state;

	if (!baton_identity_read_slot(index, &idle->identity, idle->buffer))
		return false;
	slot = baton_session_slot_at(index);
	state = pg_atomic_read_u32(baton_atomic_u32(unconstify(BatonSessionSlot *, slot)->state));
	idle->is_permitted = is_permitted(idle, idle->identity.role_oid);
	idle->is_waiting = state == BATON_STATE_WAITING;
	idle->state = state == BATON_STATE_LOGIN ? NULL :
		!idle->identity.is_tracked ? "disabled" : idle->is_waiting ? "active" : "idle";
	idle->wait_event_type = idle->is_waiting ? "Extension" : "Client";
	idle->wait_event = idle->is_waiting ? "Extension" : "ClientRead";
	idle->query_start = idle->identity.query_start_us;
	idle->state_change = idle->identity.idle_since_us;
	idle->query = idle->buffer;
	if (idle->identity.query_start_us == 0)
		idle->buffer[0] = '\0';
	if (!idle->is_permitted)
		idle->query = "<insufficient privilege>";
	else if (idle->is_waiting)
	{
		idle->query = "<waiting for a backend>";
		idle->query_start = idle->state_change;
	}
	else if (idle->buffer[0] != '\0')
	{
		/* the text may have been cut in the middle of a character */
		char	   *clipped = pgstat_clip_activity(idle->buffer);

		strlcpy(idle->buffer, clipped, BatonControlMade.query_size);
		pfree(clipped);
	}
	return true;
}

static bool
idle_has_address(const BatonIdleSession *idle)
{
	return idle->identity.peer_family == AF_INET || idle->identity.peer_family == AF_INET6;
}

/* inet */
static Datum
idle_address(const BatonIdleSession *idle)
{
	inet	   *address = palloc0(sizeof(inet));
	bool		is_ipv4 = idle->identity.peer_family == AF_INET;

	ip_family(address) = is_ipv4 ? PGSQL_AF_INET : PGSQL_AF_INET6;
	ip_bits(address) = ip_maxbits(address);
	memcpy(ip_addr(address), idle->identity.peer_address, ip_addrsize(address));
	SET_INET_VARSIZE(address);
	return InetPGetDatum(address);
}

static int
idle_port(const BatonIdleSession *idle)
{
	return idle_has_address(idle) ? idle->identity.peer_port : -1;
}

/* ----------------------------------------------------------------
 *		pg_stat_get_activity(), beneath pg_stat_activity, pg_stat_ssl and
 *		pg_stat_gssapi: each session of the pool once, whatever its owner.
 *
 * The server's function gives a row for each backend, from the transaction's
 * copy of the backends' entries, in the order of that copy (pgstatfuncs.c, 15
 * to 18).  A pooled backend's entry names its session; its row becomes that
 * session's, or is left out if no session is in place.  Every other live
 * session is shown from its BatonIdentity in CONTROL, without asking or
 * delaying any process.
 *
 * A session that moves from one backend to another while the entries are
 * copied may be in two of them: the first is shown.  A session that moved to
 * a backend after that backend's entry had been copied is shown in its
 * earlier state, idle.
 *
 * A session that waits for a backend has sent a query, which is still in its
 * socket: it is active, and its query is not known yet.
 */

typedef struct ActivityRows
{
	int			wanted;			/* a process ID; 0: all */
	int		   *shown;			/* sessions that already have a row */
	int			shown_count;
} ActivityRows;

static int
compare_pids(const void *one, const void *other)
{
	int			a = *(const int *) one;
	int			b = *(const int *) other;

	return (a > b) - (a < b);
}

/*
 * The session that a backend served according to the transaction's copy, or
 * the process itself.
 */
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
		tls_show(columns, &identity.tls, values, nulls);
		gss_show(columns, &identity, values, nulls);
	}
	return rows->wanted == 0 || rows->wanted == process || rows->wanted == session;
}

/* What a column shows of a session that no backend serves. */
typedef enum IdleColumn
{
	IDLE_NOTHING,
	IDLE_FALSE,					/* TLS, GSSAPI: tls_show(), gss_show() */
	IDLE_DATABASE,
	IDLE_PID,
	IDLE_ROLE,
	IDLE_APPLICATION_NAME,
	IDLE_QUERY,
	IDLE_FOR_ALL = IDLE_QUERY,	/* the columns up to here need no permission */
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
			*null = !idle_has_address(idle);
			return *null ? (Datum) 0 : idle_address(idle);
		case IDLE_CLIENT_PORT:
			return Int32GetDatum(idle_port(idle));
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
	BatonIdleSession *idle = idle_begin();
	uint32		used = baton_identities_used();

	for (int i = 0; i < columns->natts; i++)
		shown[i] = idle_column(columns, i);

	qsort(rows->shown, rows->shown_count, sizeof(int), compare_pids);
	for (uint32 index = 0; index < used; index++)
	{
		if (!idle_read(index, idle) ||
			(rows->wanted != 0 ? rows->wanted != idle->identity.pid : !is_listed(idle)) ||
			bsearch(&idle->identity.pid, rows->shown, rows->shown_count,
					sizeof(int), compare_pids) != NULL)
			continue;
		MemoryContextSwitchTo(row_context);
		for (int i = 0; i < columns->natts; i++)
			values[i] = idle_value(idle, shown[i], &nulls[i]);
		tls_show(columns, &idle->identity.tls, values, nulls);
		gss_show(columns, &idle->identity, values, nulls);
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

	/*
	 * as in the server's function: a number that does not exist finds nothing
	 */
	if (!PG_ARGISNULL(0) && rows.wanted == 0)
		return pg_stat_get_activity(fcinfo);
	fcinfo->args[0].isnull = true;
	result = pg_stat_get_activity(fcinfo);
	rows.shown = palloc(sizeof(int) * (pgstat_fetch_stat_numbackends() + 1));
	baton_rows_change(fcinfo, change_row, &rows);
	add_idle((ReturnSetInfo *) fcinfo->resultinfo, &rows);
	return result;
}

/* ----------------------------------------------------------------
 *		pg_stat_get_backend_idset() and the functions that take its numbers.
 *
 * They show what pg_stat_activity shows, one column each.  The server's
 * numbers (pg_process.c) are passed to the server's functions.  A session
 * that no backend serves has a number beyond all of them, which belongs to
 * its slot for as long as the session lives.
 */

/* Greater than any number of backends (MAX_BACKENDS, 2^18 - 1 at most). */
#define FIRST_IDLE (1 << 20)

/*
 * The session of a number that the server's functions do not know, or NULL.
 */
static BatonIdleSession *
idle_session(int number)
{
	BatonIdleSession *idle;

	if (BatonControlMemory == NULL || number < FIRST_IDLE ||
		(uint32) (number - FIRST_IDLE) >= baton_identities_used())
		return NULL;
	idle = idle_begin();
	return idle_read(number - FIRST_IDLE, idle) ? idle : NULL;
}

bool
baton_number_is_idle(int number)
{
	return idle_session(number) != NULL;
}

typedef struct IdSet
{
	int			count;
	int			next;
	int			numbers[FLEXIBLE_ARRAY_MEMBER];
} IdSet;

/* The same sessions and processes as in pg_stat_activity. */
static IdSet *
collect(void)
{
	int			backends = pgstat_fetch_stat_numbackends();
	uint32		used = baton_identities_used();
	IdSet	   *set = palloc(offsetof(IdSet, numbers) + sizeof(int) * (backends + used));
	int		   *shown = palloc(sizeof(int) * (backends + 1));
	int			shown_count = 0;
	BatonIdleSession *idle = idle_begin();

	set->count = set->next = 0;
	for (int i = 0; i < backends; i++)
	{
		LocalPgBackendStatus *entry = baton_entry_local(i);
		bool		again = false;
		int			pid;

		if (entry != NULL && baton_entry_session(&entry->backendStatus, &pid))
		{
			for (int j = 0; j < shown_count; j++)
				again = again || shown[j] == pid;
			if (pid == 0 || again)
				continue;
			shown[shown_count++] = pid;
		}
		set->numbers[set->count++] = baton_entry_id(i);
	}
	qsort(shown, shown_count, sizeof(int), compare_pids);
	for (uint32 index = 0; index < used; index++)
		if (idle_read(index, idle) && is_listed(idle) &&
			bsearch(&idle->identity.pid, shown, shown_count, sizeof(int), compare_pids) == NULL)
			set->numbers[set->count++] = FIRST_IDLE + index;
	return set;
}

Datum
baton_sql_backend_idset(PG_FUNCTION_ARGS)
{
	FuncCallContext *calls;
	IdSet	   *set;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext caller;

		calls = SRF_FIRSTCALL_INIT();
		caller = MemoryContextSwitchTo(calls->multi_call_memory_ctx);
		calls->user_fctx = collect();
		MemoryContextSwitchTo(caller);
	}
	calls = SRF_PERCALL_SETUP();
	set = calls->user_fctx;
	if (set->next < set->count)
		SRF_RETURN_NEXT(calls, Int32GetDatum(set->numbers[set->next++]));
	SRF_RETURN_DONE(calls);
}

Datum
baton_sql_backend_pid(PG_FUNCTION_ARGS)
{
	int			number = PG_GETARG_INT32(0);
	BatonIdleSession *idle = idle_session(number);
	PgBackendStatus *entry;
	int			pid;

	if (idle != NULL)
		PG_RETURN_INT32(idle->identity.pid);
	entry = baton_entry_by_id(number);
	if (entry != NULL && baton_entry_session(entry, &pid) && pid != 0)
		PG_RETURN_INT32(pid);
	return pg_stat_get_backend_pid(fcinfo);
}

Datum
baton_sql_backend_dbid(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_dbid(fcinfo);
	PG_RETURN_OID(idle->identity.database_oid);
}

Datum
baton_sql_backend_userid(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_userid(fcinfo);
	PG_RETURN_OID(idle->identity.role_oid);
}

Datum
baton_sql_backend_activity(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_activity(fcinfo);
	PG_RETURN_TEXT_P(cstring_to_text(idle->query));
}

Datum
baton_sql_backend_wait_event_type(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_wait_event_type(fcinfo);
	PG_RETURN_TEXT_P(cstring_to_text(idle->is_permitted ? idle->wait_event_type : idle->query));
}

Datum
baton_sql_backend_wait_event(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_wait_event(fcinfo);
	PG_RETURN_TEXT_P(cstring_to_text(idle->is_permitted ? idle->wait_event : idle->query));
}

Datum
baton_sql_backend_activity_start(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_activity_start(fcinfo);
	if (!idle->is_permitted || idle->query_start == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(idle->query_start);
}

Datum
baton_sql_backend_xact_start(PG_FUNCTION_ARGS)
{
	if (idle_session(PG_GETARG_INT32(0)) == NULL)
		return pg_stat_get_backend_xact_start(fcinfo);
	PG_RETURN_NULL();
}

Datum
baton_sql_backend_start(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_start(fcinfo);
	if (!idle->is_permitted)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(idle->identity.login_time_us);
}

Datum
baton_sql_backend_client_addr(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_client_addr(fcinfo);
	if (!idle->is_permitted || !idle_has_address(idle))
		PG_RETURN_NULL();
	return idle_address(idle);
}

Datum
baton_sql_backend_client_port(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_client_port(fcinfo);
	if (!idle->is_permitted)
		PG_RETURN_NULL();
	PG_RETURN_INT32(idle_port(idle));
}
