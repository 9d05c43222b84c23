/*-------------------------------------------------------------------------
 *
 * pg_plancache.c
 *		PostgreSQL's prepared statements (plancache.c, prepare.c): their parts,
 *		the table that finds them by name, and queries that are not kept.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "nodes/params.h"
#include "parser/analyze.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/syscache.h"

#include "pg_plancache.h"
#include "pg_program.h"

/* ----------------------------------------------------------------
 *		What plancache.c keeps of a prepared statement, assembled, shared and
 *		taken apart from outside.
 *
 * CachedPlanSource and CachedPlan are public (plancache.h), but only
 * plancache.c is meant to write them.  This file relies on the following, in
 * 15 to 18:
 * - SaveCachedPlan() appends to saved_plan_list; so the `next` of a newly
 *   saved plan, which is the last, is the list's head.
 * - CompleteCachedPlan() sets what baton_plan_complete() sets, and members
 *   that depend on the trees (relationOids, invalItems, search_path,
 *   rewriteRoleId, dependsOnRLS): if is_valid is false,
 *   RevalidateCachedQuery() makes these together with the trees.
 * - RevalidateCachedQuery() frees query_context before it analyses again; if
 *   there is none it frees nothing.
 * - The trees lie in query_context, with what depends on them.
 * - BuildCachedPlan() copies query_list before planning.
 * - References to a generic plan are counted (refcount), and the last one
 *   frees it (ReleaseCachedPlan); `generation` is the plan source's own count
 *   of what it has planned.
 * - DropCachedPlan() frees the plan's context, and releases its reference to
 *   the generic plan.
 * - SPI_keepplan() (spi.c) saves the plan sources of a plan; SPI_freeplan()
 *   drops them with the plan.
 * - A function that finds is_valid false makes the trees, or the plan, anew,
 *   under the locks of that moment.
 */

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
	 * and examines nothing else; QueryRewrite() does not change it.
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
 * The struct keeps its address, because others point to it (postgres.c to the
 * unnamed statement's), and with it its context, its place in the list of
 * saved plans, and its callbacks.  What it refers to from now on lies in a
 * context below its own, where the result of an earlier call is deleted.  What
 * it was created with stays in its own context until the plan is dropped.
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
 * Does the plan contain functions of users, which may have been inlined?  The
 * planner records each (record_plan_function_dependency, setrefs.c), and
 * checks the caller's privilege only when it inlines one (inline_function,
 * clauses.c).
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

/* As PlanCacheRoleCallback(), in releases in which plancache.c has it. */
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
 * SPI_keepplan() saves each plan source of the plan, and SPI_freeplan()
 * removes them from the list: so all are found before any is freed.
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

		/* another of its sources has been handled already */
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

/* ----------------------------------------------------------------
 *		The table of prepared statements, replaced by one that calls back at
 *		each look-up.
 *
 * prepare.c keeps its statements in one hash table.  The table's handle is a
 * static variable that is set once and never changed.  So the handle's
 * address can be found, and the struct HTAB that it points to can be
 * overwritten: an HTAB contains only values and pointers (dynahash.c, struct
 * HTAB), everything else lies in the memory context that its hcxt names.  It
 * is overwritten with a table of pg_baton, which has pg_baton's hash
 * function. hash_search() (dynahash.c) calls that function with the name
 * before it uses any other part of the table, so a statement can be entered
 * just then.  Every look-up, entry and removal of a statement goes that way
 * (FetchPreparedStatement, StorePreparedStatement and DropPreparedStatement,
 * prepare.c).  Only pg_prepared_statement() and DropAllPreparedStatements()
 * walk the table, and both are known beforehand.  The table itself never
 * calls the function again: elements keep their hash value (expand_table).
 *
 * Relied on, in 15 to 18, and checked by baton_table_attach() before use:
 * - the handle, and sizeof(HTAB), are found as described in pg_program.c.
 * - InitQueryHashTable() (prepare.c) uses the name "Prepared Queries", keys
 *   of NAMEDATALEN bytes compared as strings, entries of PreparedStatement.
 *
 * A walk returns entries by hash value, then in the order of their entry; the
 * number of buckets depends on the greatest number of entries that a table
 * has had.  So a session's listing has the same order as on a direct
 * connection if its table begins like that one's, which baton_table_refresh()
 * ensures.
 */

#define TABLE_NAME "Prepared Queries"

/* As in InitQueryHashTable(). */
#define TABLE_INITIAL_ELEMENTS 32

static HTAB *prepare_handle = NULL; /* the HTAB that prepare.c's static
									 * variable points to */
static HTAB *own = NULL;		/* the table that it is a copy of; needed to
								 * destroy it */
static Size htab_size = 0;
static BatonStatementWanted wanted_callback = NULL;
static char last_probe[NAMEDATALEN];	/* used while the table is being
										 * tested */

static uint32
hash_name(const void *key, Size key_size)
{
	uint32		hash = string_hash(key, key_size);

	if (wanted_callback != NULL)
		wanted_callback((const char *) key, hash);
	return hash;
}

/* As in dynahash.c for HASH_STRINGS. */
static int
compare_names(const void *one, const void *other, Size key_size)
{
	return strncmp(one, other, key_size - 1);
}

static void *
copy_name(void *to, const void *from, Size key_size)
{
	strlcpy(to, from, key_size);
	return to;
}

