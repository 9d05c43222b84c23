/*-------------------------------------------------------------------------
 *
 * pid_locks.c
 *		pg_lock_status(), beneath pg_locks, and who blocks whom.
 *
 * pg_lock_status() gives with each lock the local transaction ID of who holds
 * or awaits it, both from one look at the process (GetLockStatusData, lock.c,
 * GetPredicateLockStatusData, predicate.c): that says which session it was,
 * though its backend may serve another by now (session_pid.c).  A lock without
 * one is a session's between two of its transactions, which has its backend to
 * itself meanwhile.
 *
 * Who blocks whom comes without.  Who is blocked stays where it is, and so does
 * who blocks it; if one of the backends concerned has gone on to another
 * session between before and after the server's function has looked, it is
 * asked once more, for then something has changed.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/tuplestore.h"

#include "pid_functions.h"
#include "pid_rows.h"
#include "session_pid.h"

/* Each time round something must have changed in between. */
#define MOST_LOOKS 20

/* No process has it, and nobody who holds a lock (0: a prepared transaction). */
#define NO_PROCESS (-1)

/* --------------------------------
 *		pg_lock_status()
 * --------------------------------
 */

/* The second half of a virtual transaction ID's text (VXIDGetDatum, lockfuncs.c). */
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

	/* the server's function gives a row a call */
	for (;;)
	{
		HeapTupleData row;
		Datum		value = pg_lock_status(fcinfo);
		int			process;
		int			pid;

		if (result->isDone == ExprEndResult)
			break;

		/* its first call has looked at all locks */
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
 *		who blocks whom
 * --------------------------------
 */

/* What is in an array of process IDs, without NULLs. */
static int32 *
elements(ArrayType *array)
{
	return (int32 *) ((char *) array + ARR_OVERHEAD_NONULLS(ARR_NDIM(array)));
}

/* The process to ask about: of a session the one that serves it. */
static int
process_of(int pid)
{
	uint64		session = baton_pid_find(pid);
	int			process = session != 0 ? baton_pid_process(session) : pid;

	return process != 0 ? process : NO_PROCESS;
}

/* Every process of the array by the number SQL knows it by; false if not known. */
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
