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
 * Decision: they are dropped when the authenticated user changes.  Of relations those whose
 * entries hold any such expression, found by a walk through the relation cache.  The work is
 * bounded by what the process has used.  The catalogs are not read: the expressions in them
 * are as many and as long as any role that may create a table likes.  Only if a user's
 * function has been looked up or executed since the last walk: none has been inlined, or
 * executed for its constant result, without that (hooks.c).  What the server's own functions
 * are inlined to is no secret, and each role may write it itself.
 *
 * What PostgreSQL 15 to 18 guarantee: the relation cache is a hash table named "Relcache by
 * OID" of RelIdCacheEnt (relcache.c), which is found as hash_table.c says and compared with
 * what RelationIdGetRelation() returns.  RelationCacheInvalidateEntry() removes an entry
 * that is not in use, as a message of an invalidation would.  A partition's constraint
 * (rd_partcheck) is a copy of its parent's key, in an entry of its own.  A cast of PL/pgSQL's
 * (get_cast_hashentry, pl_exec.c), which is kept as well, has nothing inlined: its argument
 * is a CaseTestExpr (inline_function).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_class.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "catalog_age.h"
#include "hash_table.h"
#include "role_caches.h"

/* As relcache.c has it. */
typedef struct RelIdCacheEnt
{
	Oid			reloid;
	Relation	reldesc;
} RelIdCacheEnt;

static HTAB *relation_cache = NULL;

/* A user's function may be in what an entry holds. */
static bool functions_used = true;

void
baton_role_caches_function(Oid function)
{
	if (function >= FirstNormalObjectId)
		functions_used = true;
}

static bool
is_relation_cache(HTAB *table)
{
	Oid			oid = RelationRelationId;
	RelIdCacheEnt *entry;
	Relation	relation;
	bool		is_it;

	relation = RelationIdGetRelation(oid);
	entry = hash_search(table, &oid, HASH_FIND, NULL);
	is_it = entry != NULL && entry->reloid == oid && entry->reldesc == relation;
	RelationClose(relation);
	return is_it;
}

const char *
baton_role_caches_attach(void)
{
	HTAB	   *table;

	if (relation_cache != NULL)
		return NULL;			/* done before */
	table = baton_hash_find("Relcache by OID");
	if (table == NULL || !is_relation_cache(table))
		return "the relation cache is not where it is expected";
	relation_cache = table;
	return NULL;
}

static void
forget_expressions(void)
{
	HASH_SEQ_STATUS walk;
	RelIdCacheEnt *entry;
	List	   *relations = NIL;
	ListCell   *cell;

	hash_seq_init(&walk, relation_cache);
	while ((entry = hash_seq_search(&walk)) != NULL)
	{
		Relation	relation = entry->reldesc;

		/* no catalog has any */
		if (entry->reloid < FirstNormalObjectId)
			continue;
		if (relation->rd_indexprs != NIL || relation->rd_indpred != NIL ||
			relation->rd_partkey != NULL || relation->rd_partcheck != NIL)
			relations = lappend_oid(relations, entry->reloid);
	}

	/*
	 * not in the walk, of which more than the entry it has come to may be
	 * removed
	 */
	foreach(cell, relations)
		RelationCacheInvalidateEntry(lfirst_oid(cell));
	list_free(relations);
}

void
baton_role_caches_forget(void)
{
	if (functions_used)
		forget_expressions();
	functions_used = false;
	baton_catalog_forget_domains();
}