/* Puts a new table in place of prepare.c's. */
static void
begin_table(void)
{
	HASHCTL		control;
	HTAB	   *before = own;

	control.keysize = NAMEDATALEN;
	control.entrysize = sizeof(PreparedStatement);
	control.hash = hash_name;
	control.match = compare_names;
	control.keycopy = copy_name;
	control.hcxt = TopMemoryContext;
	own = hash_create("pg_baton prepared statements", TABLE_INITIAL_ELEMENTS, &control,
					  HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_KEYCOPY |
					  HASH_CONTEXT);
	memcpy(prepare_handle, own, htab_size);
	if (before != NULL)
		hash_destroy(before);
}

static void
note_probe(const char *name, uint32 hash)
{
	strlcpy(last_probe, name, NAMEDATALEN);
}

static bool
probed(const char *name)
{
	bool		result = strcmp(last_probe, name) == 0;

	last_probe[0] = '\0';
	return result;
}

/* Has prepare.c store a statement without text, which needs no catalog. */
static void
store_probe(const char *name)
{
	CachedPlanSource *plan = CreateCachedPlan(NULL, "", CMDTAG_UNKNOWN);

	CompleteCachedPlan(plan, NIL, NULL, NULL, 0, NULL, NULL, 0, true);
	StorePreparedStatement(name, plan, false);
}

/* Does prepare.c use the table, and does that call back? */
static bool
check_table(void)
{
	const char *name = "pg_baton probe";
	PreparedStatement *found;
	uint32		hash = string_hash(name, NAMEDATALEN);
	bool		asks;

	store_probe(name);
	asks = probed(name);
	found = FetchPreparedStatement(name, false);
	asks &= probed(name);
	if (found == NULL || found != baton_table_find(name, hash) ||
		hash_get_num_entries(own) != 1)
		return false;
	DropPreparedStatement(name, false);
	asks &= probed(name);
	return asks && baton_table_find(name, hash) == NULL;
}

const char *
baton_table_attach(BatonStatementWanted wanted)
{
	if (prepare_handle != NULL)
		return NULL;			/* done before */
	htab_size = baton_hash_header_size();
	if (htab_size == 0)
		return "a hash table's handle does not lie before its name";

	/* make prepare.c create its own table, and find that */
	store_probe("pg_baton probe 0");
	DropPreparedStatement("pg_baton probe 0", true);
	prepare_handle = baton_hash_find(TABLE_NAME);
	if (prepare_handle == NULL)
		return "the table of prepared statements was not found";
	if (hash_get_num_entries(prepare_handle) != 0)
		return "there are prepared statements already";

	begin_table();
	wanted_callback = note_probe;
	if (!check_table())
		return "the table of prepared statements cannot be replaced";
	wanted_callback = wanted;
	return NULL;
}

PreparedStatement *
baton_table_find(const char *name, uint32 hash)
{
	return hash_search_with_hash_value(prepare_handle, name, hash, HASH_FIND, NULL);
}

void
baton_table_enter(const char *name, uint32 hash, CachedPlanSource *plan,
				  bool from_sql, TimestampTz prepare_time)
{
	PreparedStatement *statement = hash_search_with_hash_value(prepare_handle, name, hash,
															   HASH_ENTER, NULL);

	statement->plansource = plan;
	statement->from_sql = from_sql;
	statement->prepare_time = prepare_time;
}

void
baton_table_remove(const char *name, uint32 hash)
{
	hash_search_with_hash_value(prepare_handle, name, hash, HASH_REMOVE, NULL);
}

void
baton_table_refresh(int names)
{
	Assert(hash_get_num_entries(prepare_handle) == 0);
	if (names > TABLE_INITIAL_ELEMENTS)
		begin_table();
}

/* ----------------------------------------------------------------
 *		Queries that are analysed, run and not kept.
 *
 * The meaning of the names in a kept query is recorded when it is analysed,
 * by a walk through its tree.  Most queries are not kept.  The data that they
 * are analysed with distinguishes them (15 to 18 were read):
 * - The statements of a Query message have no hook for parameters, no portal
 *   is active, and the text is the message itself: it lies in MessageContext
 *   (PostgresMain, exec_simple_query in postgres.c).  The text of a kept
 *   statement, which is analysed again when it is bound, lies in the memory
 *   of its plan source (CreateCachedPlan in plancache.c; exec_bind_message).
 *   Parse and PREPARE have the hook for variable parameters
 *   (parse_analyze_varparams).
 * - plpgsql's EXECUTE ...  USING has the hook of a list of values
 *   (paramlist_parser_setup in params.c): SPI makes a plan that it does not
 *   save (SPI_execute_extended, SPI_cursor_parse_open in spi.c).
 */

/*
 * The hook of paramlist_parser_setup(), which is static; obtained by calling
 * that function.
 */
static ParseParamRefHook
list_hook(void)
{
	static ParseParamRefHook hook = NULL;

	if (hook == NULL)
	{
		ParseState *pstate = make_parsestate(NULL);
		ParamListInfo list = makeParamList(0);

		list->parserSetup(pstate, list->parserSetupArg);
		hook = pstate->p_paramref_hook;
		free_parsestate(pstate);
		pfree(list);
	}
	return hook;
}

bool
baton_analysed_for_once(const ParseState *pstate)
{
	if (pstate->p_paramref_hook != NULL)
		return pstate->p_paramref_hook == list_hook();
	return ActivePortal == NULL && debug_query_string != NULL &&
		pstate->p_sourcetext == debug_query_string &&
		GetMemoryChunkContext(unconstify(char *, debug_query_string)) == MessageContext;
}
