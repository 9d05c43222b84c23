/*-------------------------------------------------------------------------
 *
 * pid_statistics.c
 *		Functions of later majors that take or give process IDs: statistics of
 *		a backend (18), subtransactions (16), asynchronous I/O (18).
 *
 * pg_stat_get_backend_io(), pg_stat_get_backend_wal() and
 * pg_stat_reset_backend_stats() mean a process's life.  Asked about a session,
 * they are about the backend that serves it, with all that it did for others
 * before; nobody's, where none does: as for a number that is not known.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"

#include "later_functions.h"
#include "pid_functions.h"
#include "session_pid.h"

/* No process has it. */
#define NO_PROCESS (-1)

static Datum
about_process(FunctionCallInfo fcinfo, PGFunction original)
{
	uint64		session = baton_pid_find(PG_GETARG_INT32(0));

	if (session != 0)
	{
		int			process = baton_pid_process(session);

		fcinfo->args[0].value = Int32GetDatum(process != 0 ? process : NO_PROCESS);
	}
	return original(fcinfo);
}

Datum
baton_sql_backend_io(PG_FUNCTION_ARGS)
{
	return about_process(fcinfo, pg_stat_get_backend_io);
}

Datum
baton_sql_backend_wal(PG_FUNCTION_ARGS)
{
	return about_process(fcinfo, pg_stat_get_backend_wal);
}

Datum
baton_sql_reset_backend_stats(PG_FUNCTION_ARGS)
{
	return about_process(fcinfo, pg_stat_reset_backend_stats);
}

/* A session that no backend serves has no transaction. */
Datum
baton_sql_backend_subxact(PG_FUNCTION_ARGS)
{
	TupleDesc	columns;
	Datum		values[2] = {Int32GetDatum(0), BoolGetDatum(false)};
	bool		nulls[2] = {false, false};

	if (!baton_number_is_idle(PG_GETARG_INT32(0)))
		return pg_stat_get_backend_subxact(fcinfo);
	columns = CreateTemplateTupleDesc(2);
	TupleDescInitEntry(columns, (AttrNumber) 1, "subxact_count", INT4OID, -1, 0);
	TupleDescInitEntry(columns, (AttrNumber) 2, "subxact_overflow", BOOLOID, -1, 0);
	BlessTupleDesc(columns);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(columns, values, nulls)));
}
