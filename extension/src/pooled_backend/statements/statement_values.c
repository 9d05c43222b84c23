/*-------------------------------------------------------------------------
 *
 * statement_values.c
 *		Statements that are planned alike whatever values they are given.
 *
 * The server plans a prepared statement anew for each of its first five
 * executions (choose_custom_plan, plancache.c), to learn what plans for the values at
 * hand cost.  Of many statements one can know beforehand that each of these
 * plans is the generic one: those that look rows up by a unique key, or merely store
 * their parameters.  For them the plan that the backend has is used at once, and
 * counted as what it stands for (statement_counters.c).
 *
 * When a value cannot matter (15 to 18; checked in the files named).  A
 * parameter may stand only where its value is not estimated with:
 *	- in the target list, or in what is returned, below built-in operators and
 *	  functions that return one row; not where rows are sorted or grouped by it.
 *	- in the WHERE clause as "column = parameter", where a unique index has this
 *	  column alone: then var_eq_const() and var_eq_non_const() (selfuncs.c)
 *	  both say one row (has_unique_index, plancat.c), and look at no statistics.
 *	  The column stands in no other condition, so that no condition on another
 *	  column is derived from it (equivclass.c).
 * And nothing of the column's table makes a plan from a constant: no partial index
 * (predtest.c), no partitions or children (partprune.c), no extended statistics
 * (mcv.c), no constraint exclusion, no row security; nor may any hook of
 * the planner's, or of the estimates, be another library's.
 *
 * NULL differs, since "= NULL" is folded to false; see docs/limits.md.
 *
 * What is not understood here is planned as ever.
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
#include "nodes/nodeFuncs.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"
#include "statement_values.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/selfuncs.h"
#include "utils/syscache.h"

/* How far a plan's cost may be from another's that is the same. */
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

/* Walker: counts all parameters; true if there is one of another kind. */
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

/* Parameters of an expression that is only computed. */
static int
stored_parameters(const Node *node)
{
	List	   *arguments;
	ListCell   *cell;
	int			count = 0;

	if (node == NULL)
		return 0;
	if (is_external_parameter(node))
		return 1;
	if (IsA(node, RelabelType))
		return stored_parameters((const Node *) ((const RelabelType *) node)->arg);
	if (IsA(node, OpExpr))
	{
		const OpExpr *operator = (const OpExpr *) node;

		if (operator->opno >= FirstUnpinnedObjectId || operator->opretset)
			return 0;
		arguments = operator->args;
	}
	else if (IsA(node, FuncExpr))
	{
		const FuncExpr *function = (const FuncExpr *) node;

		if (function->funcid >= FirstUnpinnedObjectId || function->funcretset)
			return 0;
		arguments = function->args;
	}
	else
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

/* Walker: true if a condition has a column of a join, which may be any. */
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
		/* a whole row has it, too */
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

/* What get_relation_info() (plancat.c) would take for a unique index of it. */
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

static const Node *
without_relabel(const Node *node)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (const Node *) ((const RelabelType *) node)->arg;
	return node;
}

/* Parameters that a key is compared with, in conditions that all must hold. */
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

/* Nobody but the server has a say in plans? */
static bool
planner_is_plain(void)
{
	return constraint_exclusion != CONSTRAINT_EXCLUSION_ON &&
		get_relation_info_hook == NULL && get_relation_stats_hook == NULL &&
		get_index_stats_hook == NULL && set_rel_pathlist_hook == NULL &&
		set_join_pathlist_hook == NULL && join_search_hook == NULL &&
		create_upper_paths_hook == NULL;
}

/* Of tables and their joins alone, without anything above? */
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
	/* as cached_plan_cost() (plancache.c) has it */
	plans->cost = plans->run_cost +
		1000.0 * cpu_operator_cost * (list_length(planned->rtable) + 1);
}

bool
baton_values_fit(const CustomPlans *plans, double generic_cost)
{
	return fabs(generic_cost - plans->run_cost) <= SAME_COST * (1 + plans->run_cost);
}
