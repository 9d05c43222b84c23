/*-------------------------------------------------------------------------
 *
 * statement_counters.c
 *		The counters of prepared statements, by which plancache.c chooses
 *		between custom and generic plans.
 *
 * Counters are not items, they are numbers in CONTROL that the owner of the
 * session writes.  The first ones of a statement go with its PUT; the slot
 * that the dispatcher keeps them in is known when the session comes again.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "control.h"
#include "plan_source.h"
#include "statement_counters.h"

/* The counters of a plan that was never executed (CreateCachedPlan). */
static const BatonStatementCounter fresh_counters = {-1, 0, 0, 0};

/* How many custom plans choose_custom_plan() (plancache.c) begins with. */
#define FIRST_CUSTOM_PLANS 5

void
baton_counters_get(const CachedPlanSource *plan, const SparedPlans *spared,
				   BatonStatementCounter *counters)
{
	BatonStatementCounter now;
	int64		executions;
	int64		counted;

	baton_plan_get_counters(plan, counters);
	if (spared->due == 0)
		return;

	/* executions of the generic plan stand for custom plans first of all */
	now = *counters;
	executions = now.num_generic_plans - spared->set.num_generic_plans;
	counted = Min(executions, spared->due);
	*counters = spared->own;
	counters->generic_cost = now.generic_cost;
	counters->num_custom_plans += counted +
		(now.num_custom_plans - spared->set.num_custom_plans);
	counters->total_custom_cost += counted * spared->cost +
		(now.total_custom_cost - spared->set.total_custom_cost);
	counters->num_generic_plans += executions - counted;
}

void
baton_counters_spare(CachedPlanSource *plan, SparedPlans *spared, double cost)
{
	if (spared->due > 0 || plan->num_custom_plans >= FIRST_CUSTOM_PLANS)
		return;
	spared->due = FIRST_CUSTOM_PLANS - plan->num_custom_plans;
	spared->cost = cost;
	baton_plan_get_counters(plan, &spared->own);
	/* what the choice between custom and generic plans will go by then */
	spared->set = spared->own;
	spared->set.num_custom_plans = FIRST_CUSTOM_PLANS;
	spared->set.total_custom_cost += spared->due * cost;
	baton_plan_set_counters(plan, &spared->set);
}

void
baton_counters_end_sparing(CachedPlanSource *plan, SparedPlans *spared)
{
	BatonStatementCounter counters;

	if (spared->due == 0)
		return;
	baton_counters_get(plan, spared, &counters);
	spared->due = 0;
	baton_plan_set_counters(plan, &counters);
}

void
baton_counters_load(CachedPlanSource *plan, uint32 counter,
					BatonStatementCounter *written)
{
	*written = counter == BATON_NO_COUNTER ? fresh_counters : *baton_counter(counter);
	baton_plan_set_counters(plan, written);
}

bool
baton_counters_changed(const CachedPlanSource *plan, const SparedPlans *spared,
					   const BatonStatementCounter *written)
{
	BatonStatementCounter counters;

	baton_counters_get(plan, spared, &counters);
	return counters.num_custom_plans != written->num_custom_plans ||
		counters.num_generic_plans != written->num_generic_plans ||
		counters.generic_cost != written->generic_cost ||
		counters.total_custom_cost != written->total_custom_cost;
}

void
baton_counters_store(const CachedPlanSource *plan, const SparedPlans *spared,
					 uint32 counter, BatonStatementCounter *written)
{
	baton_counters_get(plan, spared, written);
	if (counter != BATON_NO_COUNTER)
		*baton_counter(counter) = *written;
}
