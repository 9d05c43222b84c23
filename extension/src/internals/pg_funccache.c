/*-------------------------------------------------------------------------
 *
 * pg_funccache.c
 *		PL/pgSQL's compiled functions (pl_comp.c up to 17, funccache.c from 18
 *		on).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/* ----------------------------------------------------------------
 *		plpgsql's table of compiled functions, up to PostgreSQL 17.
 *
 * plpgsql_HashTableInit() (pl_comp.c) makes it when the library is loaded;
 * delete_function() there removes a function, and frees it unless it is
 * running (use_count).  An entry is a struct plpgsql_hashent, mirrored here.
 *
 * plpgsql_free_function_memory() (pl_funcs.c) is hidden from 16 on, so its
 * work is done here: it frees the plan of each expression of the function,
 * and the function's context.  The expressions are found by their plans: a
 * plan source is prepared with plpgsql_parser_setup() (the only
 * ParserSetupHook of that library) and the PLpgSQL_expr, which refers to the
 * function by `func` (exec_prepare_plan, pl_exec.c).  All these plans are
 * saved (SPI_keepplan).
 */

#if PG_VERSION_NUM < 180000

#include <dlfcn.h>

#include "plpgsql.h"
#include "utils/memutils.h"

#include "pg_funccache.h"
#include "pg_program.h"
#include "pg_plancache.h"

#define TABLE_NAME "PLpgSQL function hash"
#define TABLE_INITIAL_ELEMENTS 128

/* struct plpgsql_hashent (pl_comp.c) */
typedef struct FunctionEntry
{
	PLpgSQL_func_hashkey key;
	PLpgSQL_function *function;
} FunctionEntry;

HTAB *
baton_function_cache_find(void)
{
	return baton_hash_find(TABLE_NAME);
}

