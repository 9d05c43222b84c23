/*-------------------------------------------------------------------------
 *
 * statement_sparing.c
 *		Custom plans that need not be made.
 *
 * The server plans a prepared statement anew for its first five executions
 * (choose_custom_plan, plancache.c); with many sessions of many statements each,
 * that is most of what a backend does for the first minutes.  If all these plans
 * would be the generic plan (statement_values.c), that one is executed, and
 * counted as custom plans of the cost that one of them was seen to have.
 *
 * The plan's counters are then such that the server chooses its generic plan.
 * Whoever looks at them, at the choice, or changes what it depends on, is
 * preceded by baton_sparing_end(), which puts the session's own into their place:
 * listing (pg_prepared_statements), EXPLAIN EXECUTE, settings, the session's own
 * DDL.  Not preceded is what another library logs of executions, as auto_explain.
 *
 * A statement that a session prepares here is analysed by the server, and found
 * to be one of those kept only if its trees are equal: a table may have been made
 * since that hides the one meant before.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "plan_source.h"
#include "pooled_state.h"
#include "statement_description.h"
#include "statement_environment.h"
#include "statement_sparing.h"

void
baton_sparing_begin(CachedPlanSource *plan, HeldStatement *held,
					const CommonStatement *common)
{
	if (!common->custom.alike || !common->plan->is_valid || !plan->is_valid ||
		BatonPlaced.environment.epoch == 0 ||
		plan_cache_mode != PLAN_CACHE_MODE_AUTO || BatonServed.notice.discards_plans)
		return;
	baton_counters_spare(plan, &held->spared, common->custom.cost);
	BatonPlaced.held.spared++;
}

void
baton_sparing_find_twin(HeldStatement *held, bool from_sql)
{
	CachedPlanSource *plan = held->plan;
	MemoryContext caller;
	StringInfoData value;
	CommonStatement *common;

	if (BatonPlaced.environment.epoch == 0 || plan->num_params == 0 || !plan->is_valid ||
		!baton_statement_is_describable(plan))
		return;

	/* what the context gets, if nothing changes it */
	caller = MemoryContextSwitchTo(BatonPlaced.held.memory);
	initStringInfo(&value);
	baton_statement_describe(&value, plan, from_sql);
	MemoryContextSwitchTo(caller);
	held->value = value.data;
	held->value_length = value.len;

	common = baton_common_find(value.data, value.len, held->environment);
	if (common == NULL || !common->custom.alike || !common->plan->is_valid ||
		!equal(plan->query_list, common->plan->query_list))
		return;
	held->twin = common;
	if (common->plan->gplan != NULL && common->plan->gplan->is_valid &&
		plan->gplan == NULL)
	{
		baton_plan_share_generic(common->plan, plan);
		baton_plan_set_generic_cost(plan, common->generic_cost);
		held->own_generation = plan->gplan->generation;
	}
	baton_sparing_begin(plan, held, common);
}

bool
baton_sparing_asks(const char *query_string)
{
	const HeldStatement *held = BatonPlaced.held.last;

	if (held == NULL || held->plan == NULL || held->plan->query_string != query_string ||
		held->custom.known || list_length(held->plan->query_list) != 1 ||
		BatonPlaced.environment.epoch == 0 || held->epoch != BatonPlaced.environment.epoch)
		return false;
	return held->common == NULL || !held->common->custom.known;
}

void
baton_sparing_learn(const char *query_string, bool alike, const PlannedStmt *planned)
{
	CustomPlans *custom;

	if (!baton_sparing_asks(query_string))
		return;
	custom = &BatonPlaced.held.last->custom;
	custom->known = true;
	custom->alike = alike;
	if (alike)
		baton_values_set_costs(custom, planned);
}

void
baton_sparing_end(void)
{
	dlist_iter	iter;

	if (BatonPlaced.held.spared == 0)
		return;
	BatonPlaced.held.spared = 0;
	dlist_foreach(iter, &BatonPlaced.held.list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan != NULL)
			baton_counters_end_sparing(held->plan, &held->spared);
	}
}
