/*-------------------------------------------------------------------------
 *
 * pg_funccache.h
 *		PL/pgSQL's compiled functions (pl_comp.c up to 17, funccache.c from 18
 *		on).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_FUNCCACHE_H
#define BATON_PG_FUNCCACHE_H

#include "utils/hsearch.h"

#if PG_VERSION_NUM >= 180000
#define BATON_SQL_FUNCTIONS_ARE_KEPT
#endif

/*
 * The table; NULL if it was not found.  From 18 on it is made if need be, which
 * takes a transaction.
 */
extern HTAB *baton_function_cache_find(void);

/* An empty table of the same form, but for so many words of its header. */
extern HTAB *baton_function_cache_create(MemoryContext context);
extern int	baton_function_cache_own_words(void);

/* Once, with a function of plpgsql's library; NULL, or why it cannot be done. */
extern const char *baton_function_cache_attach(const void *of_plpgsql);

/* Has it functions of plpgsql's? */
extern bool baton_function_cache_in_use(HTAB *table);

/*
 * Takes plpgsql's functions of that OID (InvalidOid: all) out, and frees what
 * does not run.
 */
extern void baton_function_cache_free(HTAB *table, Oid only);

/*
 * Takes the functions in SQL out, and frees what is not in use.  There are none
 * up to 17, where such a function is compiled for each query.
 */
extern void baton_function_cache_forget_sql(HTAB *table);

#endif							/* BATON_PG_FUNCCACHE_H */
