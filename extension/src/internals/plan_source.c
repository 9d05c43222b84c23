/*-------------------------------------------------------------------------
 *
 * plan_source.c
 *		What plancache.c keeps of a prepared statement, put together, shared and
 *		taken apart by hand.
 *
 * CachedPlanSource and CachedPlan are public (plancache.h), but meant to be
 * written by plancache.c.  What is relied on, in 15 to 18:
 *	- SaveCachedPlan() appends to saved_plan_list, whose head is what a newly
 *	  saved plan, being last, has for its next.
 *	- CompleteCachedPlan() fills in no more than baton_plan_complete() does, but
 *	  for what depends on the trees (relationOids, invalItems, search_path,
 *	  rewriteRoleId, dependsOnRLS): RevalidateCachedQuery() makes these as it
 *	  makes the trees, where is_valid is false.
 *	- RevalidateCachedQuery() frees query_context before it analyses again;
 *	  where there is none it frees nothing.
 *	- The trees lie in query_context, with what depends on them.
 *	- BuildCachedPlan() copies query_list before planning.
 *	- A generic plan is counted by references (refcount), and freed with the
 *	  last (ReleaseCachedPlan); `generation` is the plan source's own count of
 *	  what it has planned.
 *	- DropCachedPlan() frees the plan's context, and gives its reference to the
 *	  generic plan back.
 *	- SPI_keepplan() (spi.c) saves the plan sources of a plan; SPI_freeplan() drops
 *	  them with the plan.
 *	- Whoever finds is_valid false makes the trees, or the plan, anew, under the
 *	  locks of that moment.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "parser/analyze.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "plan_source.h"

static dlist_node *saved_plans = NULL;	/* plancache.c's list head */

const char *
baton_plan_attach(void)
{
	CachedPlanSource *plans[2];

	if (saved_plans != NULL)
		return NULL;			/* done before */

	for (int i = 0; i < 2; i++)
	{
		plans[i] = CreateCachedPlan(NULL, "", CMDTAG_UNKNOWN);
		CompleteCachedPlan(plans[i], NIL, NULL, NULL, 0, NULL, NULL, 0, true);
		SaveCachedPlan(plans[i]);
		if (i == 0)
			saved_plans = plans[0]->node.next;
	}
	if (baton_newest_plan() != plans[1] ||
		plans[0]->node.next != &plans[1]->node ||
		plans[1]->node.next != saved_plans)
		return "the list of saved plans is not as expected";
	DropCachedPlan(plans[1]);

	/* plans[0] stays, so that the list is never empty */
	return NULL;
}

CachedPlanSource *
baton_newest_plan(void)
{
	return dlist_container(CachedPlanSource, node, saved_plans->prev);
}

void
baton_plan_complete(CachedPlanSource *plan, const Oid *parameter_types,
					int parameters, int cursor_options, bool fixed_result,
					TupleDesc result)
{
	MemoryContext caller = MemoryContextSwitchTo(plan->context);

	plan->param_types = NULL;
	if (parameters > 0)
	{
		plan->param_types = palloc(parameters * sizeof(Oid));
		memcpy(plan->param_types, parameter_types, parameters * sizeof(Oid));
	}
	plan->num_params = parameters;
	plan->parserSetup = NULL;
	plan->parserSetupArg = NULL;
	plan->cursor_options = cursor_options;
	plan->fixed_result = fixed_result;
	plan->resultDesc = result == NULL ? NULL : CreateTupleDescCopy(result);
	if (result != NULL)
		for (int i = 0; i < result->natts; i++)
			memcpy(TupleDescAttr(plan->resultDesc, i), TupleDescAttr(result, i),
				   ATTRIBUTE_FIXED_PART_SIZE);
	plan->query_list = NIL;
	plan->query_context = NULL;
	plan->is_valid = false;

	/*
	 * transformStmt() (analyze.c) wraps any other statement in a Query node
	 * and looks at nothing else; QueryRewrite() lets it be.
	 */
	if (plan->raw_parse_tree == NULL)
	{
		plan->is_valid = true;
		plan->query_context = AllocSetContextCreate(plan->context, "CachedPlanQuery",
													ALLOCSET_START_SMALL_SIZES);
	}
	else if (!stmt_requires_parse_analysis(plan->raw_parse_tree))
	{
		List	   *queries;

		MemoryContextSwitchTo(caller);
		queries = pg_analyze_and_rewrite_fixedparams(copyObject(plan->raw_parse_tree),
													 plan->query_string,
													 parameter_types, parameters, NULL);
		plan->query_context = AllocSetContextCreate(plan->context, "CachedPlanQuery",
													ALLOCSET_START_SMALL_SIZES);
		MemoryContextSwitchTo(plan->query_context);
		plan->query_list = copyObject(queries);
		plan->is_valid = true;
	}
	plan->is_complete = true;
	MemoryContextSwitchTo(caller);
}

