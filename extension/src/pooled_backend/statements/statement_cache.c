/*-------------------------------------------------------------------------
 *
 * statement_cache.c
 *		The prepared statements that a backend keeps, each once by content, and
 *		whether their plans depend on values.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "common/hashfn.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "parser/parsetree.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/selfuncs.h"
#include "utils/syscache.h"

#include "arena.h"
#include "majors.h"
#include "pg_plancache.h"
#include "pooled_state.h"
#include "statement_cache.h"
#include "statement_description.h"

/* ----------------------------------------------------------------
 *		Statements whose plan does not depend on the parameter values.
 *
 * The server plans a prepared statement anew for each of its first five
 * executions (choose_custom_plan, plancache.c), to learn what plans for the
 * actual values cost. Of many statements it is known beforehand that each of
 * these plans equals the generic one: statements that look rows up by a unique
 * key, or merely store their parameters. For them the plan that the backend
 * has is used at once, and counted as the custom plans that it replaces
 * (session_statements.c).
 *
 * When a value cannot matter (15 to 18; checked in the files named). A
 * parameter may stand only where its value is not used for an estimate:
 * - in the target list, or in what is returned, below built-in operators and
 *   functions that return one row; not where rows are sorted or grouped by it.
 *   Nor may the planner compute such a function from constants and parameters
 *   alone (evaluate_function, clauses.c) if that may fail: the server reports
 *   the error ("value too long") even if no row is found, and before
 *   anything is executed.
 * - in the WHERE clause as "column = parameter", where a unique index has this
 *   column alone: then var_eq_const() and var_eq_non_const() (selfuncs.c) both
 *   estimate one row (has_unique_index, plancat.c), and look at no statistics.
 *   The column stands in no other condition, so that no condition on another
 *   column is derived from it (equivclass.c).
 *
 * Nothing of the column's table may make a plan from a constant: no partial
 * index (predtest.c), no partitions or children (partprune.c), no extended
 * statistics (mcv.c), no constraint exclusion, no row security; nor may
 * another library have a hook of the planner or of the estimates.
 *
 * NULL differs, since "= NULL" is folded to false; see docs/limits.md.
 *
 * Statements that this code does not understand are planned as usual.
 * ----------------------------------------------------------------
 */

/* Largest relative difference between the costs of equal plans. */
#define SAME_COST 0.01

/* Occurrences of a column in the conditions of a query. */
typedef struct ColumnCount
{
	const Query *query;
	int			relation;
	AttrNumber	column;
	int			found;
} ColumnCount;

static bool
is_external_parameter(const Node *node)
{
	return IsA(node, Param) && ((const Param *) node)->paramkind == PARAM_EXTERN;
}

static const Node *
without_relabel(const Node *node)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (const Node *) ((const RelabelType *) node)->arg;
	return node;
}

/*
 * Walker: counts all parameters; returns true if there is one of another kind.
 */
static bool
count_parameters(Node *node, int *count)
{
	if (node == NULL)
		return false;
	if (IsA(node, Param))
	{
		(*count)++;
		return !is_external_parameter(node);
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, count_parameters, count, 0);
	return expression_tree_walker(node, count_parameters, count);
}

/*
 * Does this immutable function accept every value? These convert a number to a
 * type that holds it.
 */
static bool
never_fails(Oid function)
{
	switch (function)
	{
		case F_INT4_INT2:
		case F_INT8_INT2:
		case F_INT8_INT4:
		case F_FLOAT4_INT2:
		case F_FLOAT4_INT4:
		case F_FLOAT4_INT8:
		case F_FLOAT8_INT2:
		case F_FLOAT8_INT4:
		case F_FLOAT8_INT8:
		case F_FLOAT8_FLOAT4:
		case F_NUMERIC_INT2:
		case F_NUMERIC_INT4:
		case F_NUMERIC_INT8:
			return true;
		default:
			return false;
	}
}

/*
 * Is it a function of the server's own that returns one row, and that the
 * planner only computes or leaves alone? It copies the body of one in SQL, and
 * may compute one that is not strict although another argument is NULL.
 */
