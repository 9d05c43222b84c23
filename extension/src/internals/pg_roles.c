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

#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/amapi.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

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
 * Decision: the constraints of domains are dropped when the session changes
 * (pg_catalogs.c).  Of relations, those with such an expression in their
 * entries are dropped when the authenticated user changes; a walk through the
 * relation cache finds them.  The work is bounded by what the process has
 * used.  The catalogs are not read: any role that may create a table can make
 * the expressions in them arbitrarily many and long.  All this is done only if
 * a user's function has been looked up or executed since the last walk: no
 * function is inlined, or executed for its constant result, without that
 * (pg_baton.c).  The inlined bodies of the server's own functions are no
 * secret, and each role may write them itself.
 *
 * SET ROLE and SECURITY DEFINER give sessions of one authenticated user
 * different roles.  An expression is evaluated where rows are written, so
 * before a statement that writes the role in force is compared with the roles
 * under which earlier sessions have looked up a function that not every role
 * may execute.  If they differ, or roles or functions have changed since, the
 * relations are dropped as well.  Most installations have no such function
 * that can be inlined or folded.  Within one session nothing is dropped, as in
 * stock.  A command that evaluates expressions as a table's owner (REINDEX) may
 * still have an expression that was planned for another role.
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

/*
 * The roles for which an entry may have been planned that contains a function
 * which not every role may execute: of the session in place, and of earlier
 * ones.
 */
typedef struct Roles
{
	Oid			role;			/* InvalidOid: none */
	bool		several;
} Roles;

static Roles own_roles;
static Roles earlier_roles;
static uint64 rights_as_of;		/* changes of rights before they were noted */

/* Functions that do not depend on the role, by OID, as of a count of changes. */
static struct
{
	Oid			function;
	uint64		as_of;
}			harmless[64];

static void
add_role(Roles *roles, Oid role)
{
	if (OidIsValid(roles->role) && roles->role != role)
		roles->several = true;
	roles->role = role;
}

/* Counts changes that may have taken a right to execute a function. */
static uint64
rights_changes(void)
{
	return baton_catalog_changed(BATON_CATALOG_ROLES) +
		baton_catalog_changed(BATON_CATALOG_FUNCTIONS);
}

/* Is EXECUTE granted to PUBLIC? */
static bool
all_may_execute(HeapTuple function)
{
	bool		is_default;
	Datum		datum = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_proacl, &is_default);
	Acl		   *acl;
	AclItem    *items;
	bool		found = false;

	if (is_default)
		return true;
	acl = DatumGetAclPCopy(datum);
	/* ACL_DAT(), without its mixture of signs: one dimension, no nulls */
	items = (AclItem *) ((char *) acl + ARR_OVERHEAD_NONULLS(1));
	for (int i = 0; i < ACL_NUM(acl); i++)
		if (items[i].ai_grantee == ACL_ID_PUBLIC &&
			(ACLITEM_GET_PRIVS(items[i]) & ACL_EXECUTE) != 0)
			found = true;
	pfree(acl);
	return found;
}

/*
 * May the planner put the function into an expression, depending on the role?
 * It copies only functions in SQL, and executes only immutable ones
 * (simplify_function, clauses.c).
 */
static bool
depends_on_role(Oid function)
{
	int			place = function % lengthof(harmless);
	uint64		changes = baton_catalog_changed(BATON_CATALOG_FUNCTIONS);
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		depends;

	if (harmless[place].function == function && harmless[place].as_of == changes)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	depends = (form->prolang == SQLlanguageId || form->provolatile == PROVOLATILE_IMMUTABLE) &&
		!all_may_execute(tuple);
	ReleaseSysCache(tuple);
	if (!depends)
	{
		harmless[place].function = function;
		harmless[place].as_of = changes;
	}
	return depends;
}

