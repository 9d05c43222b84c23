/*-------------------------------------------------------------------------
 *
 * called_functions.c
 *		The functions that a call by name may mean.
 *
 * A call means another function when one of its name is made, replaced, renamed or
 * moved in a schema where it is looked for, and may do so when one of that name goes that
 * was not chosen (func_select_candidate(), parse_func.c: a candidate of
 * another type category keeps unknown literals from being resolved).
 * plancache.c follows the function that was chosen, and no other.
 *
 * An invalidation of PROCNAMEARGSNSP has the arguments in its hash, so it tells no
 * name.  That of PROCOID tells the OID (name_hash.c).  So a changed function is
 * known by its OID at once, and by its name and schema as soon as a transaction can
 * look it up.  What a function that has gone, or has another name now, was called
 * cannot be looked up: so what is kept has the OIDs of those that competed with
 * the chosen one when the call was analysed.
 *
 * They are looked up as a query is analysed and noted here, by the chosen
 * function and the search path, until what is kept of the query takes them over.  With
 * too many of them all are forgotten; who asks then must take any function for one.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "common/hashfn.h"
#include "utils/catcache.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "called_functions.h"
#include "name_hash.h"

#define CHANGED_MAX 4096
#define NOTED_MAX 1024
#define COMPETITORS_MAX 64

/* Of the hashes of OIDs. */
#define OID_SALT 0x51ED270B

typedef struct CalledKey
{
	Oid			function;
	uint32		path;			/* hash of the schemas */
} CalledKey;

typedef struct Called
{
	CalledKey	key;
	uint64		age;			/* changes there had been */
	BatonCompetitors competitors;
} Called;

static MemoryContext noted_context = NULL;
static HTAB *noted = NULL;

/* Those that have changed and are to be looked up. */
static Oid	changed[CHANGED_MAX];
static int	changed_count = 0;
static bool changed_too_many = false;
static uint64 age = 0;

static void
forget_all(void)
{
	HASHCTL		control;

	MemoryContextReset(noted_context);
	control.keysize = sizeof(CalledKey);
	control.entrysize = sizeof(Called);
	control.hcxt = noted_context;
	noted = hash_create("pg_baton called functions", 64, &control,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
baton_called_attach(void)
{
	noted_context = AllocSetContextCreate(TopMemoryContext, "pg_baton called functions",
										  ALLOCSET_DEFAULT_SIZES);
	forget_all();
}

static uint32
hash_of(const char *name, Oid schema)
{
	return baton_name_hash(RELNAMENSP, name, schema) ^ BATON_FUNCTION_SALT;
}

bool
baton_called_changed(uint32 invalidation, uint32 *hash)
{
	Oid			function;

	age++;
	*hash = invalidation ^ OID_SALT;
	if (!baton_name_hash_oid(invalidation, &function) || function < FirstNormalObjectId)
		return false;
	if (changed_count > 0 && changed[changed_count - 1] == function)
		return true;
	if (changed_count == CHANGED_MAX)
		changed_too_many = true;
	else
		changed[changed_count++] = function;
	return true;
}

bool
baton_called_any_changed(void)
{
	return changed_count > 0;
}

bool
baton_called_name_changed(BatonFunctionNamed named)
{
	bool		all_known = true;

	/* a look-up may take in further changes */
	for (int i = 0; i < changed_count && !changed_too_many; i++)
	{
		HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(changed[i]));
		Form_pg_proc form;

		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_proc) GETSTRUCT(tuple);
		/* which is looked into though search_path does not name it */
		if (form->pronamespace == PG_CATALOG_NAMESPACE)
			all_known = false;
		named(hash_of(NameStr(form->proname), form->pronamespace));
		ReleaseSysCache(tuple);
	}
	all_known &= !changed_too_many;
	changed_count = 0;
	changed_too_many = false;
	return all_known;
}

void
baton_called_list(BatonCompetitors *competitors, const char *name,
				  const BatonSearchPath *path, Oid schema)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	int			room = list_length(path->schemas) + 1 + Min(list->n_members, COMPETITORS_MAX);
	ListCell   *cell;

	competitors->too_many = false;
	competitors->count = 0;
	competitors->hashes = palloc(room * sizeof(uint32));
	competitors->hashes[competitors->count++] = hash_of(name, schema);
	foreach(cell, path->schemas)
		competitors->hashes[competitors->count++] = hash_of(name, lfirst_oid(cell));
	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (form->oid < FirstNormalObjectId ||
			!(form->pronamespace == schema || list_member_oid(path->schemas, form->pronamespace)))
			continue;
		if (competitors->count == room)
		{
			competitors->too_many = true;
			break;
		}
		competitors->hashes[competitors->count++] = baton_name_hash_of_oid(form->oid) ^ OID_SALT;
	}
	ReleaseCatCacheList(list);
}

static void
set_key(CalledKey *key, Oid function, const BatonSearchPath *path)
{
	ListCell   *cell;

	key->function = function;
	key->path = 0;
	foreach(cell, path->schemas)
		key->path = hash_combine(key->path, murmurhash32(lfirst_oid(cell)));
}

static void
look_up(Oid function, const BatonSearchPath *path, BatonCompetitorFound found)
{
	CalledKey	key;
	Called	   *called;
	HeapTuple	tuple;
	Form_pg_proc form;
	MemoryContext caller;
	BatonCompetitors competitors;
	uint64		before = age;
	bool		is_there;

	set_key(&key, function, path);
	called = hash_search(noted, &key, HASH_FIND, NULL);
	if (called != NULL && called->age == age)
		return;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return;
	if (hash_get_num_entries(noted) >= NOTED_MAX)
		forget_all();
	form = (Form_pg_proc) GETSTRUCT(tuple);
	caller = MemoryContextSwitchTo(noted_context);
	baton_called_list(&competitors, NameStr(form->proname), path, form->pronamespace);
	MemoryContextSwitchTo(caller);
	ReleaseSysCache(tuple);
	called = hash_search(noted, &key, HASH_ENTER, &is_there);
	if (is_there)
		pfree(called->competitors.hashes);
	called->age = before;
	called->competitors = competitors;
	for (int i = 0; i < competitors.count; i++)
		found(competitors.hashes[i]);
}

void
baton_called_analysed(const List *functions, BatonCompetitorFound found)
{
	BatonSearchPath *path;
	ListCell   *cell;

	if (functions == NIL)
		return;
	path = baton_search_path_get(CurrentMemoryContext);
	foreach(cell, functions)
		look_up(lfirst_oid(cell), path, found);
}

const BatonCompetitors *
baton_called_competitors(Oid function, const BatonSearchPath *path)
{
	CalledKey	key;
	Called	   *called;

	set_key(&key, function, path);
	called = hash_search(noted, &key, HASH_FIND, NULL);
	return called == NULL ? NULL : &called->competitors;
}
