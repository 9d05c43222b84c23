/*-------------------------------------------------------------------------
 *
 * statement_planning.c
 *		What is noticed while a statement is planned.
 *
 * Whether the planner has executed a function of a user's that is called
 * immutable: what that read (a table, a placeholder, the time) is in the plan
 * then, which is for its session only.  Whether it may have copied a function in
 * SQL into the plan.  And what a custom plan teaches of the next one
 * (statement_sparing.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "utils/lsyscache.h"

#include "statement_bindings.h"
#include "statement_environment.h"
#include "statement_held.h"
#include "statement_names.h"
#include "statement_planning.h"
#include "statement_sparing.h"
#include "statement_values.h"

static int	planning = 0;		/* calls of the planner, nested */
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
	if (planning == 0 || !baton_bindings_is_users_sql(function))
		return;
	inlined = true;
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
		/* the next custom plan may hold another result of that function */
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
