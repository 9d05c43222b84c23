/*-------------------------------------------------------------------------
 *
 * taint_watch.c
 *		The hooks that notice what may tie a session to its backend.
 *
 * What can be read from the process at a boundary for next to nothing (locks,
 * held cursors, backup mode, replication origin) needs no hook; taint.c
 * reads it.  The hooks are for the rest, and only note it down: whether it
 * came to something (a LISTEN may be rolled back) is looked up at the
 * boundary.  They are installed in the postmaster, run in every process of
 * the server, and do nothing but pass on where the process is no pooled
 * backend.
 *
 * What each is called for (15; checked in the files named):
 *
 * - ProcessUtility_hook: every utility statement (hooks.c).
 * - object_access_hook, OAT_FUNCTION_EXECUTE: every function an expression,
 *	 aggregate, window or set-returning function, CALL or the function-call
 *	 message executes (execExpr.c, execSRF.c, nodeAgg.c, nodeWindowAgg.c,
 *	 functioncmds.c, fastpath.c).  This is how built-in functions are seen,
 *	 and the only hook that the function-call message is sure to come by: a
 *	 cancel that has waited for it fires here (cancel.c).
 * - object_access_hook, OAT_POST_CREATE and OAT_DROP: every object of any
 *	 kind, cascades included (deleteOneObject() in dependency.c).
 * - needs_fmgr_hook: whenever a function that is not built in is looked up
 *	 to be called, whoever calls it: also as a trigger, as a DO block's
 *	 handler, as a type's input or output function, where OAT_FUNCTION_EXECUTE
 *	 is silent (fmgr_info_cxt_security() in fmgr.c).  It is not asked for
 *	 SECURITY DEFINER functions and those with a SET clause; these come
 *	 through fmgr_security_definer(), which calls fmgr_hook.
 * - the assign hook of the parameter "seed": SET, set_config() and functions'
 *	 SET clauses; assign_random_seed() calls setseed() without any hook.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "utils/fmgroids.h"

#include "context_temporary.h"
#include "guc_hooks.h"
#include "pid_tls.h"
#include "pooled_state.h"
#include "self_check.h"
#include "statement_notice.h"
#include "statement_planning.h"
#include "taint_objects.h"
#include "taint_watch.h"

static BatonPlacedTies *const ties = &BatonPlaced.ties;

static GucRealAssignHook server_assign_seed = NULL;

/* dl_iterate_phdr() callback: how many libraries were ever loaded. */
static int
count_loads(struct dl_phdr_info *info, size_t size, void *argument)
{
	*(unsigned long long *) argument = info->dlpi_adds;
	return 1;
}

static unsigned long long
loads(void)
{
	unsigned long long count = 0;

	dl_iterate_phdr(count_loads, &count);
	return count;
}

void
baton_taint_utility_begins(BatonUtility *utility)
{
	switch (nodeTag(utility->statement))
	{
		case T_LoadStmt:
			utility->loads = true;
			if (!ties->load_tried)
				ties->loads_before = loads();
			ties->load_tried = true;
			break;
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_DiscardStmt:
			ties->listening_changed = true;
			break;
		default:
			break;
	}
}

/* A library stays, whether the transaction does or not. */
void
baton_taint_utility_done(const BatonUtility *utility)
{
	if (utility->loads)
		ties->loaded = true;
}

void
baton_taint_look_at_loads(void)
{
	if (loads() != ties->loads_before)
		ties->loaded = true;
	ties->load_tried = false;
}

/* A function an expression is about to execute. */
static void
note_builtin(Oid function)
{
	switch (function)
	{
		case F_SETSEED:
			ties->seeded = true;
			break;
		case F_SET_CONFIG:
			baton_notice_set_config();
			break;
		case F_PG_PREPARED_STATEMENT:
			baton_notice_listing();
			break;
		case F_PG_CREATE_PHYSICAL_REPLICATION_SLOT:
		case F_PG_CREATE_LOGICAL_REPLICATION_SLOT:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL_NAME:
		case F_PG_DROP_REPLICATION_SLOT:
			ties->slots_changed = true;
			break;
		default:
			break;
	}
}

void
baton_taint_object_access(ObjectAccessType access, Oid class, Oid object, int sub)
{
	if (!BatonSelf.notes_ties)
		return;

	switch (access)
	{
		case OAT_FUNCTION_EXECUTE:
			note_builtin(object);
			baton_planning_function(object);
			break;
		case OAT_POST_CREATE:
			baton_objects_created(class, object, sub);
			break;
		case OAT_DROP:
			baton_objects_dropped(class, object, sub);
			break;
		default:
			break;
	}
}

/*
 * A function is looked up, or called.  Which one of sslinfo's it is, NULL if none:
 * in other processes that knows all that it says.
 */
static const BatonTlsFunction *
note_function(Oid function)
{
	const BatonTlsFunction *tls;

	if (!BatonSelf.notes_ties && baton_relayed_tls.in_use == 0)
		return NULL;
	if (baton_function_is_listed(function, &tls))
		ties->listed_object = true;
	return tls;
}

bool
baton_taint_function(Oid function)
{
	return note_function(function) != NULL;
}

void
baton_taint_call(FmgrHookEventType event, FmgrInfo *function)
{
	const BatonTlsFunction *tls;

	if (event == FHET_START)
	{
		tls = note_function(function->fn_oid);
		if (tls != NULL)
			baton_tls_function_call(function, tls);
	}
	baton_notice_settings();
}

/* assign_random_seed() seeds only if the value was set by a user's hand. */
static void
watch_assign_seed(double value, void *extra)
{
	if (*(int *) extra != 0)
		ties->seeded = true;
	server_assign_seed(value, extra);
}

static void
watch_seed_parameter(void)
{
	if (baton_self_check_is_broken("seed") ||
		!baton_guc_hook_real("seed", watch_assign_seed, &server_assign_seed))
		baton_self_check_failed(BATON_COSTS_POOLING, "parameter \"seed\" is not as expected");
}

/*
 * MyXactFlags is set back when the next transaction starts
 * (StartTransaction() in xact.c), so it must be read at each one's end.  What
 * an aborted transaction did to temporary objects is undone with it; so is
 * what one that was prepared did in this session, and of those it has none
 * (PrepareTransaction() refuses to prepare one that has touched any).
 */
void
baton_taint_transaction(XactEvent event)
{
	if (!BatonSelf.notes_ties)
		return;
	if (event == XACT_EVENT_COMMIT)
	{
		BatonObjectsLeft left = baton_objects_left();

		ties->objects_made |= left.made;
		ties->objects_dropped |= left.dropped;
		if ((MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0 &&
			!left.came_and_went)
			ties->temporary_used = true;
		baton_temporary_commits();
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		baton_objects_forget();
}

void
baton_taint_subtransaction(SubXactEvent event)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		baton_objects_restored();
}

void
baton_taint_watch_init(void)
{
	watch_seed_parameter();
}