static bool
is_understood(Oid function)
{
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		result;

	if (function >= FirstUnpinnedObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	result = !form->proretset && form->proisstrict && form->prolang != SQLlanguageId;
	ReleaseSysCache(tuple);
	return result;
}

/* The function, and its arguments, that an expression calls, or InvalidOid. */
static Oid
called(const Node *node, List **arguments)
{
	*arguments = NIL;
	if (IsA(node, OpExpr))
	{
		*arguments = ((const OpExpr *) node)->args;
		return get_opcode(((const OpExpr *) node)->opno);
	}
	if (IsA(node, FuncExpr))
	{
		*arguments = ((const FuncExpr *) node)->args;
		return ((const FuncExpr *) node)->funcid;
	}
	return InvalidOid;
}

/* Is the expression a constant in a custom plan (evaluate_function, clauses.c)? */
static bool
is_folded(const Node *node)
{
	List	   *arguments;
	ListCell   *cell;
	Oid			function;

	node = without_relabel(node);
	if (IsA(node, Const) || is_external_parameter(node))
		return true;
	function = called(node, &arguments);
	if (!OidIsValid(function) || func_volatile(function) != PROVOLATILE_IMMUTABLE)
		return false;
	foreach(cell, arguments)
		if (!is_folded(lfirst(cell)))
		return false;
	return true;
}

/*
 * Counts the parameters of an expression that is only computed, without those
 * whose values may raise an error when the planner computes it.
 */
static int
stored_parameters(const Node *node)
{
	List	   *arguments;
	ListCell   *cell;
	Oid			function;
	int			count = 0;

	if (node == NULL)
		return 0;
	node = without_relabel(node);
	if (is_external_parameter(node))
		return 1;
	function = called(node, &arguments);
	if (!OidIsValid(function) || !is_understood(function) ||
		(is_folded(node) && !never_fails(function)))
		return 0;
	foreach(cell, arguments)
		count += stored_parameters(lfirst(cell));
	return count;
}

static int
stored_in_list(const List *targets)
{
	ListCell   *cell;
	int			count = 0;

	foreach(cell, targets)
	{
		const TargetEntry *target = lfirst_node(TargetEntry, cell);

		if (target->ressortgroupref == 0)
			count += stored_parameters((const Node *) target->expr);
	}
	return count;
}

/*
 * Walker: returns true if a condition has a column of a join, which may be
 * any.
 */
static bool
count_column(Node *node, ColumnCount *count)
{
	if (node == NULL)
		return false;
	if (IsA(node, Var))
	{
		const Var  *column = (const Var *) node;

		if (column->varlevelsup != 0 ||
			rt_fetch(column->varno, count->query->rtable)->rtekind != RTE_RELATION)
			return true;
		/* a whole row contains it, too */
		if (column->varno == count->relation &&
			(column->varattno == count->column || column->varattno == 0))
			count->found++;
		return false;
	}
	return expression_tree_walker(node, count_column, count);
}

static bool
is_in_one_condition(const Query *query, const Var *column)
{
	ColumnCount count = {query, column->varno, column->varattno, 0};

	if (count_column((Node *) query->jointree, &count))
		return false;
	return count.found == 1;
}

/* Would get_relation_info() (plancat.c) find a unique index of this column? */
static bool
is_unique_in(Relation relation, AttrNumber column)
{
	List	   *indexes = RelationGetIndexList(relation);
	ListCell   *cell;
	bool		unique = false;
	bool		partial = false;

	foreach(cell, indexes)
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID,
											ObjectIdGetDatum(lfirst_oid(cell)));
		Form_pg_index index;

		if (!HeapTupleIsValid(tuple))
		{
			partial = true;
			break;
		}
		index = (Form_pg_index) GETSTRUCT(tuple);
		if (!heap_attisnull(tuple, Anum_pg_index_indpred, NULL))
			partial = true;
		else if (index->indisunique && index->indisvalid && !index->indcheckxmin &&
				 index->indnkeyatts == 1 && index->indkey.values[0] == column)
			unique = true;
		ReleaseSysCache(tuple);
	}
	list_free(indexes);
	return unique && !partial;
}

static bool
is_key(const Query *query, const Var *column)
{
	const RangeTblEntry *table = rt_fetch(column->varno, query->rtable);
	Relation	relation;
	List	   *statistics;
	bool		result;

	relation = table_open(table->relid, NoLock);
	statistics = RelationGetStatExtList(relation);
	result = !relation->rd_rel->relhassubclass && !relation->rd_rel->relispartition &&
		!relation->rd_rel->relrowsecurity && statistics == NIL &&
		is_unique_in(relation, column->varattno);
	list_free(statistics);
	table_close(relation, NoLock);
	return result;
}

