/*-------------------------------------------------------------------------
 *
 * statement_notice.c
 *		Noticing what a session does to its prepared statements.
 *
 * That a statement was looked up the table tells by itself (statement_held.c). What
 * is noticed here:
 *	- that one was just prepared: ParseComplete, and PREPARE.  The settings that its
 *	  literals were read by are noted at that moment, because they may change
 *	  before the session is captured.
 *	- that all are about to be dropped or listed.
 *	- that the session discards its plans, or may make some invalid.
 *	- whatever sets a parameter or the role, be it for a moment: SET and RESET,
 *	  set_config(), and calls of functions with a SET clause or SECURITY DEFINER
 *	  (taint_watch.c).  Analysis and plans depend on these.
 * To notice too much costs little; to notice too little would give a session what was
 * made under another's settings.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "context_guc.h"
#include "guc_hooks.h"
#include "nodes/memnodes.h"
#include "plan_source.h"
#include "pooled_state.h"
#include "statement_environment.h"
#include "statement_held.h"
#include "statement_notice.h"
#include "statement_settings.h"
#include "statement_sparing.h"
#include "tcop/utility.h"

static bool attached = false;
static GucEnumAssignHook server_assign_replication_role = NULL;

/* A statement has been prepared: its plan is the last that was saved. */
static void
note_prepared(void)
{
	CachedPlanSource *plan = baton_newest_plan();

	baton_settings_note(plan);
	baton_held_prepared(plan);
}

/*
 * The session discards its plans, which for the server (ResetPlanCache,
 * plancache.c) are all of this backend.
 */
static void
note_discard(void)
{
	dlist_iter	iter;

	BatonServed.notice.discards_plans = true;
	dlist_foreach(iter, &BatonPlaced.held.list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan != NULL)
			baton_settings_disarm(held->plan);
	}
}

/*
 * assign_session_replication_role() (guc.c, 15; guc_tables.c and trigger.c later)
 * resets all plans, since it decides which rules a query is rewritten by.  Not when
 * another session's value is put in place: what is kept for several sessions is kept
 * apart by it (statement_environment.c, function_environment.c).
 */
static void
watch_replication_role(int value, void *extra)
{
	if (value != SessionReplicationRole && BatonPlaced.statements.session != 0)
	{
		if (BatonPlaced.statements.session != baton_session_held())
			return;
		if (IsTransactionOrTransactionBlock())
			note_discard();
	}
	server_assign_replication_role(value, extra);
}

void
baton_notice_message(char type)
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
		case 'C':				/* CommandComplete */
			baton_environment_is_stable();
			break;
		default:
			break;
	}
}

/*
 * DDL and the like: literals of the session's statements may have to be read
 * again by the settings in force.
 */
static void
note_invalidates(void)
{
	if (BatonServed.notice.invalidates)
		return;
	BatonServed.notice.invalidates = true;
	baton_sparing_end();
	baton_common_watch();
}

/* EXPLAIN: a prepared statement is to be shown with the plan it would have. */
static void
note_explained(const Node *node)
{
	while (node != NULL)
	{
		switch (nodeTag(node))
		{
			case T_Query:
				node = ((const Query *) node)->utilityStmt;
				break;
			case T_CreateTableAsStmt:
				node = ((const CreateTableAsStmt *) node)->query;
				break;
			case T_ExecuteStmt:
				baton_held_look_up(((const ExecuteStmt *) node)->name);
				baton_sparing_end();
				return;
			default:
				return;
		}
	}
}

/* Is it the name of a parameter that no code reads by itself? */
static bool
is_placeholder(const char *name)
{
	const struct config_generic *record;

	if (name == NULL || strchr(name, GUC_QUALIFIER_SEPARATOR) == NULL)
		return false;
	record = baton_guc_find(name);
	return record == NULL || (record->flags & GUC_CUSTOM_PLACEHOLDER) != 0;
}

void
baton_notice_utility_begins(BatonUtility *utility)
{
	const Node *statement = utility->statement;

	if (!attached)
		return;
	switch (nodeTag(statement))
	{
		case T_PrepareStmt:
			utility->prepares = true;
			break;
		case T_DiscardStmt:
			utility->discards_plans =
				((const DiscardStmt *) statement)->target == DISCARD_PLANS ||
				((const DiscardStmt *) statement)->target == DISCARD_ALL;
			if (((const DiscardStmt *) statement)->target == DISCARD_ALL)
				baton_held_look_up_all();
			baton_environment_changes();
			note_invalidates();
			break;
		case T_DeallocateStmt:
			if (((const DeallocateStmt *) statement)->name == NULL)
				baton_held_look_up_all();
			break;
		case T_ExplainStmt:
			note_explained(((const ExplainStmt *) statement)->query);
			break;
		case T_VariableSetStmt:
			if (!is_placeholder(((const VariableSetStmt *) statement)->name))
				baton_environment_changes();
			break;
		case T_TruncateStmt:
		case T_VacuumStmt:		/* ANALYZE, too */
		case T_ReindexStmt:
			note_invalidates();
			break;
		default:
			if (!BatonServed.notice.invalidates &&
				GetCommandLogLevel(unconstify(Node *, statement)) == LOGSTMT_DDL)
				note_invalidates();
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
baton_notice_listing(void)
{
	if (!attached)
		return;
	baton_held_look_up_all();
	baton_sparing_end();
}

void
baton_notice_set_config(void)
{
	baton_environment_is_volatile();
}

void
baton_notice_settings(void)
{
	baton_environment_changes();
}

const char *
baton_notice_check(void)
{
	if (server_assign_replication_role == NULL &&
		!baton_guc_hook_enum("session_replication_role", watch_replication_role,
							 &server_assign_replication_role))
		return "parameter \"session_replication_role\" is not as expected";
	return NULL;
}

void
baton_notice_attach(void)
{
	attached = true;
}

void
baton_notice_reset(void)
{
	BatonServed.notice.discards_plans = false;
	BatonServed.notice.invalidates = false;
}
