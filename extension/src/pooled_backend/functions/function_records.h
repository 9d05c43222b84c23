/*-------------------------------------------------------------------------
 *
 * function_records.h
 *		The types that plans of PL/pgSQL functions were made for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_FUNCTION_RECORDS_H
#define BATON_FUNCTION_RECORDS_H

#include "parser/parse_node.h"

/* Finds plpgsql's place for a plugin; once, with PL/pgSQL loaded. */
extern void baton_function_records_attach(void);

/*
 * Do plans of this compiled function depend on types that may be others in
 * another session?  And if plpgsql shows us its statements: from now on for the
 * session in place; or not.  Then no plan is shared that was made for others.
 */
struct PLpgSQL_function;

/* Another session comes, or another environment of the one in place. */
extern void baton_function_records_stay_begins(void);

extern bool baton_function_records_has(struct PLpgSQL_function *function);
extern bool baton_function_records_can_watch(void);
extern void baton_function_records_watch(bool watch);

/*
 * Analysis of a query ends while a function runs.  Is it the function's own, whose
 * plan it keeps?
 */
extern bool baton_function_records_is_own(const ParseState *pstate);
extern void baton_function_records_analysed(ParseState *pstate);

#endif							/* BATON_FUNCTION_RECORDS_H */
