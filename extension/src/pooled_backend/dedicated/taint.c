/*-------------------------------------------------------------------------
 *
 * taint.c
 *		Whether a session may leave its backend, and making a backend fit for
 *		others after it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "commands/async.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/origin.h"
#include "replication/slot.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "majors.h"
#include "pg_guc.h"
#include "pg_program.h"
#include "pooled_state.h"
#include "self_check.h"
#include "taint.h"
#include "taint_rules.h"
#include "taint_watch.h"

/* ----------------------------------------------------------------
 *		Deciding at a boundary whether the session may leave its backend.
 *
 * Outside a transaction a session leaves little in the process that the
 * session context does not carry. This code looks for that little. As soon as
 * it is gone, the session is shared again: no cause is remembered longer than
 * it lasts.
 *
 * Most of it is read directly. What needs a transaction or a walk through
 * shared memory is looked up only after an event that may have changed it
 * (taint_watch.c), and the answer is kept until the next event.
 * ----------------------------------------------------------------
 */

/* portalmem.c's context, the parent of every portal's own contexts */
static MemoryContext portals = NULL;

static BatonPlacedTies *const ties = &BatonPlaced.ties;

/*
 * TopPortalContext is private to portalmem.c (EnablePortalManager()), so it is
 * found by its name; a test portal must appear in it.
 */
static const char *
find_portals(void)
{
	Portal		portal;
	bool		appeared;

	portals = NULL;
	for (MemoryContext child = TopMemoryContext->firstchild;
		 child != NULL; child = child->nextchild)
	{
		if (strcmp(child->name, "TopPortalContext") != 0)
			continue;
		if (portals != NULL)
			return "TopPortalContext is ambiguous";
		portals = child;
	}
	if (portals == NULL)
		return "TopPortalContext was not found";
	if (portals->firstchild != NULL)
		return "TopPortalContext is not empty at start";

	portal = CreateNewPortal();
	appeared = portals->firstchild != NULL;
	/* the newest minor releases do not drop a portal that was never started */
	MarkPortalFailed(portal);
	PortalDrop(portal, false);
	if (!appeared || portals->firstchild != NULL)
		return "TopPortalContext does not hold the portals";
	return NULL;
}

static bool
may_run(const char *name)
{
	Portal		portal = GetPortalByName(name);

	return portal != NULL && portal->strategy == PORTAL_ONE_SELECT &&
		portal->status == PORTAL_READY && portal->holdStore == NULL &&
		(!portal->atEnd || (portal->cursorOptions & CURSOR_OPT_SCROLL) != 0);
}

/* A portal's context is identified by its name (CreatePortal, portalmem.c). */
bool
baton_portals_may_run(void)
{
	if (portals == NULL || portals->firstchild == NULL)
		return false;
	if (may_run(""))
		return true;
	for (MemoryContext child = portals->firstchild; child != NULL; child = child->nextchild)
		if (child->ident != NULL && may_run(child->ident))
			return true;
	return false;
}

const char *
baton_taint_attach(void)
{
	MemoryContext context = CurrentMemoryContext;
	const char *problem;

	/* a portal's resource owner needs a transaction's as its parent */
	StartTransactionCommand();
	problem = find_portals();
	if (problem == NULL && baton_self_check_is_broken("portals"))
		problem = "broken on purpose";
	if (problem == NULL)
		problem = baton_taint_library_attach();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	/* what the backend's start did belongs to no session */
	memset(ties, 0, sizeof(*ties));
	BatonSelf.notes_ties = true;
	return problem;
}

/* Clears the results, so that everything is looked up again. */
static void
taint_reset(void)
{
	memset(ties, 0, sizeof(*ties));
	ties->listening_changed = true;
	ties->slots_changed = true;
	ties->objects_made = true;
}

/*
 * Outside a transaction only session locks are left, and of those only
 * advisory locks outlive a command. The fast path never takes them
 * (EligibleForRelationFastPath() in lock.c requires the default lock method),
 * so they are in these lists. No other process adds to the lists unless it
 * promotes a fast-path lock of ours; LockReleaseAll() relies on the same.
 */
static inline bool
holds_lock(void)
{
	return baton_holds_shared_lock();
}

/*
 * Does the session listen to any channel? Calls the SQL function, because
 * listenChannels is private to async.c. The function is built in, so it needs
 * neither catalogs nor a transaction.
 */
static bool
look_up_listening(void)
{
	LOCAL_FCINFO(call, 0);
	FmgrInfo	function;
	ReturnSetInfo result;
	ExprContext *expression;
	MemoryContext work;
	MemoryContext caller;
	bool		any;

	work = AllocSetContextCreate(CurrentMemoryContext, "pg_baton listening",
								 ALLOCSET_SMALL_SIZES);
	caller = MemoryContextSwitchTo(work);
	expression = CreateStandaloneExprContext();
	fmgr_info(F_PG_LISTENING_CHANNELS, &function);
	memset(&result, 0, sizeof(result));
	result.type = T_ReturnSetInfo;
	result.econtext = expression;
	result.allowedModes = SFRM_ValuePerCall;
	result.returnMode = SFRM_ValuePerCall;
	result.isDone = ExprSingleResult;
	InitFunctionCallInfoData(*call, &function, 0, InvalidOid, NULL,
							 (Node *) &result);
	(void) FunctionCallInvoke(call);
	any = result.isDone != ExprEndResult;

	/* ends the function's own state, wherever it is */
	FreeExprContext(expression, true);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(work);
	return any;
}

