/*-------------------------------------------------------------------------
 *
 * pid_columns.c
 *		Columns of process IDs in other views: pg_locks, progress views,
 *		replication slots, statistics of a backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "later_functions.h"
#include "pg_process.h"
#include "pid_views.h"
#include "session_pid.h"

/* ----------------------------------------------------------------
 *		Functions with a column of process IDs in their result: progress of
 *		commands, replication slots, asynchronous I/O (18).
 *
 * All of them fill a tuplestore (pgstatfuncs.c, slotfuncs.c, 15 to 18).  Its
 * rows are read and changed afterwards; columns are found by name.
 *
 * A backend that reports progress is in a transaction.  A backend that uses a
 * replication slot is in a transaction or dedicated.  So the session in place
 * a moment later is usually the same.  If not, the row describes a command
 * that has just ended.
 */

int
baton_rows_column(TupleDesc columns, const char *name)
{
	for (int i = 0; i < columns->natts; i++)
		if (strcmp(NameStr(TupleDescAttr(columns, i)->attname), name) == 0)
			return i;
	return -1;
}

void
baton_rows_change(FunctionCallInfo fcinfo, BatonRowChange change, void *argument)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Tuplestorestate *old = result->setResult;
	TupleDesc	columns = result->setDesc;
	TupleTableSlot *slot = MakeSingleTupleTableSlot(columns, &TTSOpsMinimalTuple);
	MemoryContext caller;
	MemoryContext row_context;
	Datum	   *values = palloc(sizeof(Datum) * columns->natts);
	bool	   *nulls = palloc(sizeof(bool) * columns->natts);

	/* as InitMaterializedSRF (funcapi.c) */
	caller = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	result->setResult = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0,
											  false, work_mem);
	MemoryContextSwitchTo(caller);

	row_context = AllocSetContextCreate(caller, "pg_baton row", ALLOCSET_DEFAULT_SIZES);
	for (int n = 0; tuplestore_gettupleslot(old, true, false, slot); n++)
	{
		bool		stays;

		slot_getallattrs(slot);
		memcpy(values, slot->tts_values, sizeof(Datum) * columns->natts);
		memcpy(nulls, slot->tts_isnull, sizeof(bool) * columns->natts);
		MemoryContextSwitchTo(row_context);
		stays = change(columns, n, values, nulls, argument);
		if (stays)
			tuplestore_putvalues(result->setResult, columns, values, nulls);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(row_context);
	}
	ExecDropSingleTupleTableSlot(slot);
	tuplestore_end(old);
	MemoryContextDelete(row_context);
}

static int
pid_of_process(const BatonServing *serving, int process)
{
	int			pid = baton_serving_pid(serving, process);

	return pid != 0 ? pid : process;
}

typedef struct ColumnChange
{
	const char *column;
	const BatonServing *serving;
} ColumnChange;

static bool
change_column(TupleDesc columns, int n, Datum *values, bool *nulls, void *argument)
{
	const ColumnChange *change = argument;
	int			at = baton_rows_column(columns, change->column);

	if (at >= 0 && !nulls[at])
		values[at] = Int32GetDatum(pid_of_process(change->serving, DatumGetInt32(values[at])));
	return true;
}

static Datum
with_column_changed(FunctionCallInfo fcinfo, PGFunction original, const char *column)
{
	ColumnChange change = {.column = column};
	Datum		result = original(fcinfo);

	change.serving = baton_serving_read();
	baton_rows_change(fcinfo, change_column, &change);
	return result;
}

Datum
baton_sql_progress(PG_FUNCTION_ARGS)
{
	return with_column_changed(fcinfo, pg_stat_get_progress_info, "pid");
}

Datum
baton_sql_aios(PG_FUNCTION_ARGS)
{
	return with_column_changed(fcinfo, pg_get_aios, "pid");
}

Datum
baton_sql_replication_slots(PG_FUNCTION_ARGS)
{
	return with_column_changed(fcinfo, pg_get_replication_slots, "active_pid");
}

/* ----------------------------------------------------------------
 *		pg_lock_status(), beneath pg_locks, and the functions that name
 *		blocking sessions.
 *
 * pg_lock_status() gives with each lock the local transaction ID of the
 * process that holds or awaits it, both from one look at the process
 * (GetLockStatusData, lock.c, GetPredicateLockStatusData, predicate.c).  The
 * ID identifies the session, though its backend may serve another by now
 * (session_pid.c).  A lock without such an ID belongs to a session between
 * two of its transactions, which keeps its backend meanwhile.
 *
 * The functions that name blocking processes give no such ID.  A blocked
 * session stays on its backend, and so does the session that blocks it.  If
 * one of the backends concerned switched to another session between the reads
 * before and after the server's function, something has changed, and the
 * function is called again.
 */

/* In each repetition something must have changed in between. */
#define MOST_LOOKS 20

/*
 * The ID of no process, and of no holder of a lock (0: a prepared
 * transaction).
 */
#define NO_PROCESS (-1)

/* --------------------------------
 *		pg_lock_status()
 * --------------------------------
 */

/*
 * The second part of a virtual transaction ID's text (VXIDGetDatum,
 * lockfuncs.c).
 */
static uint32
local_transaction(Datum virtual_transaction)
{
	char	   *whole = TextDatumGetCString(virtual_transaction);
	char	   *slash = strchr(whole, '/');

	return slash != NULL ? (uint32) strtoul(slash + 1, NULL, 10) : 0;
}

