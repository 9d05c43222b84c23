/*-------------------------------------------------------------------------
 *
 * statement_planning.c
 *		What is noticed while a statement is planned.
 *
 * Whether the planner has executed a function of a user's that is called
 * immutable: what that read, placeholders above all, is in the plan then
 * (statement_environment.c).  And what a custom plan teaches of the next one
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

#include "statement_environment.h"
#include "statement_held.h"
#include "statement_names.h"
#include "statement_planning.h"
#include "statement_sparing.h"
#include "statement_values.h"

static int	planning = 0;		/* calls of the planner, nested */
static bool folded = false;		/* it has executed an immutable function */

void
baton_planning_function(Oid function)
{
	if (planning > 0 && function >= FirstNormalObjectId &&
		func_volatile(function) == PROVOLATILE_IMMUTABLE)
		folded = true;
}

PlannedStmt *
baton_planning_run(Query *parse, const char *query_string, int cursor_options,
				   ParamListInfo parameters, planner_hook_type planner)
{
	PlannedStmt *result;
	bool		folded_before = folded;
	bool		learns;
	bool		alike;

	baton_environment_look_at_role();
	learns = planning == 0 && parameters != NULL && baton_sparing_asks(query_string);
	alike = learns && baton_values_are_indifferent(parse);
	baton_names_in_transaction();
	folded = false;
	planning++;
	PG_TRY();
	{
		result = planner(parse, query_string, cursor_options, parameters);
		if (folded && parameters == NULL)
			baton_held_folds(query_string);
		if (learns)
			baton_sparing_learn(query_string, alike, result);
	}
	PG_FINALLY();
	{
		planning--;
		folded = folded_before;
	}
	PG_END_TRY();
	return result;
}