/*
 * Does the backend own a temporary replication slot? Finds it as
 * ReplicationSlotCleanup() does; outside a command no other slot can be active
 * in this process.
 */
static bool
look_up_slots(void)
{
	bool		found = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !found; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (!slot->in_use)
			continue;
		SpinLockAcquire(&slot->mutex);
		found = slot->active_pid == MyProcPid;
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return found;
}

/*
 * Is there anything in the session's temporary namespace? Every object in a
 * namespace depends on it, or on something in it (RemoveTempRelations() in
 * namespace.c finds them that way). Starts and ends a transaction; raises
 * ERROR if it cannot.
 */
static bool
look_up_temporary_objects(void)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			namespace;
	Oid			toast_namespace;
	Relation	depend;
	ScanKeyData keys[2];
	SysScanDesc scan;
	bool		found;

	GetTempNamespaceState(&namespace, &toast_namespace);
	if (!OidIsValid(namespace))
		return false;

	StartTransactionCommand();
	depend = table_open(DependRelationId, AccessShareLock);
	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(NamespaceRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(namespace));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 2, keys);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return found;
}

static inline bool
is_listening(void)
{
	if (ties->listening_changed)
	{
		ties->listening = look_up_listening();
		ties->listening_changed = false;
	}
	return ties->listening;
}

/*
 * Any error drops the temporary slots (PostgresMain in postgres.c) without
 * further notice, so a slot that existed is looked for again.
 */
static inline bool
owns_slot(void)
{
	if (ties->slots_changed || ties->has_temporary_slot)
	{
		ties->has_temporary_slot = look_up_slots();
		ties->slots_changed = false;
	}
	return ties->has_temporary_slot;
}

/*
 * If there are some, only a drop changes the answer; if there are none, only a
 * creation, or access to the temporary namespace. So using temporary tables
 * costs no look-up, nor do tables that go with their transaction.
 */
static inline bool
owns_temporary_objects(void)
{
	if (ties->has_temporary_objects ? ties->objects_dropped :
		(ties->objects_made || ties->temporary_used))
	{
		ties->has_temporary_objects = look_up_temporary_objects();
		ties->objects_made = false;
		ties->objects_dropped = false;
		ties->temporary_used = false;
	}
	return ties->has_temporary_objects;
}

uint32
baton_taint(void)
{
	if (unlikely(baton_unpooled()))
		return BATON_CAUSE_SELF_CHECK;
	if (!BatonSelf.notes_ties)
		return BATON_CAUSE_NONE;

	/* causes that last as long as the session first */
	if (unlikely(ties->load_tried))
		baton_taint_look_at_loads();
	if (ties->loaded)
		return BATON_CAUSE_LOAD;
	if (ties->listed_object)
		return BATON_CAUSE_LISTED_OBJECT;
	if (baton_uses_unlisted_library())
		return BATON_CAUSE_UNLISTED_LIBRARY;
	if (ties->listed_parameter || baton_dedicating_parameter_is_set())
	{
		ties->listed_parameter = true;
		return BATON_CAUSE_LISTED_PARAMETER;
	}
	if (ties->seeded)
		return BATON_CAUSE_SETSEED;

	if (owns_temporary_objects())
		return BATON_CAUSE_TEMPORARY_OBJECT;
	if (is_listening())
		return BATON_CAUSE_LISTEN;
	if (holds_lock())
		return BATON_CAUSE_ADVISORY_LOCK;
	if (portals->firstchild != NULL)
		return BATON_CAUSE_HELD_CURSOR;
	if (owns_slot())
		return BATON_CAUSE_TEMPORARY_SLOT;
	if (get_backup_status() != SESSION_BACKUP_NONE)
		return BATON_CAUSE_BACKUP;
	if (replorigin_session_origin != InvalidRepOriginId)
		return BATON_CAUSE_REPLICATION_ORIGIN;
	if (unlikely(baton_guc_role_is_lost()))
		return BATON_CAUSE_OTHER;
	return BATON_CAUSE_NONE;
}

/* ----------------------------------------------------------------
 *		Cleaning a backend for other sessions after its dedicated session has
 *		ended.
 *
 * Does what DISCARD ALL does (DiscardAll() in discard.c) with all causes
 * above, and what the end of the process would do with the rest. Parameters,
 * prepared statements and sequence values belong to the session context, and
 * are not touched here.
 * ----------------------------------------------------------------
 */

/*
 * random() must not continue in the order that the session has chosen.
 * setseed() is the only access to the generator's state, which is private to
 * float.c (15) or pseudorandomfuncs.c (17).
 */
static void
reseed(void)
{
	uint64		bits;
	double		seed;

	if (!pg_strong_random(&bits, sizeof(bits)))
		elog(ERROR, "could not generate a random seed");
	/* 53 bits, mapped to [-1, 1) */
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

/* Does everything that can fail. */
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
	 * There is no client, and what would wait in the output buffer would
	 * reach the next one.
	 */
	whereToSendOutput = DestNone;

	/* the session may have left an open transaction */
	AbortOutOfAnyTransaction();
	MemoryContextSwitchTo(context);

	/*
	 * A library cannot be unloaded. What it or a listed function keeps is
	 * unknown, and so is how to remove it.
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

		/* look at the actual state, not at what was noted */
		taint_reset();
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

	/* any error sets it to zero, even one that a user's function has caught */
	QueryCancelHoldoffCount = held_off;
	MemoryContextSwitchTo(context);
	whereToSendOutput = destination;
	return done;
}
