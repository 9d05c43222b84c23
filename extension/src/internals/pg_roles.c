/*-------------------------------------------------------------------------
 *
 * pg_roles.c
 *		PostgreSQL's authenticated user (miscinit.c, acl.c): changing it in a
 *		running backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/parallel.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "pg_catalogs.h"
#include "pg_guc.h"
#include "pg_program.h"
#include "pg_roles.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		Dropping from PostgreSQL's caches what depends on a role's rights.
 *
 * Problem: where the planner inlines a function in SQL, it checks EXECUTE for
 * the role that plans (inline_function, clauses.c), and no check follows.
 * The process's caches that hold such expressions do not distinguish roles:
 * index expressions and predicates, partition keys (relcache.c, partcache.c)
 * and constraints of domains (typcache.c).  Statements and functions are kept
 * apart by role (statement_environment.c, function_table.c).
 *
 * Decision: they are dropped when the authenticated user changes.  Of
 * relations, those with such an expression in their entries are dropped; a
 * walk through the relation cache finds them.  The work is bounded by what
 * the process has used.  The catalogs are not read: any role that may create
 * a table can make the expressions in them arbitrarily many and long.  All
 * this is done only if a user's function has been looked up or executed since
 * the last walk: no function is inlined, or executed for its constant result,
 * without that (pg_baton.c).  The inlined bodies of the server's own
 * functions are no secret, and each role may write them itself.
 *
 * What PostgreSQL 15 to 18 guarantee: the relation cache is a hash table
 * named "Relcache by OID" of RelIdCacheEnt (relcache.c), which is found as
 * described in pg_program.c and compared with what RelationIdGetRelation()
 * returns.  RelationCacheInvalidateEntry() removes an entry that is not in
 * use, as an invalidation message would.  A partition's constraint
 * (rd_partcheck) is a copy of its parent's key, in an entry of its own.  A
 * cast of PL/pgSQL's (get_cast_hashentry, pl_exec.c), which is kept as well,
 * has nothing inlined: its argument is a CaseTestExpr (inline_function).
 */

/* As in relcache.c. */
typedef struct RelIdCacheEnt
{
	Oid			reloid;
	Relation	reldesc;
} RelIdCacheEnt;

static HTAB *relation_cache = NULL;

/* May an entry contain a user's function? */
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
	 * not during the walk: an invalidation may remove more than the walk's
	 * current entry
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

/* ----------------------------------------------------------------
 *		Changing the authenticated user in a running backend.
 *
 * Problem: InitializeSessionUserId() (miscinit.c) sets AuthenticatedUserId
 * once, at a backend's start.  SET SESSION AUTHORIZATION does not change it.
 * It determines which roles that command permits, what RESET returns to, and
 * MyProc->roleId.
 *
 * What PostgreSQL guarantees: a parallel worker takes over its leader's user
 * by SetAuthenticatedUserId() (miscinit.c; ParallelWorkerMain in parallel.c),
 * which only sets that variable and MyProc->roleId; in 15 and 16 the
 * superuser's flag, too.  The rest of InitializeSessionUserId() is
 * SetConfigOption() of session_authorization with PGC_S_OVERRIDE, which
 * replaces a value and a reset value of that source, and pushes no stack
 * entry (makeDefault in set_config_option).  Its check hook (variable.c, 15
 * to 18) finds the role by its name; but while InitializingParallelWorker is
 * set it uses the state of the process, without reading catalogs, since a
 * leader's role may have been renamed or dropped.  SetAuthenticatedUserId()
 * came with 15.9, 16.5 and 17.1; in earlier releases a backend has one role
 * for life.
 *
 * Decision: these two functions are called, as in a parallel worker, and not
 * InitializeSessionUserId(), since its login checks (rolcanlogin,
 * rolconnlimit) are FATAL.  The session has logged in: on the server's own
 * port it would not be checked again, whatever has become of its role, and
 * session_authorization and is_superuser stay what they were at its login.
 *
 * Builds with assertions need AuthenticatedUserId to be invalid before.  The
 * variable is static; GetAuthenticatedUserId() loads it, and the first load
 * relative to the instruction pointer in its code is that load.  The address
 * is used only if it lies in the server's data and the function returns what
 * is written there.
 *
 * docs/design/roles.md lists what else belongs to a role.
 */

/* SetAuthenticatedUserId(), which some releases lack. */
static void *set_authenticated_user = NULL;

#ifdef USE_ASSERT_CHECKING

static Oid *authenticated_user = NULL;

/* mov register, [rip + offset]: opcode 8b, mod 00, r/m 101 */
static Oid *
variable_loaded_by(const uint8 *code)
{
#if defined(__x86_64__)
	for (int i = 0; i < 48; i++)
	{
		int32		offset;

		if (code[i] != 0x8b || (code[i + 1] & 0xc7) != 0x05)
			continue;
		memcpy(&offset, code + i + 2, sizeof(offset));
		return (Oid *) (code + i + 2 + sizeof(offset) + offset);
	}
#endif
	return NULL;
}

static bool
is_authenticated_user(Oid *variable)
{
	BatonProgramData data;
	Oid			before = GetAuthenticatedUserId();
	bool		follows;

	if (variable == NULL || !baton_program_data(&data) ||
		(uintptr_t) variable < data.start || (uintptr_t) (variable + 1) > data.end ||
		*variable != before)
		return false;
	*variable = before ^ 1;
	follows = GetAuthenticatedUserId() == (before ^ 1);
	*variable = before;
	return follows;
}

static const char *
find_authenticated_user(void)
{
	Oid		   *variable = variable_loaded_by((const uint8 *) GetAuthenticatedUserId);

	if (!is_authenticated_user(variable))
		return "the authenticated user is not where it is expected";
	authenticated_user = variable;
	return NULL;
}

static void
forget_authenticated_user(void)
{
	if (authenticated_user == NULL)
		elog(FATAL, "the authenticated user cannot be changed in this process");
	*authenticated_user = InvalidOid;
}

#else

static const char *
find_authenticated_user(void)
{
	return NULL;
}

static void
forget_authenticated_user(void)
{
}

#endif

bool
baton_roles_can_change(void)
{
	return dlsym(RTLD_DEFAULT, "SetAuthenticatedUserId") != NULL &&
		!baton_self_check_is_broken("roles") &&
		!baton_self_check_has_failed(BATON_COSTS_ROLES) &&
		!baton_self_check_has_failed(BATON_COSTS_POOLING);
}

const char *
baton_role_switch_attach(void)
{
	set_authenticated_user = dlsym(RTLD_DEFAULT, "SetAuthenticatedUserId");
	if (set_authenticated_user == NULL)
		return "the authenticated user cannot be set in this minor release";
	return find_authenticated_user();
}

void
baton_role_switch(Oid role, const char *name, bool is_superuser)
{
	const BatonGucIdentity identity = {.role = role,.superuser = is_superuser};

	Assert(!OidIsValid(GetCurrentRoleId()));

	forget_authenticated_user();
#if PG_VERSION_NUM >= 170000
	((void (*) (Oid)) set_authenticated_user) (role);
#else
	((void (*) (Oid, bool)) set_authenticated_user) (role, is_superuser);
#endif
	baton_guc_set_session_user(&identity);
	baton_guc_override_identity(name, &identity);
}

bool
baton_role_is_in_force(Oid role)
{
	return GetAuthenticatedUserId() == role && GetSessionUserId() == role &&
		GetOuterUserId() == role && GetUserId() == role && MyProc->roleId == role;
}
