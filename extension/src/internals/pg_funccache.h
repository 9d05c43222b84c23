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
 * The table, or NULL if it was not found.  From 18 on it is created if
 * necessary, which takes a transaction.
 */
extern HTAB *baton_function_cache_find(void);

/*
 * An empty table of the same form, except for own_words words of its header.
 */
extern HTAB *baton_function_cache_create(MemoryContext context);
extern int	baton_function_cache_own_words(void);

/*
 * Called once, with a function of plpgsql's library.  Returns NULL, or why the
 * cache cannot be used.
 */
extern const char *baton_function_cache_attach(const void *of_plpgsql);

/* Does it contain functions of plpgsql's? */
extern bool baton_function_cache_in_use(HTAB *table);

/*
 * Removes plpgsql's functions of that OID (InvalidOid: all), and frees those
 * that are not running.
 */
extern void baton_function_cache_free(HTAB *table, Oid only);

/*
 * Removes the functions in SQL, and frees those that are not in use.  There
 * are none up to 17, where such a function is compiled for each query.
 */
extern void baton_function_cache_forget_sql(HTAB *table);

#endif							/* BATON_PG_FUNCCACHE_H */