/*
 * Counts the parameters that a key is compared with, in conditions that must
 * all hold.
 */
static int
compared_parameters(const Query *query, const Node *condition)
{
	const OpExpr *operator;
	const Node *one;
	const Node *other;
	const Var  *column;

	if (condition == NULL)
		return 0;
	if (IsA(condition, BoolExpr) && ((const BoolExpr *) condition)->boolop == AND_EXPR)
	{
		ListCell   *cell;
		int			count = 0;

		foreach(cell, ((const BoolExpr *) condition)->args)
			count += compared_parameters(query, lfirst(cell));
		return count;
	}
	if (!IsA(condition, OpExpr))
		return 0;
	operator = (const OpExpr *) condition;
	if (operator->opno >= FirstUnpinnedObjectId || list_length(operator->args) != 2 ||
		get_oprrest(operator->opno) != F_EQSEL)
		return 0;
	one = without_relabel(linitial(operator->args));
	other = without_relabel(lsecond(operator->args));
	if (is_external_parameter(one))
	{
		const Node *parameter = one;

		one = other;
		other = parameter;
	}
	if (!IsA(one, Var) || !is_external_parameter(other))
		return 0;
	column = (const Var *) one;
	return column->varattno > 0 && is_in_one_condition(query, column) &&
		is_key(query, column) ? 1 : 0;
}

/* Does only the server influence plans? */
static bool
planner_is_plain(void)
{
	return constraint_exclusion != CONSTRAINT_EXCLUSION_ON &&
		get_relation_info_hook == NULL && get_relation_stats_hook == NULL &&
		get_index_stats_hook == NULL && set_rel_pathlist_hook == NULL &&
		set_join_pathlist_hook == NULL && join_search_hook == NULL &&
		create_upper_paths_hook == NULL;
}

/* Does the query consist of tables and joins only, with nothing above them? */
static bool
is_plain(const Query *query)
{
	ListCell   *cell;

	if (query->commandType != CMD_SELECT && query->commandType != CMD_INSERT &&
		query->commandType != CMD_UPDATE && query->commandType != CMD_DELETE)
		return false;
	if (query->hasSubLinks || query->hasTargetSRFs || query->cteList != NIL ||
		query->setOperations != NULL || query->onConflict != NULL)
		return false;
	foreach(cell, query->rtable)
	{
		const RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

		if (entry->rtekind != RTE_JOIN &&
			(entry->rtekind != RTE_RELATION || entry->relkind != RELKIND_RELATION ||
			 entry->securityQuals != NIL || entry->tablesample != NULL))
			return false;
	}
	return true;
}

bool
baton_values_are_indifferent(const Query *query)
{
	int			all = 0;

	if (!planner_is_plain() || !is_plain(query) ||
		query_tree_walker(unconstify(Query *, query), count_parameters, &all, 0))
		return false;
	return all == stored_in_list(query->targetList) +
		stored_in_list(query->returningList) +
		compared_parameters(query, query->jointree->quals);
}

void
baton_values_set_costs(CustomPlans *plans, const PlannedStmt *planned)
{
	plans->run_cost = planned->planTree->total_cost;
	/* as cached_plan_cost() (plancache.c) computes it */
	plans->cost = plans->run_cost +
		1000.0 * cpu_operator_cost * (list_length(planned->rtable) + 1);
}

bool
baton_values_fit(const CustomPlans *plans, double generic_cost)
{
	return fabs(generic_cost - plans->run_cost) <= SAME_COST * (1 + plans->run_cost);
}

/* ----------------------------------------------------------------
 *		The prepared statements that a backend keeps, each once by content.
 *
 * A common statement is a saved plan of plancache.c (CachedPlanSource) that is
 * never executed itself. It holds what is costly: the raw parse tree, the
 * analysed query trees, and a reference to the generic plan. A session that
 * looks the statement up gets a small plan of its own, which refers to all
 * that (session_statements.c). What this plan acquires, by analysis or
 * planning, goes to the common statement when the session leaves. Because they
 * are saved, common statements receive invalidations whether a session has
 * them or not.
 *
 * Invariants: a common statement changes only when a session leaves, and is
 * dropped only while nothing refers to it; the map holds exactly those in the
 * list.
 * ----------------------------------------------------------------
 */

