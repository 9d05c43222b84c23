/*-------------------------------------------------------------------------
 *
 * role_caches.c
 *		What PostgreSQL's caches hold of one role's rights, forgotten for another's.
 *
 * Problem: where the planner puts the body of a function in SQL in the place of a call,
 * it checks EXECUTE for the role that plans (inline_function, clauses.c), and nothing
 * checks it again.  The caches of the process that hold such expressions know no role:
 * index expressions and predicates, partition keys (relcache.c, partcache.c) and
 * constraints of domains (typcache.c).  Statements and functions are told apart by role
 * (statement_environment.c, function_environment.c).
 *
 * Decision: they are dropped when the authenticated user changes.  Of relations those
 * whose expressions call any function of a user's; the list is read from the catalogs,
 * and again once an index or a partitioned table has changed.
 *
 * What PostgreSQL 15 to 18 guarantee: RelationCacheInvalidateEntry() removes an entry
 * that is not in use, as a message of an invalidation would.  A cast of PL/pgSQL's
 * (get_cast_hashentry, pl_exec.c), which is kept as well, has nothing inlined: its argument
 * is a CaseTestExpr (inline_function).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_index.h"
#include "catalog/pg_partitioned_table.h"
#include "nodes/nodeFuncs.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "catalog_age.h"
#include "role_caches.h"

static bool attached = false;
static MemoryContext memory = NULL;
static List *relations = NIL;	/* whose expressions call users' functions */
static bool relations_known = false;

static void
forget_relations(Datum argument, int cache, uint32 hash)
{
	relations_known = false;
}

void
baton_role_caches_attach(void)
{
	if (attached)
		return;
	attached = true;
	memory = AllocSetContextCreate(TopMemoryContext, "pg_baton role caches",
								   ALLOCSET_SMALL_SIZES);
	CacheRegisterSyscacheCallback(INDEXRELID, forget_relations, (Datum) 0);
	CacheRegisterSyscacheCallback(PARTRELID, forget_relations, (Datum) 0);
}

/* ---- relations ----------------------------------------------------------- */

static bool
is_users(Oid function, void *context)
{
	return function >= FirstNormalObjectId;
}

static bool
calls_users(Node *node, void *context)
{
	if (node == NULL)
		return false;
	return check_functions_in_node(node, is_users, context) ||
		expression_tree_walker(node, calls_users, context);
}

static bool
tree_calls_users(HeapTuple tuple, TupleDesc description, AttrNumber attribute)
{
	bool		is_null;
	Datum		tree = heap_getattr(tuple, attribute, description, &is_null);

	return !is_null && calls_users(stringToNode(TextDatumGetCString(tree)), NULL);
}

static void
add_relation(Oid relation)
{
	MemoryContext caller = MemoryContextSwitchTo(memory);

	relations = lappend_oid(relations, relation);
	MemoryContextSwitchTo(caller);
}

static void
read_indexes(void)
{
	Relation	catalog = table_open(IndexRelationId, AccessShareLock);
	TupleDesc	description = RelationGetDescr(catalog);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (tree_calls_users(tuple, description, Anum_pg_index_indexprs) ||
			tree_calls_users(tuple, description, Anum_pg_index_indpred))
			add_relation(((Form_pg_index) GETSTRUCT(tuple))->indexrelid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static void
read_partitioned_tables(void)
{
	Relation	catalog = table_open(PartitionedRelationId, AccessShareLock);
	TupleDesc	description = RelationGetDescr(catalog);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (tree_calls_users(tuple, description, Anum_pg_partitioned_table_partexprs))
			add_relation(((Form_pg_partitioned_table) GETSTRUCT(tuple))->partrelid);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static void
forget_expressions(void)
{
	ListCell   *cell;

	if (!relations_known)
	{
		MemoryContextReset(memory);
		relations = NIL;
		/* what is heard of meanwhile makes it unknown again */
		relations_known = true;
		read_indexes();
		read_partitioned_tables();
	}
	foreach(cell, relations)
		RelationCacheInvalidateEntry(lfirst_oid(cell));
}

void
baton_role_caches_forget(void)
{
	forget_expressions();
	baton_catalog_forget_domains();
}
