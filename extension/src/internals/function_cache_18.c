/*-------------------------------------------------------------------------
 *
 * function_cache_18.c
 *		The table of compiled functions of all languages, from PostgreSQL 18 on.
 *
 * funccache.c makes it when the first function is put in
 * (cfunc_hashtable_insert); an entry is a CachedFunctionHashEntry, mirrored
 * here.  We put one in ourselves, which nobody else asks for.  Hash and match function are static there, and ours give
 * the same answers; a table need only be true to itself.
 *
 * Functions in SQL are kept there as well, by a SQLFunctionHashEntry
 * (functions.c) that counts the FmgrInfos which point to it (use_count), and
 * whose deletion callback is the server program's own.  One that is taken out
 * while it is pointed to is not known to the table any more, and
 * delete_function() (funccache.c) leaves the table alone then (fn_hashkey).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#if PG_VERSION_NUM >= 180000

#include "access/tupdesc.h"
#include "common/hashfn.h"
#include "plpgsql.h"
#include "utils/fmgroids.h"
#include "utils/funccache.h"

#include "function_cache.h"
#include "hash_table.h"
#include "program_data.h"

#define TABLE_NAME "Cached function hash"
#define TABLE_INITIAL_ELEMENTS 128

/* CachedFunctionHashEntry (funccache.c) */
typedef struct FunctionEntry
{
	CachedFunctionHashKey key;
	CachedFunction *function;
} FunctionEntry;

/* As cfunc_hash() in funccache.c. */
static uint32
hash_key(const void *key, Size size)
{
	const		CachedFunctionHashKey *one = key;
	uint32		hash = hash_bytes(key, offsetof(CachedFunctionHashKey, callResultType));

	if (one->nargs > 0)
		hash = hash_combine(hash, hash_bytes((const unsigned char *) one->argtypes,
											 one->nargs * sizeof(Oid)));
	if (one->callResultType != NULL)
		hash = hash_combine(hash, hashRowType(one->callResultType));
	return hash;
}

/* As cfunc_match() in funccache.c: 0 if they are equal. */
static int
match_keys(const void *a, const void *b, Size size)
{
	const		CachedFunctionHashKey *one = a;
	const		CachedFunctionHashKey *other = b;

	if (memcmp(one, other, offsetof(CachedFunctionHashKey, callResultType)) != 0 ||
		memcmp(one->argtypes, other->argtypes, one->nargs * sizeof(Oid)) != 0)
		return 1;
	if (one->callResultType == NULL || other->callResultType == NULL)
		return one->callResultType != other->callResultType;
	return !equalRowTypes(one->callResultType, other->callResultType);
}

static void
compile_nothing(FunctionCallInfo call, HeapTuple row, const CachedFunctionHashKey * key,
				CachedFunction * function, bool for_validator)
{
}

/* Any function will do; its key has a size that no language's has. */
static void
make_table(void)
{
	LOCAL_FCINFO(call, 0);
	FmgrInfo	info;
	CachedFunction *function;

	fmgr_info(F_PG_BACKEND_PID, &info);
	InitFunctionCallInfoData(*call, &info, 0, InvalidOid, NULL, NULL);
	function = cached_function_compile(call, NULL, compile_nothing, NULL,
									   sizeof(CachedFunction), false, true);
	/* fn_tid says nothing then, and only we know of it; it stays */
	function->use_count = 1;
}

HTAB *
baton_function_cache_find(void)
{
	HTAB	   *table = baton_hash_find(TABLE_NAME);

	if (table == NULL)
	{
		make_table();
		table = baton_hash_find(TABLE_NAME);
	}
	return table;
}

HTAB *
baton_function_cache_create(MemoryContext context)
{
	HASHCTL		control;

	control.keysize = sizeof(CachedFunctionHashKey);
	control.entrysize = sizeof(FunctionEntry);
	control.hash = hash_key;
	control.match = match_keys;
	control.hcxt = context;
	return hash_create(TABLE_NAME, TABLE_INITIAL_ELEMENTS, &control,
					   HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
}

const char *
baton_function_cache_attach(const void *of_plpgsql)
{
	return NULL;				/* a function says itself how it is freed */
}

/* The pointers to what was allocated for it, and to the two functions. */
int
baton_function_cache_own_words(void)
{
	return 6;
}

/* How functions.c and plpgsql are told from each other and from the rest. */
static bool
is_sql(const FunctionEntry *entry)
{
	return entry->function->dcallback != NULL &&
		baton_is_program_code((const void *) entry->function->dcallback);
}

static bool
is_plpgsql(const FunctionEntry *entry)
{
	return entry->key.cacheEntrySize == sizeof(PLpgSQL_function) &&
		entry->function->dcallback != NULL && !is_sql(entry);
}

bool
baton_function_cache_in_use(HTAB *table)
{
	HASH_SEQ_STATUS scan;
	FunctionEntry *entry;
	bool		found = false;

	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
		found |= is_plpgsql(entry);
	return found;
}

/* As cfunc_hashtable_delete() in funccache.c. */
static CachedFunction *
take_out(HTAB *table, FunctionEntry *entry)
{
	CachedFunction *function = entry->function;
	TupleDesc	result = entry->key.callResultType;

	hash_search(table, &entry->key, HASH_REMOVE, NULL);
	function->fn_hashkey = NULL;
	if (result != NULL)
		FreeTupleDesc(result);
	return function;
}

void
baton_function_cache_free(HTAB *table, Oid only)
{
	HASH_SEQ_STATUS scan;
	FunctionEntry *entry;

	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		CachedFunction *function;

		if (!is_plpgsql(entry) || (OidIsValid(only) && entry->key.funcOid != only))
			continue;
		function = take_out(table, entry);
		if (function->use_count == 0)
		{
			function->dcallback(function);
			pfree(function);
		}
		else
			ItemPointerSetInvalid(&function->fn_tid);
	}
}

void
baton_function_cache_forget_sql(HTAB *table)
{
	HASH_SEQ_STATUS scan;
	FunctionEntry *entry;

	if (hash_get_num_entries(table) == 0)
		return;
	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		CachedFunction *function;

		if (!is_sql(entry))
			continue;
		function = take_out(table, entry);
		if (function->use_count == 0)
		{
			function->dcallback(function);
			pfree(function);
		}
	}
}

#endif							/* PG_VERSION_NUM >= 180000 */
