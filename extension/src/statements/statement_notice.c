/*-------------------------------------------------------------------------
 *
 * statement_notice.c
 *		Noticing what a session does to its prepared statements.
 *
 * What may have changed is told by what passes by: ParseComplete, CloseComplete
 * and the utility statements for the statements themselves; BindComplete,
 * errors, and the utility statements that execute, for the counters.  To notice
 * too much costs a look at capture; to notice too little would lose something.
 *
 * Plans depend on the parameters and the role of the moment they are made in,
 * which may be back to what they were when the session leaves.  So all that
 * sets them is noticed: SET and RESET, set_config(), and the calls of functions
 * with a SET clause or SECURITY DEFINER (taint_watch.c).
 *
 * The settings that a literal is read by are noted at the moment the statement
 * is prepared, because they may change before the session is captured.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "context_guc.h"
#include "context_statements.h"
#include "context_unnamed.h"
#include "handover.h"
#include "nodes/memnodes.h"
#include "statement_notice.h"
#include "statement_settings.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/portal.h"

/* Up to so many statements it is cheaper to look at all. */
#define FEW_STATEMENTS 4

StatementNotice baton_notice;
uint64		baton_discards = 1;

static bool attached = false;
static GucEnumAssignHook previous_assign_replication_role = NULL;
static MemoryContext portal_parent = NULL;	/* portalmem.c's TopPortalContext */

/* A statement has been prepared: its plan is the last that was saved. */
static void
note_prepared(void)
{
	baton_notice.statements = true;
	baton_settings_note(baton_newest_plan());
}

/*
 * The session discards its plans, which for the server (ResetPlanCache,
 * plancache.c) are all of this backend.
 */
static void
note_discard(void)
{
	baton_notice.analysis = true;
	baton_discards++;
	baton_table_in_place->discards = baton_discards;
	baton_known_for_plans(baton_table_in_place, baton_settings_disarm);
}

/*
 * assign_session_replication_role() (guc.c) does so, too: on behalf of the
 * session in place, or to put another's value in place, which is done outside
 * transactions or, for one that is greeted, before its table is.
 */
static void
watch_replication_role(int value, void *extra)
{
	if (value != SessionReplicationRole)
	{
		if (IsTransactionOrTransactionBlock() &&
			(baton_table_in_place->session == 0 ||
			 baton_table_in_place->session == baton_session_held()))
			note_discard();
		else
			baton_discards++;
	}
	previous_assign_replication_role(value, extra);
}

static void
note_executed(const char *name)
{
	KnownStatement *known;

	baton_notice.counters = true;
	if (baton_notice.touched_all)
		return;
	if (baton_notice.touched_count == TOUCHED_MAX ||
		baton_table_in_place->statements <= FEW_STATEMENTS)
	{
		baton_notice.touched_all = true;
		return;
	}
	known = baton_known_find(baton_table_in_place, name);
	if (known != NULL)
		baton_notice.touched[baton_notice.touched_count++] = known;
}

/*
 * A portal has been bound: to which statement?  The youngest child of
 * TopPortalContext is its context (MemoryContextCreate puts children first),
 * whose identifier is its name (CreatePortal, portalmem.c).
 */
static void
note_bound(void)
{
	MemoryContext context;
	Portal		portal;

	if (baton_notice.touched_all)
		return;
	if (baton_table_in_place->statements > FEW_STATEMENTS)
	{
		context = portal_parent->firstchild;
		portal = NULL;
		if (context != NULL && context->ident != NULL)
			portal = GetPortalByName(strcmp(context->ident, "<unnamed>") == 0 ?
									 "" : context->ident);
		if (portal != NULL && portal->portalContext == context)
		{
			if (portal->prepStmtName != NULL)
				note_executed(portal->prepStmtName);
			return;
		}
	}
	if (baton_table_in_place->statements > 0)
	{
		baton_notice.counters = true;
		baton_notice.touched_all = true;
	}
}

void
baton_statements_note_message(char type)
{
	if (!attached)
		return;
	switch (type)
	{
		case '1':				/* ParseComplete */
			if (baton_newest_plan()->query_context == NULL ||
				strcmp(baton_newest_plan()->query_context->name,
					   "CachedPlanQuery") == 0)
				note_prepared();
			break;
		case '2':				/* BindComplete */
			note_bound();
			break;
		case '3':				/* CloseComplete */
			baton_notice.statements = true;
			break;
		case 'E':				/* a Bind may have failed after planning */
			if (baton_table_in_place->statements > 0)
			{
				baton_notice.counters = true;
				baton_notice.touched_all = true;
			}
			break;
		default:
			break;
	}
}

void
baton_notice_utility_begins(BatonUtility *utility)
{
	Node	   *statement = unconstify(Node *, utility->statement);

	if (!attached)
		return;
	switch (nodeTag(statement))
	{
		case T_PrepareStmt:
			utility->prepares = true;
			break;
		case T_ExecuteStmt:
			note_executed(((ExecuteStmt *) statement)->name);
			break;
		case T_ExplainStmt:
		case T_CreateTableAsStmt:
			baton_notice.counters = true;
			baton_notice.touched_all = true;
			break;
		case T_TruncateStmt:
		case T_VacuumStmt:		/* ANALYZE, too */
		case T_ReindexStmt:
			baton_notice.analysis = true;
			break;
		case T_DiscardStmt:
			utility->discards_plans =
				((DiscardStmt *) statement)->target == DISCARD_PLANS ||
				((DiscardStmt *) statement)->target == DISCARD_ALL;
			/* FALLTHROUGH */
		case T_DeallocateStmt:
			baton_notice.statements = true;
			baton_notice.analysis = true;
			break;
		case T_VariableSetStmt:
			baton_notice.settings = true;
			/* FALLTHROUGH */
		default:
			if (!baton_notice.analysis && GetCommandLogLevel(statement) == LOGSTMT_DDL)
				baton_notice.analysis = true;
			break;
	}
}

void
baton_notice_utility_done(const BatonUtility *utility)
{
	if (utility->prepares)
		note_prepared();
	if (utility->discards_plans)
		note_discard();
}

void
baton_notice_set_config(void)
{
	baton_notice.settings = true;
}

void
baton_notice_settings(void)
{
	baton_notice.settings = true;
}

const char *
baton_notice_attach(void)
{
	struct config_enum *role;

	for (MemoryContext child = TopMemoryContext->firstchild; child != NULL;
		 child = child->nextchild)
		if (strcmp(child->name, "TopPortalContext") == 0)
			portal_parent = child;
	if (portal_parent == NULL)
		return "the context of portals was not found";
	role = (struct config_enum *) baton_guc_find("session_replication_role");
	if (role == NULL || role->gen.vartype != PGC_ENUM || role->assign_hook == NULL)
		return "parameter \"session_replication_role\" is not as expected";
	previous_assign_replication_role = role->assign_hook;
	role->assign_hook = watch_replication_role;
	attached = true;
	return NULL;
}

void
baton_notice_reset(void)
{
	baton_notice.statements = false;
	baton_notice.analysis = false;
	baton_notice.settings = false;
	baton_notice.counters = false;
	baton_notice.touched_all = false;
	baton_notice.touched_count = 0;
	baton_settings_touched = false;
}