typedef struct CommonEntry
{
	const CommonKey *key;		/* the statement's */
	uint32		hash;
	char		status;
} CommonEntry;

static inline bool
same_key(const CommonKey *one, const CommonKey *other)
{
	return baton_same_environment(one->environment, other->environment) && one->length == other->length &&
		memcmp(one->value, other->value, one->length) == 0;
}

#define SH_PREFIX common
#define SH_ELEMENT_TYPE CommonEntry
#define SH_KEY_TYPE const CommonKey *
#define SH_KEY key
#define SH_HASH_KEY(tb, key) ((key)->hash ^ (uint32) (key)->environment.number ^ (key)->environment.role)
#define SH_EQUAL(tb, a, b) same_key(a, b)
#define SH_SCOPE static inline
#define SH_USE_NONDEFAULT_ALLOCATOR
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) ((a)->hash)
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

BATON_MAP_ALLOCATOR(common)

/* The statement that an entry meant last time: equal serial, equal content. */
typedef struct EntryMemo
{
	uint64		serial;
	StatementEnvironment environment;
	uint64		drops;			/* as of then: if equal, nothing has been
								 * dropped since */
	CommonStatement *common;
} EntryMemo;

#define ENTRY_MEMOS 1024

static common_hash *map = NULL;
static dlist_head by_use = DLIST_STATIC_INIT(by_use);
static dlist_head new_ones = DLIST_STATIC_INIT(new_ones);
static uint64 drops = 0;
static EntryMemo *memos = NULL;

void
baton_common_attach(void)
{
	if (map != NULL)
		return;
	memos = MemoryContextAllocZero(TopMemoryContext, ENTRY_MEMOS * sizeof(EntryMemo));
	map = common_create(TopMemoryContext, 64, NULL);
}

static void
set_new(CommonStatement *common, bool is_new)
{
	if (common->is_new == is_new)
		return;
	common->is_new = is_new;
	if (is_new)
		dlist_push_head(&new_ones, &common->new_node);
	else
		dlist_delete(&common->new_node);
}

static void
drop(CommonStatement *common)
{
	Assert(common->pins == 0);
	drops++;
	set_new(common, false);
	common_delete(map, &common->key);
	dlist_delete(&common->use_node);
	DropCachedPlan(common->plan);
}

/*
 * The least recently used statement that no session has; NULL: there is none.
 */
static CommonStatement *
oldest(void)
{
	dlist_iter	iter;

	if (map == NULL)
		return NULL;
	dlist_reverse_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		if (common->pins == 0)
			return common;
	}
	return NULL;
}

uint64
baton_common_oldest(void)
{
	CommonStatement *common = oldest();

	return common == NULL ? 0 : common->last_use;
}

Size
baton_common_drop_oldest(void)
{
	CommonStatement *common = oldest();
	Size		bytes;

	if (common == NULL)
		return 0;
	bytes = baton_plan_bytes(common->plan, 1);
	drop(common);
	return bytes;
}

/* It is used: moves it to the head of the list. */
static void
note_use(CommonStatement *common)
{
	common->last_use = ++BatonSelf.memory.uses;
	dlist_move_head(&by_use, &common->use_node);
}

static void
set_key(CommonKey *key, const char *value, uint32 length, StatementEnvironment environment)
{
	key->environment = environment;
	key->value = value;
	key->length = length;
	key->hash = hash_bytes((const unsigned char *) value, length);
}

static CommonStatement *
find(const CommonKey *key)
{
	CommonEntry *entry = common_lookup(map, key);

	return entry == NULL ? NULL :
		unconstify(CommonStatement *, (const CommonStatement *)
				   ((const char *) entry->key - offsetof(CommonStatement, key)));
}

/* Adds a statement, which is allocated in its plan's context. */
static CommonStatement *
add(CachedPlanSource *plan, const CommonKey *key)
{
	CommonStatement *common = MemoryContextAllocZero(plan->context,
													 sizeof(CommonStatement));
	char	   *value = MemoryContextAlloc(plan->context, key->length);
	bool		found;

	memcpy(value, key->value, key->length);
	common->key = *key;
	common->key.value = value;
	common->plan = plan;
	common->generic_cost = -1;
	common->names = baton_names_collect(plan);
	set_new(common, true);
	common_insert(map, &common->key, &found);
	Assert(!found);
	dlist_push_head(&by_use, &common->use_node);
	note_use(common);
	return common;
}

