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

#include "statement_counters.h"

/* The counters of a plan that was never executed (CreateCachedPlan). */
static const BatonStatementCounter fresh_counters = {-1, 0, 0, 0};

void
baton_counters_get(const CachedPlanSource *plan, BatonStatementCounter *counters)
{
	counters->generic_cost = plan->generic_cost;
	counters->total_custom_cost = plan->total_custom_cost;
	counters->num_custom_plans = plan->num_custom_plans;
	counters->num_generic_plans = plan->num_generic_plans;
}

void
baton_counters_load(CachedPlanSource *plan, uint32 counter,
					BatonStatementCounter *written)
{
	*written = counter == BATON_NO_COUNTER ? fresh_counters : *baton_counter(counter);
	plan->generic_cost = written->generic_cost;
	plan->total_custom_cost = written->total_custom_cost;
	plan->num_custom_plans = written->num_custom_plans;
	plan->num_generic_plans = written->num_generic_plans;
}

bool
baton_counters_changed(const CachedPlanSource *plan,
					   const BatonStatementCounter *written)
{
	return plan->num_custom_plans != written->num_custom_plans ||
		plan->num_generic_plans != written->num_generic_plans ||
		plan->generic_cost != written->generic_cost ||
		plan->total_custom_cost != written->total_custom_cost;
}

void
baton_counters_store(const CachedPlanSource *plan, uint32 counter,
					 BatonStatementCounter *written)
{
	baton_counters_get(plan, written);
	if (counter != BATON_NO_COUNTER)
		*baton_counter(counter) = *written;
}
