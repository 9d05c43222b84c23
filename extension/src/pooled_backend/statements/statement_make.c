/*-------------------------------------------------------------------------
 *
 * statement_make.c
 *		Making a prepared statement from its description.
 *
 * A statement is described by what plancache.c needs to analyse it again, and
 * by what it must not forget when it does: text, place in the text, parameter
 * types, options, and the description of its result.  Analysis itself is left
 * to plancache.c: a statement is made *invalid*, and RevalidateCachedQuery()
 * (plancache.c) analyses it when it is first used, under the locks, snapshot,
 * role and search_path of that moment.  That is what the server does with any
 * statement after an invalidation message, so the client gets the server's own
 * errors, "cached plan must not change result type" included, and statements
 * that are never used here cost a raw parse only.
 *
 * Two things are not as after an invalidation:
 *	- Statements that need no parse analysis (stmt_requires_parse_analysis())
 *	  are never revalidated, so their one Query node is made here.
 *	- A literal is read when its statement is analysed: '1/2/2020'::date by the
 *	  DateStyle of that moment.  So a text that holds a literal is described
 *	  with the settings it was analysed under, and its first analysis here is done
 *	  under these (statement_settings.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "parser/analyze.h"
#include "statement_description.h"
#include "statement_make.h"
#include "statement_settings.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/memutils.h"

/*
 * Completes a plan without analysis: what CompleteCachedPlan() fills in,
 * valid only if it is of a kind that is never revalidated.
 */
static void
complete(CachedPlanSource *plan, const Description *description)
{
	MemoryContext caller = MemoryContextSwitchTo(plan->context);
	const DescriptionHead *head = &description->head;

	plan->param_types = NULL;
	if (head->parameters > 0)
	{
		plan->param_types = palloc(head->parameters * sizeof(Oid));
		memcpy(plan->param_types, description->parameter_types,
			   head->parameters * sizeof(Oid));
	}
	plan->num_params = head->parameters;
	plan->parserSetup = NULL;
	plan->parserSetupArg = NULL;
	plan->cursor_options = head->cursor_options;
	plan->fixed_result = (head->flags & STATEMENT_FIXED_RESULT) != 0;
	plan->resultDesc = description->result == NULL ? NULL :
		CreateTupleDescCopy(description->result);
	if (description->result != NULL)
		for (int i = 0; i < description->result->natts; i++)
			memcpy(TupleDescAttr(plan->resultDesc, i),
				   TupleDescAttr(description->result, i),
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
													 description->parameter_types,
													 head->parameters, NULL);
		plan->query_context = AllocSetContextCreate(plan->context, "CachedPlanQuery",
													ALLOCSET_START_SMALL_SIZES);
		MemoryContextSwitchTo(plan->query_context);
		plan->query_list = copyObject(queries);
		plan->is_valid = true;
	}
	plan->is_complete = true;
	MemoryContextSwitchTo(caller);
}

CachedPlanSource *
baton_statement_make(const char *value, Size length, bool *from_sql)
{
	Description description;
	RawStmt    *tree = NULL;
	CachedPlanSource *plan;
	Quiet		quiet;

	if (!baton_statement_understand(&description, value, length))
		return NULL;
	*from_sql = (description.head.flags & STATEMENT_FROM_SQL) != 0;

	if ((description.head.flags & STATEMENT_EMPTY) == 0)
	{
		tree = baton_statement_parse(&description);
		if (tree == NULL)
			return NULL;
	}
	plan = CreateCachedPlan(tree, description.text,
							tree == NULL ? CMDTAG_UNKNOWN : CreateCommandTag(tree->stmt));
	baton_quiet_begin(&quiet);
	PG_TRY();
	{
		complete(plan, &description);
	}
	PG_FINALLY();
	{
		baton_quiet_end(&quiet);
	}
	PG_END_TRY();
	baton_settings_attach(plan, &description);
	return plan;
}

bool
baton_statement_refill(CachedPlanSource *plan, const char *value, Size length)
{
	CachedPlanSource *made;
	dlist_node	node = plan->node;
	MemoryContext context = plan->context;
	bool		from_sql;

	made = baton_statement_make(value, length, &from_sql);
	if (made == NULL)
		return false;

	/*
	 * The struct stays where it is, because postgres.c points to it, and with
	 * it its context, its place in the list of saved plans, and its
	 * callbacks. What it refers to from now on lies in a context below its
	 * own, where what it was turned into before is deleted; what it was made
	 * with stays in its own context until the plan is dropped.
	 */
	if (plan->gplan != NULL)
	{
		CachedPlan *generic = plan->gplan;

		plan->gplan = NULL;
		ReleaseCachedPlan(generic, NULL);
	}
	MemoryContextDeleteChildren(context);
	MemoryContextSetParent(made->context, context);
	memcpy(plan, made, sizeof(CachedPlanSource));
	plan->context = context;
	plan->node = node;
	plan->is_saved = true;
	MemoryContextSetIdentifier(context, plan->query_string);
	return true;
}
