/*-------------------------------------------------------------------------
 *
 * catalog_age.c
 *		When catalogs changed that PostgreSQL's caches do not follow.
 *
 * plancache.c, namespace.c and PL/pgSQL keep what depends on these catalogs and
 * register for the invalidation of others only, since a session is expected to
 * end soon.  A backend of the pool does not, so it counts their changes, and
 * whoever keeps something for several sessions compares.
 *
 * Every change of a row of a catalog is told for each cache of that catalog
 * (PrepareToInvalidateCacheTuple, catcache.c), so one cache of each is enough.
 * inval.c has 64 places for callbacks (MAX_SYSCACHE_CALLBACKS, 15 to 18), and
 * FATAL beyond; the server takes some 35 of them, so no catalog is here whose
 * changes reset all plans anyway (InitPlanCache: namespaces, operators, foreign
 * servers).
 *
 * Role memberships decide which schemas of search_path count
 * (recomputeNamespacePath, namespace.c), but up to 16 only a change of pg_authid
 * or pg_namespace makes namespace.c look again; and which policies a statement
 * was rewritten with (check_role_for_policy, rowsecurity.c), which plancache.c
 * follows in the latest minor releases only (PlanCacheRoleCallback in 17.11 and
 * 18.6, not in 15.18).  Both are done here in all releases.  Nothing makes
 * plancache.c follow who may execute a function that was inlined.
 *
 * The constraints of a domain are planned once (load_domaintype_info, typcache.c):
 * what a user's immutable function returned, and the body of one in SQL, is in them
 * until a constraint changes.  They are planned in a memory context that is named
 * after them (15 to 18), so it is seen whether the planner has executed or copied a
 * function then.  Once it has, any function that changes is taken to be one that it
 * called.
 *
 * A default_text_search_config that stands in the configuration file is looked up
 * by the search path of whoever uses it first, and kept (getTSCurrentConfig,
 * ts_cache.c); SET and ALTER ROLE ... SET keep it with its schema.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "tsearch/ts_cache.h"
#include "utils/guc.h"
#if PG_VERSION_NUM >= 160000
#include "utils/guc_hooks.h"
#endif
#include "utils/inval.h"
#include "utils/syscache.h"

#include "catalog_age.h"
#include "plan_source.h"

static uint64 age = 0;
static uint64 changed[BATON_CATALOGS];
static uint32 database_hash = 0;
static bool attached = false;
static void (*watcher) (BatonCatalog catalog, uint32 hash) = NULL;
static bool domains_hold_functions = false; /* what one returned, or its body */

static void
note_change(Datum argument, int cache, uint32 hash)
{
	BatonCatalog catalog = (BatonCatalog) DatumGetInt32(argument);

	/* of databases only the owner of this one counts; 0 means all rows */
	if (cache == DATABASEOID && hash != 0 && hash != database_hash)
		return;
	if (watcher != NULL)
		watcher(catalog, hash);
	if (catalog == BATON_CATALOG_FUNCTIONS)
	{
		changed[catalog]++;
		if (domains_hold_functions)
			CallSyscacheCallbacks(CONSTROID, 0);
		return;
	}
	changed[catalog] = ++age;
	if (catalog == BATON_CATALOG_ROLES)
	{
		assign_search_path(namespace_search_path, NULL);
		baton_plan_roles_change(cache == AUTHMEMROLEMEM);
	}
}

void
baton_catalog_age_attach(void)
{
	static const struct
	{
		int			cache;
		BatonCatalog catalog;
	}			watched[] = {
		{AUTHOID, BATON_CATALOG_ROLES},
		{AUTHMEMROLEMEM, BATON_CATALOG_ROLES},
		{DATABASEOID, BATON_CATALOG_ROLES},
		{CASTSOURCETARGET, BATON_CATALOG_CASTS},
		{ENUMOID, BATON_CATALOG_ENUMS},
		{CLAOID, BATON_CATALOG_OPCLASSES},
		{TSCONFIGOID, BATON_CATALOG_TEXT_SEARCH},
		{TSCONFIGMAP, BATON_CATALOG_TEXT_SEARCH},
		{TSDICTOID, BATON_CATALOG_TEXT_SEARCH},
		{COLLOID, BATON_CATALOG_COLLATIONS},
		{PROCOID, BATON_CATALOG_FUNCTIONS},
	};

	MemoryContext caller = CurrentMemoryContext;

	if (attached)
		return;
	attached = true;
	/* the cache may have to be made, from its catalog */
	StartTransactionCommand();
	database_hash = GetSysCacheHashValue1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	for (int i = 0; i < (int) lengthof(watched); i++)
		CacheRegisterSyscacheCallback(watched[i].cache, note_change,
									  Int32GetDatum(watched[i].catalog));
}

uint64
baton_catalog_age(void)
{
	return age;
}

void
baton_catalog_age_watch(void (*changes) (BatonCatalog catalog, uint32 hash))
{
	watcher = changes;
}

void
baton_catalog_age_function(Oid function)
{
	if (domains_hold_functions || !attached || function < FirstNormalObjectId)
		return;
	for (MemoryContext context = CurrentMemoryContext; context != NULL; context = context->parent)
		if (context->name[0] == 'D' && strcmp(context->name, "Domain constraints") == 0)
			domains_hold_functions = true;
}

void
baton_catalog_forget_domains(void)
{
	if (domains_hold_functions)
		CallSyscacheCallbacks(CONSTROID, 0);
	domains_hold_functions = false;
}

uint64
baton_catalog_changed(BatonCatalog catalog)
{
	return changed[catalog];
}

void
baton_catalog_session_changes(void)
{
#if PG_VERSION_NUM >= 160000
	assign_default_text_search_config(TSCurrentConfig, NULL);
#else
	assign_TSCurrentConfig(TSCurrentConfig, NULL);
#endif
}
