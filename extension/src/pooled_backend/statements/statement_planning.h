/*-------------------------------------------------------------------------
 *
 * statement_planning.h
 *		What is noticed while a statement is planned.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_PLANNING_H
#define BATON_STATEMENT_PLANNING_H

#include "optimizer/planner.h"

/* An expression is about to execute a function (taint_watch.c). */
extern void baton_planning_function(Oid function);

/* From hooks.c: a statement is planned, by that planner. */
extern PlannedStmt *baton_planning_run(Query *parse, const char *query_string,
									   int cursor_options, ParamListInfo parameters,
									   planner_hook_type planner);

#endif							/* BATON_STATEMENT_PLANNING_H */