/*
 * The struct stays where it is, because others point to it (postgres.c has the
 * unnamed statement's), and with it its context, its place in the list of saved
 * plans, and its callbacks.  What it refers to from now on lies in a context
 * below its own, where what it was turned into before is deleted; what it was
 * made with stays in its own context until the plan is dropped.
 */
void
baton_plan_become(CachedPlanSource *plan, CachedPlanSource *made)
{
	dlist_node	node = plan->node;
	MemoryContext context = plan->context;

	baton_plan_drop_generic(plan);
	MemoryContextDeleteChildren(context);
	MemoryContextSetParent(made->context, context);
	memcpy(plan, made, sizeof(CachedPlanSource));
	plan->context = context;
	plan->node = node;
	plan->is_saved = true;
	MemoryContextSetIdentifier(context, plan->query_string);
}

CachedPlanSource *
baton_plan_view(const CachedPlanSource *plan)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "CachedPlanSource",
												  ALLOCSET_START_SMALL_SIZES);
	CachedPlanSource *view = MemoryContextAlloc(context, sizeof(CachedPlanSource));

	*view = *plan;
	view->context = context;
	view->query_context = NULL;
	view->gplan = NULL;
	view->is_saved = false;
	MemoryContextSetIdentifier(context, view->query_string);
	return view;
}

void
baton_plan_give_trees(CachedPlanSource *from, CachedPlanSource *to)
{
	MemoryContext before = to->query_context;

	to->query_context = from->query_context;
	to->query_list = from->query_list;
	to->relationOids = from->relationOids;
	to->invalItems = from->invalItems;
	to->search_path = from->search_path;
	to->rewriteRoleId = from->rewriteRoleId;
	to->rewriteRowSecurity = from->rewriteRowSecurity;
	to->dependsOnRLS = from->dependsOnRLS;
	to->is_valid = true;
	MemoryContextSetParent(to->query_context, to->context);
	from->query_context = NULL;
	if (before != NULL)
		MemoryContextDelete(before);
}

void
baton_plan_share_generic(const CachedPlanSource *from, CachedPlanSource *to)
{
	CachedPlan *before = to->gplan;

	from->gplan->refcount++;
	to->gplan = from->gplan;
	if (before != NULL)
		ReleaseCachedPlan(before, NULL);
}

void
baton_plan_give_generic(const CachedPlanSource *from, CachedPlanSource *to)
{
	baton_plan_share_generic(from, to);
	to->generation = from->generation;
}

void
baton_plan_drop_generic(CachedPlanSource *plan)
{
	CachedPlan *generic = plan->gplan;

	if (generic == NULL)
		return;
	plan->gplan = NULL;
	ReleaseCachedPlan(generic, NULL);
}

void
baton_plan_invalidate_trees(CachedPlanSource *plan)
{
	plan->is_valid = false;
}

void
baton_plan_invalidate(CachedPlanSource *plan)
{
	plan->is_valid = false;
	if (plan->gplan != NULL)
		plan->gplan->is_valid = false;
}

