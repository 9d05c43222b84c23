/*-------------------------------------------------------------------------
 *
 * pg_catalogs.c
 *		PostgreSQL's catalog caches and namespaces (inval.c, syscache.c,
 *		namespace.c, detoast.c): the changes that a process is not told of.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/nbtree.h"
#include "access/toast_internals.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/memnodes.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tsearch/ts_cache.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "majors.h"
#include "pg_catalogs.h"
#include "pg_plancache.h"

#if PG_VERSION_NUM >= 160000
#include "utils/guc_hooks.h"
#endif

/* ----------------------------------------------------------------
 *		How invalidations identify an object: the hash of its name and schema.
 *
 * A prepared statement is looked up outside transactions (Bind, Close;
 * postgres.c), where GetSysCacheHashValue() must not be called: it works once
 * the cache is ready, but 18 asserts otherwise
 * (ConditionalCatalogCacheInitializeCache, catcache.c).  So the hash is
 * computed as CatalogCacheComputeHashValue(), namehashfast() and
 * int4hashfast() do (catcache.c, 15 to 18), and compared with the server's
 * once, in a transaction.  If the two ever differ, the server's function is
 * used.
 *
 * In a cache with an OID as key the hash is murmurhash32() of the OID, which
 * is a bijection: so the hash determines the OID.
 */

static bool is_the_servers = false;
static bool oid_is_the_servers = false;

static uint32
compute(const char *name, Oid schema)
{
	return pg_rotate_left32(murmurhash32(schema), 8) ^
		DatumGetUInt32(hash_any((const unsigned char *) name, strlen(name)));
}

static uint32
ask(int cache, const char *name, Oid schema)
{
	return GetSysCacheHashValue2(cache, CStringGetDatum(name), ObjectIdGetDatum(schema));
}

void
baton_name_hash_check(void)
{
	static const char *const names[] = {"", "pg_class", "a name with more than one word in it"};

	is_the_servers = true;
	for (int i = 0; i < (int) lengthof(names); i++)
		if (compute(names[i], 11 + i) != ask(RELNAMENSP, names[i], 11 + i) ||
			compute(names[i], 70000 + i) != ask(TYPENAMENSP, names[i], 70000 + i))
			is_the_servers = false;
	oid_is_the_servers = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(F_NOW)) ==
		baton_name_hash_of_oid(F_NOW);
}

uint32
baton_name_hash_of_oid(Oid object)
{
	return murmurhash32(object);
}

/* Inverts the steps of murmurhash32(), with the inverse factors. */
bool
baton_name_hash_oid(uint32 hash, Oid *object)
{
	hash ^= hash >> 16;
	hash *= 0x7ed1b41d;
	hash ^= (hash >> 13) ^ (hash >> 26);
	hash *= 0xa5cb9243;
	hash ^= hash >> 16;
	*object = hash;
	return oid_is_the_servers;
}

uint32
baton_name_hash(int cache, const char *name, Oid schema)
{
	return is_the_servers ? compute(name, schema) : ask(cache, name, schema);
}

bool
baton_name_hash_parts(uint32 hash, Oid schema, uint32 *name_hash)
{
	*name_hash = hash ^ pg_rotate_left32(murmurhash32(schema), 8);
	return is_the_servers;
}

uint32
baton_name_hash_alone(const char *name)
{
	return DatumGetUInt32(hash_any((const unsigned char *) name, strlen(name)));
}

/* ----------------------------------------------------------------
 *		Changes of catalogs that PostgreSQL's caches do not follow.
 *
 * plancache.c, namespace.c and PL/pgSQL keep what depends on these catalogs
 * and register for the invalidation of others only, since a session is
 * expected to end soon.  A backend of the pool does not end soon, so it
 * counts their changes, and code that keeps something for several sessions
 * compares the counts.
 *
 * Every change of a row of a catalog is sent for each cache of that catalog
 * (PrepareToInvalidateCacheTuple, catcache.c), so one cache of each catalog
 * is enough. inval.c has 64 places for callbacks (MAX_SYSCACHE_CALLBACKS, 15
 * to 18), and is FATAL beyond; the server takes some 35 of them.  So catalogs
 * are left out if their changes reset all plans anyway (InitPlanCache:
 * namespaces, operators, foreign servers).
 *
 * Role memberships decide which schemas of search_path count
 * (recomputeNamespacePath, namespace.c), but up to 16 only a change of
 * pg_authid or pg_namespace makes namespace.c look again.  They also decide
 * which policies a statement was rewritten with (check_role_for_policy,
 * rowsecurity.c), which plancache.c follows in the latest minor releases only
 * (PlanCacheRoleCallback in 17.11 and 18.6, not in 15.18).  Both are done
 * here in all releases. plancache.c never follows changes of the right to
 * execute a function that was inlined.
 *
 * The constraints of a domain are planned once (load_domaintype_info,
 * typcache.c).  They contain the results of a user's immutable functions, and
 * the bodies of his SQL functions, until a constraint changes.  They are
 * planned in a memory context that is named after them (15 to 18), which
 * shows whether the planner has executed or copied a function then.  Once it
 * has, any function that changes is assumed to be one that it called, and each
 * session plans them anew: the role's right to execute the function, and the
 * settings by which its body was read, are in them.
 *
 * A default_text_search_config in the configuration file is looked up by the
 * search path of the session that uses it first, and kept
 * (getTSCurrentConfig, ts_cache.c); SET and ALTER ROLE ...  SET keep it with
 * its schema.
 */