Datum
baton_sql_lock_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	const BatonServing *serving = NULL;
	TupleDesc	columns;
	Datum	   *values;
	bool	   *nulls;
	int			pid_at;
	int			transaction_at;

	InitMaterializedSRF(fcinfo, 0);
	columns = result->setDesc;
	values = palloc(sizeof(Datum) * columns->natts);
	nulls = palloc(sizeof(bool) * columns->natts);
	pid_at = baton_rows_column(columns, "pid");
	transaction_at = baton_rows_column(columns, "virtualtransaction");

	/* the server's function returns one row per call */
	for (;;)
	{
		HeapTupleData row;
		Datum		value = pg_lock_status(fcinfo);
		int			process;
		int			pid;

		if (result->isDone == ExprEndResult)
			break;

		/* its first call has read all locks */
		if (serving == NULL)
			serving = baton_serving_read();
		row.t_data = DatumGetHeapTupleHeader(value);
		row.t_len = HeapTupleHeaderGetDatumLength(row.t_data);
		ItemPointerSetInvalid(&row.t_self);
		row.t_tableOid = InvalidOid;
		heap_deform_tuple(&row, columns, values, nulls);
		if (pid_at >= 0 && transaction_at >= 0 && !nulls[pid_at] && !nulls[transaction_at])
		{
			process = DatumGetInt32(values[pid_at]);
			pid = baton_serving_pid_at(serving, process,
									   local_transaction(values[transaction_at]));
			values[pid_at] = Int32GetDatum(pid != 0 ? pid : process);
		}
		tuplestore_putvalues(result->setResult, columns, values, nulls);
		CHECK_FOR_INTERRUPTS();
	}
	result->isDone = ExprSingleResult;
	fcinfo->isnull = true;
	return (Datum) 0;
}

/* --------------------------------
 *		blocking sessions
 */

/* The elements of an array of process IDs without NULLs. */
static int32 *
elements(ArrayType *array)
{
	return (int32 *) ((char *) array + ARR_OVERHEAD_NONULLS(ARR_NDIM(array)));
}

/* The process to ask about; for a session, the process that serves it. */
static int
process_of(int pid)
{
	uint64		session = baton_pid_find(pid);
	int			process = session != 0 ? baton_pid_process(session) : pid;

	return process != 0 ? process : NO_PROCESS;
}

/*
 * Replaces each process in the array by the process ID that SQL shows.
 * Returns false if a backend switched sessions between the two reads.
 */
static bool
name_blockers(ArrayType *blockers, const BatonServing *before, const BatonServing *after)
{
	int			count = ArrayGetNItems(ARR_NDIM(blockers), ARR_DIMS(blockers));
	int32	   *pids = elements(blockers);
	bool		known = true;

	for (int i = 0; i < count; i++)
	{
		int			pid;

		if (!baton_serving_same(before, after, pids[i]))
			known = false;
		pid = baton_serving_pid(after, pids[i]);
		if (pid != 0)
			pids[i] = pid;
	}
	return known;
}

static Datum
blocking(FunctionCallInfo fcinfo, PGFunction original)
{
	int			pid = PG_GETARG_INT32(0);

	for (int i = 0;; i++)
	{
		BatonServing *before = baton_serving_read();
		int			process = process_of(pid);
		ArrayType  *blockers;
		BatonServing *after;

		if (process == NO_PROCESS)
			PG_RETURN_ARRAYTYPE_P(construct_empty_array(INT4OID));
		blockers = DatumGetArrayTypeP(DirectFunctionCall1(original, Int32GetDatum(process)));
		after = baton_serving_read();
		if ((name_blockers(blockers, before, after) &&
			 baton_serving_same(before, after, process)) || i >= MOST_LOOKS)
			PG_RETURN_ARRAYTYPE_P(blockers);
		CHECK_FOR_INTERRUPTS();
	}
}

Datum
baton_sql_blocking_pids(PG_FUNCTION_ARGS)
{
	return blocking(fcinfo, pg_blocking_pids);
}

Datum
baton_sql_safe_snapshot_blocking_pids(PG_FUNCTION_ARGS)
{
	return blocking(fcinfo, pg_safe_snapshot_blocking_pids);
}

Datum
baton_sql_isolation_is_blocked(PG_FUNCTION_ARGS)
{
	ArrayType  *pids = PG_GETARG_ARRAYTYPE_P(1);
	ArrayType  *processes = DatumGetArrayTypePCopy(PG_GETARG_DATUM(1));
	int			count = ArrayGetNItems(ARR_NDIM(pids), ARR_DIMS(pids));

	if (array_contains_nulls(pids))
		return pg_isolation_test_session_is_blocked(fcinfo);
	for (int i = 0;; i++)
	{
		BatonServing *before = baton_serving_read();
		int			process = process_of(PG_GETARG_INT32(0));
		Datum		is_blocked;

		if (process == NO_PROCESS)
			PG_RETURN_BOOL(false);
		for (int j = 0; j < count; j++)
			elements(processes)[j] = process_of(elements(pids)[j]);
		is_blocked = DirectFunctionCall2(pg_isolation_test_session_is_blocked,
										 Int32GetDatum(process),
										 PointerGetDatum(processes));
		if (baton_serving_same(before, baton_serving_read(), process) || i >= MOST_LOOKS)
			return is_blocked;
		CHECK_FOR_INTERRUPTS();
	}
}

/* ----------------------------------------------------------------
 *		Functions of later majors that take or give process IDs: statistics of
 *		a backend (18), subtransactions (16), asynchronous I/O (18).
 *
 * pg_stat_get_backend_io(), pg_stat_get_backend_wal() and
 * pg_stat_reset_backend_stats() cover the life of a process.  For a session
 * they cover the backend that serves it, including what that backend did for
 * other sessions before.  If no backend serves the session, they return what
 * they return for an unknown number.
 */

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
