/*-------------------------------------------------------------------------
 *
 * function_records.h
 *		What compiled PL/pgSQL functions depend on: names, and the types of
 *		records.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_FUNCTION_RECORDS_H
#define BATON_FUNCTION_RECORDS_H

#include "nodes/parsenodes.h"
#include "parser/parse_node.h"

/* ----------------------------------------------------------------
 *		What the functions of a table would mean by their names now.
 * ----------------------------------------------------------------
 */

typedef struct FunctionNames FunctionNames;

/* Called once per backend, before the others. */
extern void baton_function_names_attach(void);

/*
 * Creates the names of a table without functions, for the environment in
 * force.
 */
extern FunctionNames *baton_function_names_create(MemoryContext parent);
extern void baton_function_names_clear(FunctionNames *names);
extern void baton_function_names_destroy(FunctionNames *names);

/* A function of the table is about to be called; reads catalogs. */
extern void baton_function_names_add(FunctionNames *names, Oid function);

/*
 * The planner may copy that function in SQL into a plan of a function; reads
 * catalogs.
 */
extern void baton_function_names_copied(FunctionNames *names, Oid function);

/*
 * A query of such a function was analysed, or planned with a function in SQL.
 */
extern void baton_function_names_analysed(FunctionNames *names, Query *query);

/* The same for a rewritten query: its types count as well. */
extern void baton_function_names_rewritten(FunctionNames *names, Query *query);
extern void baton_function_names_inlined(FunctionNames *names);

/*
 * Another session comes, in the table's environment: may a function mean
 * something else by now?
 */
extern bool baton_function_names_outdated(FunctionNames *names);

/* ----------------------------------------------------------------
 *		The types that plans of PL/pgSQL functions were made for.
 * ----------------------------------------------------------------
 */

/* Finds plpgsql's plugin pointer; called once, with PL/pgSQL loaded. */
extern void baton_function_records_attach(void);

/*
 * _has: do plans of this compiled function depend on types that may differ in
 * another session? _can_watch: does plpgsql show this library its statements?
 * If not, plans that were made for other sessions are not shared. _watch: it
 * shows them from now on for the session in place, or no longer.
 */
struct PLpgSQL_function;

/* Another session comes, or another environment of the one in place. */
extern void baton_function_records_stay_begins(void);

extern bool baton_function_records_has(struct PLpgSQL_function *function);
extern bool baton_function_records_can_watch(void);
extern void baton_function_records_watch(bool watch);

/*
 * Analysis of a query ends while a function runs. Is it a query of the
 * function's own, whose plan is kept?
 */
extern bool baton_function_records_is_own(const ParseState *pstate);
extern void baton_function_records_analysed(ParseState *pstate);

#endif							/* BATON_FUNCTION_RECORDS_H */
