/*-------------------------------------------------------------------------
 *
 * function_cache_15.c
 *		plpgsql's table of compiled functions, up to PostgreSQL 17.
 *
 * plpgsql_HashTableInit() (pl_comp.c) makes it when the library is loaded;
 * delete_function() there takes a function out, and frees it unless it runs
 * (use_count).  An entry is a struct plpgsql_hashent, mirrored here.
 *
 * plpgsql_free_function_memory() (pl_funcs.c) can be called up to 15; from 16 on
 * a library's symbols are hidden.  There a function is made to look out of date,
 * and plpgsql_compile() deletes it as it next meets it (pl_comp.c, 16 and 17:
 * fn_xmin and fn_tid are compared with pg_proc's tuple).  Until then its memory
 * is kept.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#if PG_VERSION_NUM < 180000

#include "plpgsql.h"

#include "function_cache.h"
#include "hash_table.h"

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

static void
take_out(HTAB *table, FunctionEntry *entry, BatonFreeFunction free_function)
{
	PLpgSQL_function *function = entry->function;

	if (free_function == NULL)
	{
		function->fn_xmin = InvalidTransactionId;
		ItemPointerSetInvalid(&function->fn_tid);
		return;
	}
	function->fn_hashkey = NULL;
	hash_search(table, &entry->key, HASH_REMOVE, NULL);
	if (function->use_count == 0)
	{
		free_function(function);
		pfree(function);
	}
	else
		ItemPointerSetInvalid(&function->fn_tid);
}

void
baton_function_cache_free(HTAB *table, Oid only, BatonFreeFunction free_function)
{
	HASH_SEQ_STATUS scan;
	FunctionEntry *entry;

	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!OidIsValid(only) || entry->key.funcOid == only)
			take_out(table, entry, free_function);
}

void
baton_function_cache_forget_sql(HTAB *table)
{
}

#endif							/* PG_VERSION_NUM < 180000 */
