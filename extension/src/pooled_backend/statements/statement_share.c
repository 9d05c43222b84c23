/*-------------------------------------------------------------------------
 *
 * statement_share.c
 *		What a session's statements leave behind for all.
 *
 * A session leaves its backend.  What its views (statement_held.c) have come to
 * have is handed to their common statements: query trees, a generic plan, what custom
 * plans cost.  What it has prepared itself becomes a common statement as it is.
 * But only what was made in the environment that the common statement is for:
 * trees are marked, and a generic plan is known by its number, when the
 * environment is about to change (baton_held_settle).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "plan_source.h"
#include "pooled_state.h"
#include "statement_settings.h"
#include "statement_share.h"
#include "utils/memutils.h"

const char	baton_own_trees[] = "pg_baton: own environment";

/* Is what the plan has been made into of its own environment? */
static bool
trees_are_own(const HeldStatement *held)
{
	return held->plan->query_context != NULL &&
		held->plan->query_context->ident == baton_own_trees;
}

static bool
generic_plan_is_own(const HeldStatement *held)
{
	const CachedPlan *generic = held->plan->gplan;

	return generic != NULL && generic->is_valid &&
		generic->generation == held->own_generation && !held->folds;
}

/* Hands a generic plan, and what was learnt of custom plans, to the common statement. */
static void
hand_over_plans(HeldStatement *held, CommonStatement *common)
{
	CachedPlanSource *from = held->plan;
	CachedPlanSource *plan = common->plan;

	if (held->custom.known)
		common->custom = held->custom;
	if (from->gplan != plan->gplan && generic_plan_is_own(held))
	{
		baton_plan_give_generic(from, plan);
		common->generic_cost = from->generic_cost;
		if (held->inlines)
			baton_names_inlined(common->names);
	}
	if (common->custom.alike && plan->gplan != NULL && plan->gplan->is_valid &&
		!baton_values_fit(&common->custom, common->generic_cost))
		common->custom.alike = false;
}

void
baton_share_view(HeldStatement *held)
{
	CommonStatement *common = held->common;
	CachedPlanSource *view = held->plan;
	CachedPlanSource *plan = common->plan;

	if (!view->is_valid)
		return;
	if (trees_are_own(held) && baton_settings_fit(view, plan))
	{
		baton_plan_give_trees(view, plan);
		baton_common_analysed(common, BatonPlaced.held.session);
	}
	if (view->query_context == NULL && plan->is_valid)
		hand_over_plans(held, common);
}

/*
 * What the session has prepared is kept already.  If its analysis came to another
 * result, that one is what sessions get from now on.
 */
static void
share_with(HeldStatement *held, CommonStatement *common)
{
	CachedPlanSource *plan = held->plan;
	bool		same = common->plan->is_valid &&
	equal(plan->query_list, common->plan->query_list);

	if (!same)
	{
		if (!baton_settings_fit(plan, common->plan))
		{
			baton_plan_invalidate(common->plan);
			return;
		}
		baton_plan_give_trees(plan, common->plan);
		baton_plan_drop_generic(common->plan);
		baton_common_analysed(common, BatonPlaced.held.session);
	}
	if (!same || held->twin == common)
		hand_over_plans(held, common);
}

bool
baton_share_plan(HeldStatement *held)
{
	CachedPlanSource *plan = held->plan;
	CommonStatement *common;

	if (!plan->is_valid || !trees_are_own(held))
		return false;
	if (!generic_plan_is_own(held))
		baton_plan_drop_generic(plan);
	common = baton_common_keep(plan, held->value, held->value_length,
							   held->environment);
	if (common == NULL)
	{
		share_with(held, baton_common_find(held->value, held->value_length,
										   held->environment));
		return false;
	}
	common->analyst = BatonPlaced.held.session;
	if (held->inlines && plan->gplan != NULL)
		baton_names_inlined(common->names);
	common->custom = held->custom;
	return true;
}