static CommonStatement *
find_or_make(const char *value, uint32 length, StatementEnvironment environment)
{
	CommonKey	key;
	CommonStatement *common;
	CachedPlanSource *plan;
	bool		from_sql;

	set_key(&key, value, length, environment);
	common = find(&key);
	if (common != NULL)
		return common;
	plan = baton_statement_make(value, length, &from_sql);
	if (plan == NULL)
		return NULL;
	baton_settings_make_common(plan);
	common = add(plan, &key);
	SaveCachedPlan(plan);
	return common;
}

void
baton_common_analysed(CommonStatement *common, uint64 session)
{
	common->analyst = session;
	common->custom.known = common->custom.alike = false;
	baton_names_analysed(common->names);
	set_new(common, true);
}

/* An object was made that it may mean: it must be analysed again. */
static void
invalidate(CommonStatement *common)
{
	CachedPlanSource *plan = common->plan;

	if (plan->raw_parse_tree == NULL ||
		!stmt_requires_parse_analysis(plan->raw_parse_tree))
		return;					/* it is never analysed
								 * (statement_description.c) */
	baton_plan_invalidate(plan);
}

void
baton_common_object_made(uint32 hash)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		if (common->plan->is_valid && baton_names_hidden_by(common->names, hash))
			invalidate(common);
	}
}

/* Statements that are not valid become new again when they are. */
static void
look_at_new_ones(void)
{
	while (!dlist_is_empty(&new_ones) && baton_names_can_look())
	{
		CommonStatement *common = dlist_head_element(CommonStatement, new_node, &new_ones);

		if (common->plan->is_valid && baton_names_look_at(common->names, common->plan))
			invalidate(common);
		set_new(common, false);
	}
}

BATON_STOP_POINT CommonStatement *
baton_common_get(const BatonStored *entry, StatementEnvironment environment, uint64 session)
{
	EntryMemo  *memo = &memos[entry->serial % ENTRY_MEMOS];

	baton_names_look_up_functions();
	look_at_new_ones();
	if (memo->serial != entry->serial || !baton_same_environment(memo->environment, environment) ||
		memo->drops != drops || memo->common == NULL)
	{
		/* it is parsed, so from a copy */
		char	   *value = baton_entry_copy_value(entry);

		memo->common = find_or_make(value, entry->value_length, environment);
		pfree(value);
		if (memo->common == NULL)
			return NULL;
		memo->serial = entry->serial;
		memo->environment = environment;
		memo->drops = drops;
	}
	/* a time that was read belongs to its session alone */
	if (memo->common->analyst != session && memo->common->plan->is_valid &&
		baton_names_moment(memo->common->names))
		invalidate(memo->common);
	note_use(memo->common);
	return memo->common;
}

CommonStatement *
baton_common_find(const char *value, uint32 length, StatementEnvironment environment)
{
	CommonKey	key;

	look_at_new_ones();
	set_key(&key, value, length, environment);
	return find(&key);
}

CommonStatement *
baton_common_keep(CachedPlanSource *plan, const char *value, uint32 length,
				  StatementEnvironment environment)
{
	CommonKey	key;
	CommonStatement *common;

	set_key(&key, value, length, environment);
	if (find(&key) != NULL)
		return NULL;
	baton_settings_make_common(plan);
	common = add(plan, &key);
	if (plan->gplan != NULL)
		common->generic_cost = plan->generic_cost;
	return common;
}

void
baton_common_watch(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		common->watched = common->plan->is_valid &&
			baton_statement_has_settings(common->key.value, common->key.length);
	}
}

static inline bool
is_lost(const CommonStatement *common)
{
	return common->watched && !common->plan->is_valid;
}

bool
baton_common_lost_any(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
		if (is_lost(dlist_container(CommonStatement, use_node, iter.cur)))
		return true;
	return false;
}

/* In whatever environment it was analysed. */
bool
baton_common_lost(const char *value, uint32 length)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
	{
		const CommonStatement *common =
		dlist_container(CommonStatement, use_node, iter.cur);

		if (is_lost(common) && common->key.length == length &&
			memcmp(common->key.value, value, length) == 0)
			return true;
	}
	return false;
}