HTAB *
baton_function_cache_create(MemoryContext context)
{
	HASHCTL		control;

	control.keysize = sizeof(PLpgSQL_func_hashkey);
	control.entrysize = sizeof(FunctionEntry);
	control.hcxt = context;
	return hash_create(TABLE_NAME, TABLE_INITIAL_ELEMENTS, &control,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The pointers to what was allocated for the table. */
int
baton_function_cache_own_words(void)
{
	return 4;
}

bool
baton_function_cache_in_use(HTAB *table)
{
	return hash_get_num_entries(table) != 0;
}

/* Functions that are being freed, by address. */
typedef struct Freed
{
	PLpgSQL_function **functions;
	int			count;
} Freed;

static const void *plpgsql_base = NULL; /* the address of its library */

static const void *
library_of(const void *address)
{
	Dl_info		info;

	return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

const char *
baton_function_cache_attach(const void *of_plpgsql)
{
	plpgsql_base = library_of(of_plpgsql);
	return plpgsql_base == NULL ? "the library was not found" : baton_plan_attach();
}

static bool
is_plpgsql_parser(ParserSetupHook setup)
{
	static ParserSetupHook known = NULL;

	if (setup != known && library_of((const void *) setup) == plpgsql_base)
		known = setup;
	return setup == known;
}

static int
compare_functions(const void *one, const void *other)
{
	const PLpgSQL_function *a = *(PLpgSQL_function *const *) one;
	const PLpgSQL_function *b = *(PLpgSQL_function *const *) other;

	return a < b ? -1 : a > b;
}

/*
 * The place of the expression's plan, if its function is being freed; else
 * NULL.
 */
static SPIPlanPtr *
plan_of_freed(void *argument, const void *context)
{
	PLpgSQL_expr *expression = argument;
	const Freed *freed = context;

	if (bsearch(&expression->func, freed->functions, freed->count,
				sizeof(PLpgSQL_function *), compare_functions) == NULL)
		return NULL;
	return &expression->plan;
}

static void
free_functions(Freed *freed)
{
	qsort(freed->functions, freed->count, sizeof(PLpgSQL_function *), compare_functions);
	baton_plan_free_spi(is_plpgsql_parser, plan_of_freed, freed);
	for (int i = 0; i < freed->count; i++)
	{
		PLpgSQL_function *function = freed->functions[i];

		if (function->fn_cxt != NULL)
			MemoryContextDelete(function->fn_cxt);
		pfree(function);
	}
}

void
baton_function_cache_free(HTAB *table, Oid only)
{
	HASH_SEQ_STATUS scan;
	FunctionEntry *entry;
	Freed		freed = {0};

	if (hash_get_num_entries(table) == 0)
		return;
	freed.functions = palloc(hash_get_num_entries(table) * sizeof(PLpgSQL_function *));
	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		PLpgSQL_function *function = entry->function;

		if (OidIsValid(only) && entry->key.funcOid != only)
			continue;
		function->fn_hashkey = NULL;
		hash_search(table, &entry->key, HASH_REMOVE, NULL);
		if (function->use_count == 0)
			freed.functions[freed.count++] = function;
		else
			function->fn_xmin = InvalidTransactionId;
	}
	if (freed.count > 0)
		free_functions(&freed);
	pfree(freed.functions);
}

void
baton_function_cache_forget_sql(HTAB *table)
{
}

#endif							/* PG_VERSION_NUM < 180000 */

/* ----------------------------------------------------------------
 *		The table of compiled functions of all languages, from PostgreSQL 18 on.
 *
 * funccache.c makes it when the first function is entered
 * (cfunc_hashtable_insert); an entry is a CachedFunctionHashEntry, mirrored
 * here.  This code enters a function itself, which no other code asks for.
 * The hash and match functions are static there; those here give the same
 * results, and a table only needs to be consistent with itself.
 *
 * Functions in SQL are kept there as well.  A SQLFunctionHashEntry
 * (functions.c) counts the FmgrInfos that point to it (use_count), and its
 * deletion callback is in the server program itself.  If a function is
 * removed while an FmgrInfo points to it, the table does not contain it any
 * more, and delete_function() (funccache.c) does not touch the table then
 * (fn_hashkey).
 */

#if PG_VERSION_NUM >= 180000

#include "access/tupdesc.h"
#include "common/hashfn.h"
#include "plpgsql.h"
#include "utils/fmgroids.h"
#include "utils/funccache.h"

#include "pg_funccache.h"
#include "pg_program.h"
#include "pg_program.h"

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

/* Uses any function; the key has a size that no language uses. */
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

	/*
	 * fn_tid is not set then, and no other code knows the function; it stays
	 */
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
	return NULL;				/* each function has its own deletion callback */
}

/*
 * The pointers to what was allocated for the table, and to the two functions.
 */
int
baton_function_cache_own_words(void)
{
	return 6;
}

/* Distinguishes functions in SQL from those of plpgsql and the rest. */
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

/*
 * As cfunc_hashtable_delete() in funccache.c. A function that is in use is
 * compiled anew at its next call.
 */
static void
remove_function(HTAB *table, FunctionEntry *entry)
{
	CachedFunction *function = entry->function;
	TupleDesc	result = entry->key.callResultType;

	hash_search(table, &entry->key, HASH_REMOVE, NULL);
	function->fn_hashkey = NULL;
	if (result != NULL)
		FreeTupleDesc(result);
	if (function->use_count == 0)
	{
		function->dcallback(function);
		pfree(function);
	}
	else
		function->fn_xmin = InvalidTransactionId;
}

void
baton_function_cache_free(HTAB *table, Oid only)
{
	HASH_SEQ_STATUS scan;
	FunctionEntry *entry;

	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (!is_plpgsql(entry) || (OidIsValid(only) && entry->key.funcOid != only))
			continue;
		remove_function(table, entry);
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
		if (!is_sql(entry))
			continue;
		remove_function(table, entry);
	}
}

#endif							/* PG_VERSION_NUM >= 180000 */
