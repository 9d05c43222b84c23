/*-------------------------------------------------------------------------
 *
 * taint_clean.c
 *		Making a backend whose dedicated session has ended fit for others.
 *
 * Does what DISCARD ALL does (DiscardAll() in discard.c) with all that
 * taint.c looks for, and what the end of the process would do with the rest.
 * Parameters, prepared statements and sequence values are the session
 * context's, and not touched here.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "commands/async.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "majors.h"
#include "own_transaction.h"
#include "pooled_state.h"
#include "self_check.h"
#include "taint.h"
#include "taint_library.h"
#include "taint_watch.h"

/*
 * random() must not go on in the order the session has chosen.  setseed() is
 * the only way to the generator's state, which is private to float.c (15) or
 * pseudorandomfuncs.c (17).
 */
static void
reseed(void)
{
	uint64		bits;
	double		seed;

	if (!pg_strong_random(&bits, sizeof(bits)))
		elog(ERROR, "could not generate a random seed");
	/* 53 bits, into [-1, 1) */
	seed = (double) (bits >> 11) / (double) (UINT64CONST(1) << 52) - 1.0;
	(void) DirectFunctionCall1(setseed, Float8GetDatum(seed));
}

static void
reset_replication_origin(void)
{
	if (replorigin_session_origin == InvalidRepOriginId)
		return;

	/* as pg_replication_origin_session_reset() in origin.c */
	replorigin_session_reset();
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
}

/* Everything that can fail. */
static void
clean(void)
{
	baton_own_transaction_start();

	/* closing portals might run user-defined code, so do that first */
	PortalHashTableDeleteAll();
	Async_UnlistenAll();
	LockReleaseAll(USER_LOCKMETHOD, true);

	/* with a snapshot, as RemoveTempRelationsCallback() in namespace.c */
	PushActiveSnapshot(GetTransactionSnapshot());
	ResetTempTableNamespace();
	PopActiveSnapshot();
	CommitTransactionCommand();

	baton_drop_temporary_slots();
	reset_replication_origin();
	if (get_backup_status() != SESSION_BACKUP_NONE)
		do_pg_abort_backup(0, BoolGetDatum(false));
	if (BatonPlaced.ties.seeded)
		reseed();
}

bool
baton_taint_clean(void)
{
	MemoryContext context = CurrentMemoryContext;
	CommandDest destination = whereToSendOutput;
	uint32		held_off = QueryCancelHoldoffCount;
	volatile bool done = false;

	/*
	 * Nobody is there to be told anything, and what would wait in the output
	 * buffer would reach the next client.
	 */
	whereToSendOutput = DestNone;

	/* an open transaction may be what the session left behind */
	AbortOutOfAnyTransaction();
	MemoryContextSwitchTo(context);

	/*
	 * Nobody can unload a library, or knows what it or a listed function
	 * keeps, or how to take from here what this session had.
	 */
	if (BatonPlaced.ties.loaded || BatonPlaced.ties.listed_object ||
		BatonPlaced.ties.listed_parameter ||
		baton_uses_unlisted_library() || baton_unpooled())
	{
		whereToSendOutput = destination;
		return false;
	}

	PG_TRY();
	{
		clean();

		/* not by what was noted, but by what is there */
		baton_taint_reset();
		done = baton_taint() == BATON_CAUSE_NONE;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		QueryCancelHoldoffCount = held_off;
		AbortOutOfAnyTransaction();
		done = false;
	}
	PG_END_TRY();

	/* any error sets it to zero, also one that a user's function has caught */
	QueryCancelHoldoffCount = held_off;
	MemoryContextSwitchTo(context);
	whereToSendOutput = destination;
	return done;
}
