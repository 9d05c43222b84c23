/*-------------------------------------------------------------------------
 *
 * statement_tracking.c
 *		Noticing, capturing and installing what a session does to its prepared
 *		statements.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "commands/trigger.h"
#include "nodes/memnodes.h"
#include "tcop/utility.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "delta.h"
#include "dispatcher_link.h"
#include "pg_guc.h"
#include "pg_plancache.h"
#include "pooled_state.h"
#include "session_statements.h"
#include "statement_cache.h"
#include "statement_description.h"
#include "statement_environment.h"
#include "statement_names.h"
#include "statement_tracking.h"

/* ----------------------------------------------------------------
 *		Noticing what a session does to its prepared statements.
 *
 * The table itself shows that a statement was looked up
 * (session_statements.c). This section notices:
 * - that a statement was just prepared: ParseComplete, and PREPARE. The
 *   settings by which its literals were read are noted at that moment, because
 *   they may change before the session is captured.
 * - that all statements are about to be dropped or listed.
 * - that the session discards its plans, or may make some invalid.
 * - every change of a parameter or the role, even a temporary one: SET and
 *   RESET, set_config(), and calls of functions with a SET clause or SECURITY
 *   DEFINER (taint_watch.c). Analysis and plans depend on these.
 *
 * Noticing too much costs little; noticing too little would give a session
 * what was made under another's settings.
 * ----------------------------------------------------------------
 */

static bool attached = false;
static GucEnumAssignHook server_assign_replication_role = NULL;

/* A statement has been prepared: its plan is the last one saved. */
static void
note_prepared(void)
{
	CachedPlanSource *plan = baton_newest_plan();

	baton_settings_note(plan);
	baton_held_prepared(plan);
}

/*
 * The session discards its plans; for the server (ResetPlanCache, plancache.c)
 * these are all plans of this backend.
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
 * assign_session_replication_role() (guc.c, 15; guc_tables.c and trigger.c
 * later) resets all plans, since the parameter decides which rules a query is
 * rewritten by. It must not do so when another session's value is put in
 * place: what several sessions share is kept apart by this parameter
 * (statement_environment.c, function_table.c).
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
	if (type == '1' &&			/* ParseComplete */
		(baton_newest_plan()->query_context == NULL ||
		 strcmp(baton_newest_plan()->query_context->name, "CachedPlanQuery") == 0))
		note_prepared();
}

/*
 * DDL and the like: literals of the session's statements may have to be read
 * again under the settings in force.
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

/*
 * EXPLAIN of a prepared statement shall show the plan that the statement would
 * have.
 */
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

/* Is it the name of a parameter that only functions read? */
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

/*
 * Returns NULL, or the reason why nothing can be noticed. notice_attach is
 * called only after that succeeded.
 */
static const char *
notice_check(void)
{
	if (server_assign_replication_role == NULL &&
		!baton_guc_hook_enum("session_replication_role", watch_replication_role,
							 &server_assign_replication_role))
		return "parameter \"session_replication_role\" is not as expected";
	return NULL;
}

static void
notice_attach(void)
{
	attached = true;
}

/* Another session comes, or all changes were captured. */
static void
notice_reset(void)
{
	BatonServed.notice.discards_plans = false;
	BatonServed.notice.invalidates = false;
}

/* ----------------------------------------------------------------
 *		What is noticed while a statement is planned.
 *
 * Whether the planner has executed a user's function that is marked immutable,
 * or copied the body of a function in SQL with a literal like 'today': what
 * that read (a table, a placeholder, the time) is then in the plan, which
 * belongs to its session only. Whether it may have copied a function in SQL
 * into the plan. And what a custom plan tells about the next one
 * (session_statements.c).
 * ----------------------------------------------------------------
 */

static int	planning = 0;		/* nested calls of the planner */
static bool folded = false;		/* it has executed an immutable function */
static bool inlined = false;	/* it may have copied a function in SQL */
static void (*watcher) (bool folds, bool inlines) = NULL;
static void (*copy_watcher) (Oid function) = NULL;
static void (*rewritten_watcher) (Query *query) = NULL;

void
baton_planning_function(Oid function)
{
	if (planning > 0 && function >= FirstNormalObjectId &&
		func_volatile(function) == PROVOLATILE_IMMUTABLE)
		folded = true;
}

void
baton_planning_watch(void (*planned) (bool folds, bool inlines))
{
	watcher = planned;
}

void
baton_planning_watch_copies(void (*copied) (Oid function))
{
	copy_watcher = copied;
}

void
baton_planning_watch_rewritten(void (*rewritten) (Query *query))
{
	rewritten_watcher = rewritten;
}

/* inline_function() and inline_set_returning_function() (clauses.c), 15 to 18. */
void
baton_planning_looks_up(Oid function)
{
	bool		may_have_moment;

	if (planning == 0 || !baton_bindings_is_users_sql(function, &may_have_moment))
		return;
	inlined = true;
	baton_names_will_inline();
	/* parse analysis of the body is seen by no hook */
	folded |= may_have_moment;
	if (copy_watcher != NULL)
		copy_watcher(function);
}

bool
baton_planning_is_under_way(void)
{
	return planning > 0;
}

