/*-------------------------------------------------------------------------
 *
 * function_names.h
 *		What the functions of a table would mean by their names now.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_FUNCTION_NAMES_H
#define BATON_FUNCTION_NAMES_H

#include "nodes/parsenodes.h"

typedef struct FunctionNames FunctionNames;

/* Once a backend, before others. */
extern void baton_function_names_attach(void);

/* Of a table without functions, which is for the environment in force. */
extern FunctionNames *baton_function_names_create(MemoryContext parent);
extern void baton_function_names_clear(FunctionNames *names);
extern void baton_function_names_destroy(FunctionNames *names);

/* A function of the table is about to be called; reads catalogs. */
extern void baton_function_names_add(FunctionNames *names, Oid function);

/* The planner may copy that function in SQL into a plan of one; reads catalogs. */
extern void baton_function_names_copied(FunctionNames *names, Oid function);

/* One was: a query of its was analysed, or planned with a function in SQL. */
extern void baton_function_names_analysed(FunctionNames *names, Query *query);

/* Likewise, one that was rewritten: its types count as well. */
extern void baton_function_names_rewritten(FunctionNames *names, Query *query);
extern void baton_function_names_inlined(FunctionNames *names);

/*
 * Another session comes, in the table's environment: may any function mean
 * something else by now?
 */
extern bool baton_function_names_outdated(FunctionNames *names);

#endif							/* BATON_FUNCTION_NAMES_H */
