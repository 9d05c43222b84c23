/*-------------------------------------------------------------------------
 *
 * overruled_hook.c
 *		A ClientAuthentication_hook that is told and cannot refuse.
 *
 * A library that locks roles out (after wrong passwords, say) refuses in this
 * hook, by ereport(FATAL).  On a direct connection a session that is in hears
 * nothing of that.  Neither shall one of the pool, whose next backend is opened by
 * the dispatcher because the server has let its client in before
 * (trusted_hba.c).  Not to call the hook would be wrong, too: some libraries
 * set up a process in it (sepgsql, Citus).
 *
 * What PostgreSQL guarantees (elog.c, 15 to 18): errfinish() calls
 * emit_log_hook of a FATAL before it does anything that cannot be undone, and
 * FlushErrorState() forgets all that it has begun.  Locks that the library holds,
 * since FATAL would have released them, are released here.  The transaction is
 * InitPostgres()'s, and stays.
 *
 * What is no refusal ends the backend: want of something (class 53), orders to
 * end, the time limit of authentication (57), errors of the system (58).  So does a
 * refusal where log_min_messages is panic, of which the hook is not told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"

#include "overruled_hook.h"

/* Where a refusal leads; NULL: no hook is being called. */
static sigjmp_buf *way_out = NULL;

static bool
is_refusal(int sqlerrcode)
{
	switch (ERRCODE_TO_CATEGORY(sqlerrcode))
	{
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
			return false;
		default:
			return true;
	}
}

void
baton_overruled_call(ClientAuthentication_hook_type hook, Port *port, int status)
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		held_off = InterruptHoldoffCount;

	PG_TRY();
	{
		way_out = PG_exception_stack;
		hook(port, status);
		way_out = NULL;
	}
	PG_CATCH();
	{
		way_out = NULL;
		if (!is_refusal(geterrcode()))
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		LWLockReleaseAll();
		InterruptHoldoffCount = held_off;
	}
	PG_END_TRY();
}

void
baton_overruled_log(const ErrorData *edata)
{
	if (way_out == NULL || edata->elevel != FATAL || !is_refusal(edata->sqlerrcode))
		return;
	/* handlers within the library do not run for FATAL, either */
	PG_exception_stack = way_out;
	PG_RE_THROW();
}