PlannedStmt *
baton_planning_run(Query *parse, const char *query_string, int cursor_options,
				   ParamListInfo parameters, planner_hook_type planner)
{
	PlannedStmt *result;
	bool		folded_before = folded;
	bool		inlined_before = inlined;
	bool		learns;
	bool		alike;

	baton_environment_look_at_role();
	learns = planning == 0 && parameters != NULL && baton_sparing_asks(query_string);
	alike = learns && baton_values_are_indifferent(parse);
	baton_names_in_transaction();
	if ((parse->commandType != CMD_SELECT || parse->hasModifyingCTE) && rewritten_watcher != NULL)
		rewritten_watcher(parse);
	folded = inlined = false;
	planning++;
	PG_TRY();
	{
		result = planner(parse, query_string, cursor_options, parameters);
		if ((folded || inlined) && parameters == NULL)
		{
			baton_held_folds(query_string, folded, inlined);
			if (watcher != NULL)
				watcher(folded, inlined);
		}
		/* that function may return another result for the next custom plan */
		if (learns)
			baton_sparing_learn(query_string, alike && !folded, result);
	}
	PG_FINALLY();
	{
		planning--;
		folded = folded_before;
		inlined = inlined_before;
	}
	PG_END_TRY();
	return result;
}

/* ----------------------------------------------------------------
 *		The named prepared statements of a session, from SQL and from the
 *		protocol.
 *
 * When a session is put in place, nothing is done for its statements, however
 * many it has; see docs/design/prepared-statements.md. The statements that the
 * session before has looked up are taken out of the table
 * (session_statements.c). If the same session comes, and nothing of its
 * statements has changed elsewhere, everything stays.
 * ----------------------------------------------------------------
 */

static BatonPlacedStatements *const placed = &BatonPlaced.statements;

const char *
baton_statements_attach(void)
{
	const char *problem;

	problem = baton_plan_attach();
	if (problem == NULL)
		problem = notice_check();
	/* the last step that can fail: it replaces the server's table */
	if (problem == NULL)
		problem = baton_held_attach();
	if (problem != NULL)
		return problem;
	notice_attach();
	baton_common_attach();
	return NULL;
}

void
baton_statements_install(const BatonSessionRecord *record)
{
	BatonSessionSlot *slot = baton_session_slot(record->id);
	bool		same;

	same = record->id == placed->session && record->context_version != 0 &&
		record->context_version == placed->context_version &&
		slot->counter_version == placed->counter_version;
	notice_reset();
	if (!same)
	{
		placed->session = 0;
		baton_held_close();
		baton_held_open(record);
		placed->session = record->id;
		placed->context_version = record->context_version;
		placed->counter_version = slot->counter_version;
	}
	baton_environment_install(record->context_version, same);
}

/*
 * The session in place was captured: did its context or its counters change?
 */
static void
statements_captured(bool context, bool counters)
{
	if (context)
		placed->context_version = 0;
	if (counters)
		placed->counter_version = ++baton_session_slot(placed->session)->counter_version;
}

void
baton_statements_forget(uint64 session)
{
	if (session == placed->session)
	{
		placed->session = 0;
		baton_held_close();
	}
	notice_reset();
}

/* ----------------------------------------------------------------
 *		Reporting what a session has done to its named prepared statements.
 *
 * Only statements that were looked up can have changed (session_statements.c).
 * Each such name is compared with the session's context.
 * ----------------------------------------------------------------
 */

/* Puts a statement that is new, or was analysed again under other settings. */
static void
put(HeldStatement *held, bool changed)
{
	PreparedStatement *statement = baton_table_find(held->name, held->hash);
	BatonStatementCounter counters;
	StringInfoData value;
	MemoryContext caller;

	held->in_context = true;
	held->is_new = false;
	held->counter = BATON_NO_COUNTER;
	held->counter_due = true;
	held->prepare_time = statement->prepare_time;
	baton_counters_get(held->plan, &held->spared, &counters);
	held->written = counters;
	if (changed && held->value != NULL)
	{
		pfree(held->value);
		held->value = NULL;
	}

	if (!baton_statement_is_describable(held->plan))
	{
		baton_delta_give_up();
		return;
	}
	if (held->value == NULL)
	{
		caller = MemoryContextSwitchTo(BatonPlaced.held.memory);
		initStringInfo(&value);
		baton_statement_describe(&value, held->plan, statement->from_sql);
		held->value = value.data;
		held->value_length = value.len;
		MemoryContextSwitchTo(caller);
	}
	baton_delta_put(BATON_KIND_STATEMENT, held->name, strlen(held->name),
					held->value, held->value_length, &counters, held->prepare_time);
}

/*
 * Returns true if the delta has a change; sets *written if counters were
 * written.
 */
static bool
capture(HeldStatement *held, bool *written)
{
	bool		changed;

	if (held->unready)
		return false;			/* making it has failed: nothing was changed */
	if (held->plan == NULL)
	{
		PreparedStatement *statement = baton_table_find(held->name, held->hash);

		if (statement != NULL)
			baton_held_tie(held, statement->plansource);
		else if (!held->in_context)
			return false;
		else
		{
			baton_delta_delete(BATON_KIND_STATEMENT, held->name,
							   strlen(held->name));
			held->in_context = false;
			held->counter_due = false;
			return true;
		}
	}
	changed = baton_settings_changed(held->plan);
	if (held->is_new || changed ||
		(held->counter_due && baton_counters_changed(held->plan, &held->spared, &held->written)))
	{
		put(held, changed);
		return true;
	}
	if (baton_counters_changed(held->plan, &held->spared, &held->written))
	{
		baton_counters_store(held->plan, &held->spared, held->counter,
							 &held->written);
		*written = true;
	}
	return false;
}

bool
baton_statements_capture(uint64 session)
{
	dlist_iter	iter;
	bool		changed = false;
	bool		written = false;

	/* these also change statements that were not looked up */
	if (BatonServed.notice.discards_plans ||
		(BatonServed.notice.invalidates && baton_common_lost_any()))
		baton_held_look_up_described();
	notice_reset();
	dlist_foreach(iter, &BatonPlaced.held.list)
		changed |= capture(dlist_container(HeldStatement, node, iter.cur),
						   &written);
	statements_captured(changed, written);
	return changed;
}