static uint64 age = 0;
static uint64 changed[BATON_CATALOGS];
static uint32 database_hash = 0;
static bool attached = false;
static void (*watcher) (BatonCatalog catalog, uint32 hash) = NULL;
static bool domains_hold_functions = false; /* a function's result, or its
											 * body */

/* The hashes of the last changes of functions; change n is at n % length. */
static uint32 functions_changed[32];

static void
note_change(Datum argument, int cache, uint32 hash)
{
	BatonCatalog catalog = (BatonCatalog) DatumGetInt32(argument);

	/* of databases only this one's owner counts; 0 means all rows */
	if (cache == DATABASEOID && hash != 0 && hash != database_hash)
		return;
	if (watcher != NULL)
		watcher(catalog, hash);
	if (catalog == BATON_CATALOG_FUNCTIONS)
	{
		functions_changed[changed[catalog]++ % lengthof(functions_changed)] = hash;
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
	/* the cache may have to be loaded from its catalog */
	StartTransactionCommand();
	database_hash = GetSysCacheHashValue1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	for (int i = 0; i < (int) lengthof(watched); i++)
		CacheRegisterSyscacheCallback(watched[i].cache, note_change,
									  Int32GetDatum(watched[i].catalog));
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

uint64
baton_catalog_changed(BatonCatalog catalog)
{
	return changed[catalog];
}

bool
baton_catalog_function_changed(Oid function, uint64 since)
{
	uint64		until = changed[BATON_CATALOG_FUNCTIONS];

	if (until - since > lengthof(functions_changed) || !oid_is_the_servers)
		return true;
	for (uint64 i = since; i < until; i++)
	{
		uint32		hash = functions_changed[i % lengthof(functions_changed)];

		if (hash == 0 || hash == baton_name_hash_of_oid(function))
			return true;
	}
	return false;
}

void
baton_catalog_session_changes(void)
{
#if PG_VERSION_NUM >= 160000
	assign_default_text_search_config(TSCurrentConfig, NULL);
#else
	assign_TSCurrentConfig(TSCurrentConfig, NULL);
#endif
	if (domains_hold_functions)
		CallSyscacheCallbacks(CONSTROID, 0);
	domains_hold_functions = false;
}

/* ----------------------------------------------------------------
 *		A toasted value of a shared catalog, for a process without a database.
 *
 * toast_fetch_datum() (detoast.c) opens the TOAST table.  Its relcache entry
 * is made from pg_class: FATAL in the launcher.  But the TOAST tables of
 * shared catalogs and their indexes are mapped relations as the catalogs are
 * (relmapper.c), and so their pages can be read.  This code descends the
 * index itself, as _bt_search() (nbtsearch.c) does; otherwise a role that
 * fills the TOAST table would slow down all logins.
 *
 * It relies, in 15 to 18, on the layout of nbtree's pages and pivot tuples
 * (nbtree.h, version 4, that of all indexes that initdb makes); on a TOAST
 * index being on (chunk_id oid, chunk_seq int4), neither of them NULL; on the
 * chunks of a value having chunk_seq 0, 1, ... and TOAST_MAX_CHUNK_SIZE bytes
 * but for the last (toast_save_datum() in toast_internals.c); and on a page
 * not being recycled while a snapshot is as old as the scan (nbtree/README).
 * Data that does not conform yields no value.
 */

/* chunk_id, chunk_seq, chunk_data */
#define CHUNK_COLUMNS 3

/* A value that is being fetched. */
typedef struct Fetch
{
	Oid			toast;
	Oid			value;
	TupleDesc	description;
	char	   *data;
	uint32		size;
	uint32		found;			/* bytes */
} Fetch;

static Buffer
read_page(Oid relation, BlockNumber block)
{
	Buffer		buffer = baton_shared_catalog_read(relation, block);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	return buffer;
}

/* The chunk_id of an index tuple. */
static Oid
key_at(Page page, OffsetNumber offset)
{
	IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, offset));

	return *(Oid *) ((char *) tuple + IndexInfoFindDataOffset(tuple->t_info));
}

