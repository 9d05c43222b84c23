/*-------------------------------------------------------------------------
 *
 * function_cache_15.c
 *		plpgsql's table of compiled functions, up to PostgreSQL 17.
 *
 * plpgsql_HashTableInit() (pl_comp.c) makes it when the library is loaded;
 * delete_function() there takes a function out, and frees it unless it runs
 * (use_count).  An entry is a struct plpgsql_hashent, mirrored here.
 *
 * plpgsql_free_function_memory() (pl_funcs.c) is hidden from 16 on, so its work is
 * done here: it frees the plan of each expression of the function, and the
 * function's context.  The expressions are found by their plans: what a plan
 * source was prepared with has plpgsql_parser_setup() (the one ParserSetupHook
 * of that library) and the PLpgSQL_expr, whose `func` is the function
 * (exec_prepare_plan, pl_exec.c).  All these plans are saved (SPI_keepplan).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#if PG_VERSION_NUM < 180000

#include <dlfcn.h>

#include "plpgsql.h"
#include "utils/memutils.h"

#include "function_cache.h"
#include "hash_table.h"
#include "plan_source.h"

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

/* The pointers to what was allocated for it. */
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

static const void *plpgsql_base = NULL; /* where its library is */

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

/* Where the expression has its plan, if it is of a function that is freed. */
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
			ItemPointerSetInvalid(&function->fn_tid);
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