/*
 * Does it have functions of users, which may have been inlined?  The planner
 * notes each (record_plan_function_dependency, setrefs.c), and the caller's
 * privilege only when it inlines one (inline_function, clauses.c).
 */
static bool
has_user_functions(const CachedPlan *plan)
{
	ListCell   *statement;
	ListCell   *item;

	foreach(statement, plan->stmt_list)
		foreach(item, lfirst_node(PlannedStmt, statement)->invalItems)
		if (lfirst_node(PlanInvalItem, item)->cacheId == PROCOID)
		return true;
	return false;
}

/*
 * As PlanCacheRoleCallback() does where plancache.c has it.
 */
void
baton_plan_roles_change(bool memberships)
{
	dlist_node *node;

	if (saved_plans == NULL)
		return;
	for (node = saved_plans->next; node != saved_plans; node = node->next)
	{
		CachedPlanSource *plan = dlist_container(CachedPlanSource, node, node);

		if (!plan->is_valid || plan->raw_parse_tree == NULL ||
			!stmt_requires_parse_analysis(plan->raw_parse_tree))
			continue;
		if (plan->dependsOnRLS)
			baton_plan_invalidate(plan);
		else if (plan->gplan != NULL && plan->gplan->is_valid &&
				 (plan->gplan->dependsOnRole ||
				  (memberships && has_user_functions(plan->gplan))))
			plan->gplan->is_valid = false;
	}
}

Size
baton_plan_bytes(const CachedPlanSource *plan, int references)
{
	Size		bytes = MemoryContextMemAllocated(plan->context, true);

	if (plan->gplan != NULL && plan->gplan->refcount <= references)
		bytes += MemoryContextMemAllocated(plan->gplan->context, true);
	return bytes;
}

/*
 * SPI_keepplan() saves each plan source of the plan, and SPI_freeplan() takes
 * them out of the list again: so all are found before any is freed.
 */
void
baton_plan_free_spi(bool (*is_parser) (ParserSetupHook setup),
					SPIPlanPtr *(*find) (void *argument, const void *context),
					const void *context)
{
	List	   *found = NIL;
	ListCell   *cell;
	dlist_node *node;

	for (node = saved_plans->next; node != saved_plans; node = node->next)
	{
		CachedPlanSource *plan = dlist_container(CachedPlanSource, node, node);
		SPIPlanPtr *place;

		if (plan->parserSetup == NULL || !is_parser(plan->parserSetup))
			continue;
		place = find(plan->parserSetupArg, context);
		if (place != NULL)
			found = lappend(found, place);
	}
	foreach(cell, found)
	{
		SPIPlanPtr *place = lfirst(cell);
		SPIPlanPtr	plan = *place;

		/* one of several sources has led here already */
		if (plan == NULL)
			continue;
		*place = NULL;
		SPI_freeplan(plan);
	}
	list_free(found);
}

void
baton_plan_set_parser(CachedPlanSource *plan, ParserSetupHook setup, void *argument)
{
	plan->parserSetup = setup;
	plan->parserSetupArg = argument;
}

void
baton_plan_get_counters(const CachedPlanSource *plan, BatonStatementCounter *counters)
{
	counters->generic_cost = plan->generic_cost;
	counters->total_custom_cost = plan->total_custom_cost;
	counters->num_custom_plans = plan->num_custom_plans;
	counters->num_generic_plans = plan->num_generic_plans;
}

void
baton_plan_set_counters(CachedPlanSource *plan, const BatonStatementCounter *counters)
{
	plan->generic_cost = counters->generic_cost;
	plan->total_custom_cost = counters->total_custom_cost;
	plan->num_custom_plans = counters->num_custom_plans;
	plan->num_generic_plans = counters->num_generic_plans;
}

void
baton_plan_set_generic_cost(CachedPlanSource *plan, double cost)
{
	plan->generic_cost = cost;
}