void
baton_role_caches_function(Oid function)
{
	if (function < FirstNormalObjectId)
		return;
	functions_used = true;
	if (!depends_on_role(function))
		return;
	if (!OidIsValid(own_roles.role) && !OidIsValid(earlier_roles.role))
		rights_as_of = rights_changes();
	add_role(&own_roles, GetUserId());
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

/* Returns false if some are in use, and keep their expressions. */
static bool
forget_expressions(void)
{
	HASH_SEQ_STATUS walk;
	RelIdCacheEnt *entry;
	List	   *relations = NIL;
	ListCell   *cell;
	bool		all = true;

	hash_seq_init(&walk, relation_cache);
	while ((entry = hash_seq_search(&walk)) != NULL)
	{
		Relation	relation = entry->reldesc;

		/* no catalog has any */
		if (entry->reloid < FirstNormalObjectId)
			continue;
		if (relation->rd_indexprs != NIL || relation->rd_indpred != NIL ||
			relation->rd_partkey != NULL || relation->rd_partcheck != NIL)
		{
			relations = lappend_oid(relations, entry->reloid);
			all &= relation->rd_refcnt == 0;
		}
	}

	/*
	 * not during the walk: an invalidation may remove more than the walk's
	 * current entry
	 */
	foreach(cell, relations)
		RelationCacheInvalidateEntry(lfirst_oid(cell));
	list_free(relations);
	return all;
}

void
baton_role_caches_forget(void)
{
	if (functions_used)
		forget_expressions();
	functions_used = false;
	memset(&own_roles, 0, sizeof(own_roles));
	memset(&earlier_roles, 0, sizeof(earlier_roles));
}

void
baton_role_caches_session_changes(void)
{
	if (OidIsValid(own_roles.role))
		add_role(&earlier_roles, own_roles.role);
	earlier_roles.several |= own_roles.several;
	memset(&own_roles, 0, sizeof(own_roles));
}

void
baton_role_caches_write(void)
{
	Oid			role = earlier_roles.role;

	if (likely(!OidIsValid(role)) ||
		(role == GetUserId() && !earlier_roles.several && rights_as_of == rights_changes()) ||
		relation_cache == NULL)
		return;
	memset(&earlier_roles, 0, sizeof(earlier_roles));
	rights_as_of = rights_changes();
	if (!forget_expressions())
	{
		/* this session has opened them, as whatever role */
		add_role(&own_roles, role);
		own_roles.several = true;
	}
}

/* ----------------------------------------------------------------
 *		Functions that the process has looked up once, and their owners.
 *
 * Problem: fmgr_info() decides whether a function has SECURITY DEFINER or SET
 * clauses, and fmgr_security_definer() notes its owner and these clauses in
 * fn_extra at the first call (fmgr.c).  The FmgrInfos of the type cache
 * (comparison, hashing, ranges; typcache.c) live as long as the process, those
 * of an index's support functions (index_getprocinfo, indexam.c) as long as
 * its entry in the relation cache.  A later session would call a function of a
 * type with the rights of its former owner.
 *
 * Decision: when a command begins, the FmgrInfos of functions that have changed
 * are filled again.  Those of the type cache are filled in place, since callers
 * keep a pointer to the entry (array_cmp, arrayfuncs.c); an index's are looked
 * up at their next use.  What fn_extra pointed to stays allocated: the
 * function may be running.
 *
 * Not done for the operators and casts of foreign keys (ri_HashCompareOp,
 * ri_triggers.c) and the support functions of partition keys (partcache.c).
 *
 * The type cache is a hash table named "Type information cache" of
 * TypeCacheEntry, and no entry is ever removed (lookup_type_cache, 15 to 18).
 */

static HTAB *type_cache = NULL;
static uint64 kept_as_of = 0;	/* a count of changes of functions */

static const char *
find_type_cache(void)
{
	TypeCacheEntry *entry = lookup_type_cache(INT4OID, 0);
	Oid			oid = INT4OID;
	HTAB	   *table = baton_hash_find("Type information cache");

	if (table == NULL || hash_search(table, &oid, HASH_FIND, NULL) != entry)
		return "the type cache is not where it is expected";
	type_cache = table;
	return NULL;
}

const char *
baton_kept_functions_attach(void)
{
	MemoryContext caller = CurrentMemoryContext;
	const char *problem;

	StartTransactionCommand();
	problem = find_type_cache();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return problem;
}

static bool
is_outdated(const FmgrInfo *info, uint64 since)
{
	return info->fn_oid >= FirstNormalObjectId &&
		baton_catalog_function_changed(info->fn_oid, since);
}

static void
fill_again(FmgrInfo *info, uint64 since)
{
	if (is_outdated(info, since) &&
		SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(info->fn_oid)))
		fmgr_info_cxt(info->fn_oid, info, CacheMemoryContext);
}

static void
renew_types(uint64 since)
{
	HASH_SEQ_STATUS walk;
	TypeCacheEntry *entry;

	hash_seq_init(&walk, type_cache);
	while ((entry = hash_seq_search(&walk)) != NULL)
	{
		fill_again(&entry->eq_opr_finfo, since);
		fill_again(&entry->cmp_proc_finfo, since);
		fill_again(&entry->hash_proc_finfo, since);
		fill_again(&entry->hash_extended_proc_finfo, since);
		fill_again(&entry->rng_cmp_proc_finfo, since);
		fill_again(&entry->rng_canonical_finfo, since);
		fill_again(&entry->rng_subdiff_finfo, since);
	}
}

/* Reads no catalog, since that may remove entries. */
static void
renew_indexes(uint64 since)
{
	HASH_SEQ_STATUS walk;
	RelIdCacheEnt *entry;

	if (relation_cache == NULL)
		return;
	hash_seq_init(&walk, relation_cache);
	while ((entry = hash_seq_search(&walk)) != NULL)
	{
		Relation	index = entry->reldesc;
		int			count;

		if (entry->reloid < FirstNormalObjectId || index->rd_supportinfo == NULL ||
			index->rd_indam == NULL)
			continue;
		count = IndexRelationGetNumberOfKeyAttributes(index) * index->rd_indam->amsupport;
		for (int i = 0; i < count; i++)
			if (is_outdated(&index->rd_supportinfo[i], since))
				index->rd_supportinfo[i].fn_oid = InvalidOid;
	}
}

void
baton_kept_functions_renew(void)
{
	uint64		since = kept_as_of;

	if (likely(since == baton_catalog_changed(BATON_CATALOG_FUNCTIONS)) ||
		type_cache == NULL || !IsTransactionState())
		return;
	/* first, for a look-up runs hooks */
	kept_as_of = baton_catalog_changed(BATON_CATALOG_FUNCTIONS);
	renew_indexes(since);
	renew_types(since);
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