/* Are all keys of the page less than this value? */
static bool
is_left_of(Page page, Oid value)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);

	return P_IGNORE(opaque) || (!P_RIGHTMOST(opaque) && key_at(page, P_HIKEY) < value);
}

/*
 * The child with the first tuple of the value; the first item of the page
 * counts as less than all values.
 */
static BlockNumber
child_for(Page page, Oid value)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	OffsetNumber child = P_FIRSTDATAKEY(BTPageGetOpaque(page));

	while (child < last && key_at(page, OffsetNumberNext(child)) < value)
		child = OffsetNumberNext(child);
	return BTreeTupleGetDownLink((IndexTuple) PageGetItem(page, PageGetItemId(page, child)));
}

/* Copies a chunk to its place in the value. */
static void
add_chunk(Fetch *fetch, ItemPointer place)
{
	Buffer		buffer = read_page(fetch->toast, ItemPointerGetBlockNumber(place));
	Page		page = BufferGetPage(buffer);
	OffsetNumber offset = ItemPointerGetOffsetNumber(place);
	SnapshotData snapshot = {.snapshot_type = SNAPSHOT_TOAST};
	HeapTupleData tuple;
	ItemId		item;

	item = offset <= PageGetMaxOffsetNumber(page) ? PageGetItemId(page, offset) : NULL;
	if (item != NULL && ItemIdIsNormal(item))
	{
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = fetch->toast;
		tuple.t_self = *place;
		if (HeapTupleSatisfiesVisibility(&tuple, &snapshot, buffer))
		{
			bool		is_null[CHUNK_COLUMNS];
			Datum		values[CHUNK_COLUMNS];
			struct varlena *chunk;
			uint64		start;
			uint32		size;

			heap_deform_tuple(&tuple, fetch->description, values, is_null);
			chunk = (struct varlena *) DatumGetPointer(values[2]);
			start = (uint64) (uint32) DatumGetInt32(values[1]) * TOAST_MAX_CHUNK_SIZE;
			size = is_null[2] || VARATT_IS_EXTERNAL(chunk) ? 0 : VARSIZE_ANY_EXHDR(chunk);
			if (!is_null[0] && !is_null[1] && DatumGetInt32(values[0]) == (int32) fetch->value &&
				start + size <= fetch->size)
			{
				memcpy(fetch->data + start, VARDATA_ANY(chunk), size);
				fetch->found += size;
			}
		}
	}
	UnlockReleaseBuffer(buffer);
}

/* Adds the chunks on a leaf; true if the next leaf may have more. */
static bool
add_chunks(Fetch *fetch, Page page)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);

	for (OffsetNumber i = P_FIRSTDATAKEY(opaque); i <= PageGetMaxOffsetNumber(page); i++)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, i));
		Oid			key = key_at(page, i);

		if (key > fetch->value)
			return false;
		if (key < fetch->value)
			continue;
		for (int n = 0; n < (BTreeTupleIsPosting(tuple) ? BTreeTupleGetNPosting(tuple) : 1); n++)
			add_chunk(fetch, BTreeTupleIsPosting(tuple) ?
					  BTreeTupleGetPostingN(tuple, n) : &tuple->t_tid);
	}
	return !P_RIGHTMOST(opaque);
}

/* As _bt_getroot().  P_NONE: the index is empty, or of an unknown version. */
static BlockNumber
root_of(Oid index)
{
	Buffer		buffer = read_page(index, BTREE_METAPAGE);
	BTMetaPageData *meta = BTPageGetMeta(BufferGetPage(buffer));
	BlockNumber root = P_NONE;

	if (meta->btm_magic == BTREE_MAGIC && meta->btm_version == BTREE_VERSION)
		root = meta->btm_fastroot;
	UnlockReleaseBuffer(buffer);
	return root;
}

static void
fetch_chunks(Fetch *fetch, Oid index)
{
	BlockNumber next = root_of(index);

	while (next != P_NONE)
	{
		Buffer		buffer = read_page(index, next);
		Page		page = BufferGetPage(buffer);
		BTPageOpaque opaque = BTPageGetOpaque(page);

		if (is_left_of(page, fetch->value))
			next = opaque->btpo_next;
		else if (!P_ISLEAF(opaque))
			next = child_for(page, fetch->value);
		else
			next = add_chunks(fetch, page) ? opaque->btpo_next : P_NONE;
		UnlockReleaseBuffer(buffer);
		CHECK_FOR_INTERRUPTS();
	}
}

