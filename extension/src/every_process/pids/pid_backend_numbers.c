/*-------------------------------------------------------------------------
 *
 * pid_backend_numbers.c
 *		pg_stat_get_backend_idset() and the functions that take its numbers.
 *
 * They show what pg_stat_activity shows, one column each.  The server's numbers
 * (backend_entry.c) go to the server's functions; a session that no backend
 * serves has a number beyond all of them, which is its slot's for as long as it
 * lives.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "backend_entry.h"
#include "pid_functions.h"
#include "pid_idle.h"
#include "session_pid.h"

/* More than there can be backends (MAX_BACKENDS, 2^18 - 1 at most). */
#define FIRST_IDLE (1 << 20)

/*
 * The session that a number stands for, if none of the server's functions
 * knows it.
 */
static BatonIdleSession *
idle_session(int number)
{
	BatonIdleSession *idle;

	if (BatonControlMemory == NULL || number < FIRST_IDLE ||
		(uint32) (number - FIRST_IDLE) >= baton_identities_used())
		return NULL;
	idle = baton_idle_begin();
	return baton_idle_read(number - FIRST_IDLE, idle) ? idle : NULL;
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

static int
compare_pids(const void *one, const void *other)
{
	int			a = *(const int *) one;
	int			b = *(const int *) other;

	return (a > b) - (a < b);
}

/* As pg_stat_activity has its rows (pid_activity.c). */
static IdSet *
collect(void)
{
	int			backends = pgstat_fetch_stat_numbackends();
	uint32		used = baton_identities_used();
	IdSet	   *set = palloc(offsetof(IdSet, numbers) + sizeof(int) * (backends + used));
	int		   *shown = palloc(sizeof(int) * (backends + 1));
	int			shown_count = 0;
	BatonIdleSession *idle = baton_idle_begin();

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
		if (baton_idle_read(index, idle) &&
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
	if (!idle->is_permitted || !baton_idle_has_address(idle))
		PG_RETURN_NULL();
	return baton_idle_address(idle);
}

Datum
baton_sql_backend_client_port(PG_FUNCTION_ARGS)
{
	BatonIdleSession *idle = idle_session(PG_GETARG_INT32(0));

	if (idle == NULL)
		return pg_stat_get_backend_client_port(fcinfo);
	if (!idle->is_permitted)
		PG_RETURN_NULL();
	PG_RETURN_INT32(baton_idle_port(idle));
}
