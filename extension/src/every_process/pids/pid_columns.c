/*-------------------------------------------------------------------------
 *
 * pid_columns.c
 *		Functions whose result has a column of process IDs: progress of
 *		commands, replication slots, asynchronous I/O (18).
 *
 * Both fill a tuplestore (pgstatfuncs.c, slotfuncs.c, 15 to 18), whose rows are
 * gone through once more, and columns are found by name.
 *
 * A backend that reports progress is in a transaction, and so is one that uses
 * a replication slot, or else it is dedicated: the session in place a moment
 * later is the same, as a rule.  If not, the row is of what has just ended.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "backend_entry.h"
#include "later_functions.h"
#include "pid_functions.h"
#include "pid_rows.h"
#include "session_pid.h"

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