struct varlena *
baton_shared_toast_fetch(const struct varlena *external, Oid toast, Oid index)
{
	Fetch		fetch = {.toast = toast};
	struct varatt_external pointer;
	struct varlena *result;

	if (!VARATT_IS_EXTERNAL_ONDISK(external))
		return NULL;
	VARATT_EXTERNAL_GET_POINTER(pointer, external);
	fetch.value = pointer.va_valueid;
	fetch.size = VARATT_EXTERNAL_GET_EXTSIZE(pointer);
	result = palloc0(fetch.size + VARHDRSZ);
	/* VARATT_EXTERNAL_IS_COMPRESSED */
	if ((int32) fetch.size < pointer.va_rawsize - (int32) VARHDRSZ)
		SET_VARSIZE_COMPRESSED(result, fetch.size + VARHDRSZ);
	else
		SET_VARSIZE(result, fetch.size + VARHDRSZ);
	fetch.data = VARDATA(result);

	/* types of the same layout, which are among the built-in entries */
	fetch.description = CreateTemplateTupleDesc(CHUNK_COLUMNS);
	TupleDescInitBuiltinEntry(fetch.description, 1, "chunk_id", INT4OID, -1, 0);
	TupleDescInitBuiltinEntry(fetch.description, 2, "chunk_seq", INT4OID, -1, 0);
	TupleDescInitBuiltinEntry(fetch.description, 3, "chunk_data", TEXTOID, -1, 0);

	/* receives invalidations of the map, too */
	LockRelationOid(toast, AccessShareLock);
	LockRelationOid(index, AccessShareLock);
	fetch_chunks(&fetch, index);
	UnlockRelationOid(index, AccessShareLock);
	UnlockRelationOid(toast, AccessShareLock);
	FreeTupleDesc(fetch.description);
	if (fetch.found == fetch.size)
		return result;
	pfree(result);
	return NULL;
}

/* ----------------------------------------------------------------
 *		Showing a backend's temporary namespace, and hiding it.
 *
 * Relied on in namespace.c, in 15 to 18, and, but for the last, checked by
 * baton_namespace_attach():
 * - AtEOSubXact_Namespace() clears the namespace if the subtransaction that
 *   made it aborts; outside a transaction myTempNamespaceSubID is
 *   InvalidSubTransactionId, so that subtransaction is said to abort.
 * - SetTempNamespaceState(), by which a parallel worker takes over its
 *   leader's namespace, asserts that there is none yet.
 * - autovacuum reads MyProc->tempNamespaceId (checkTempNamespaceStatus): a
 *   namespace without an owning process is an orphan, and its tables are
 *   dropped.  The value is restored where the functions above clear it.
 * - AtEOXact_Namespace() would register the exit callback at each commit of a
 *   transaction that has set the namespace up, and ipc.c has room for 20 of
 *   all kinds; "we only want to register the callback once".  It does so if
 *   myTempNamespaceSubID, which is private, is the transaction's; so that
 *   mark is cleared just before.  AtEOSubXact_Namespace() clears it without
 *   further effect if told that the transaction is a committed subtransaction
 *   with the parent InvalidSubTransactionId.  CommitTransaction() (xact.c)
 *   calls the transaction callbacks before AtEOXact_Namespace(), and by then
 *   its subtransactions have handed their mark up to TopSubTransactionId.
 *   The rest of that function ends overridden search paths, as
 *   AtEOXact_Namespace() would (up to 16; later there are none).
 */

void
baton_namespace_hide(Oid namespace)
{
	AtEOSubXact_Namespace(false, InvalidSubTransactionId, InvalidSubTransactionId);
	MyProc->tempNamespaceId = namespace;
}

void
baton_namespace_show(Oid namespace, Oid toast_namespace)
{
	SetTempNamespaceState(namespace, toast_namespace);

	/* a set-up that was rolled back has cleared this */
	MyProc->tempNamespaceId = namespace;
}

void
baton_namespace_commits(void)
{
	AtEOSubXact_Namespace(true, TopSubTransactionId, InvalidSubTransactionId);
}

const char *
baton_namespace_attach(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	if (OidIsValid(namespace) || OidIsValid(MyProc->tempNamespaceId))
		return "a new backend has a temporary namespace";

	/* any namespace that no session owns will do */
	baton_namespace_show(PG_CATALOG_NAMESPACE, PG_TOAST_NAMESPACE);
	GetTempNamespaceState(&namespace, &toast_namespace);
	baton_namespace_hide(InvalidOid);
	if (namespace != PG_CATALOG_NAMESPACE || toast_namespace != PG_TOAST_NAMESPACE)
		return "a temporary namespace cannot be shown";
	GetTempNamespaceState(&namespace, &toast_namespace);
	if (OidIsValid(namespace) || OidIsValid(MyProc->tempNamespaceId))
		return "a temporary namespace cannot be hidden";
	return NULL;
}
