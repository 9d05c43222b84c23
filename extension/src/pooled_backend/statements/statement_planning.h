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

/*
 * Calls this when a plan was made that is not for one execution, and holds what a
 * user's immutable function has returned, or perhaps a function in SQL.
 */
extern void baton_planning_watch(void (*planned) (bool folds, bool inlines));

/* Calls this when a function in SQL of a user's may be copied into a plan. */
extern void baton_planning_watch_copies(void (*copied) (Oid function));

/*
 * Calls this when a query that writes is planned: the rewriter has put the columns'
 * defaults into it, a domain's among them.
 */
extern void baton_planning_watch_rewritten(void (*rewritten) (Query *query));

/* A function is looked up (hooks.c): the planner asks before it copies one. */
extern void baton_planning_looks_up(Oid function);

/* Within the planner? */
extern bool baton_planning_is_under_way(void);

/* From hooks.c: a statement is planned, by that planner. */
extern PlannedStmt *baton_planning_run(Query *parse, const char *query_string,
									   int cursor_options, ParamListInfo parameters,
									   planner_hook_type planner);

#endif							/* BATON_STATEMENT_PLANNING_H */
