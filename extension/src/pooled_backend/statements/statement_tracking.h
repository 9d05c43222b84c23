/*-------------------------------------------------------------------------
 *
 * statement_tracking.h
 *		What a session does to its prepared statements: noticed, planned,
 *		captured, installed.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_TRACKING_H
#define BATON_STATEMENT_TRACKING_H

#include "optimizer/planner.h"

#include "baton_shared.h"
#include "catalog_watch.h"

/* ----------------------------------------------------------------
 *		Noticing what a session does to its prepared statements.
 * ----------------------------------------------------------------
 */

/* A utility statement begins, and has succeeded (pg_baton.c). */
extern void baton_notice_utility_begins(BatonUtility *utility);
extern void baton_notice_utility_done(const BatonUtility *utility);

/* pg_prepared_statement() is about to run (taint_watch.c). */
extern void baton_notice_listing(void);

/*
 * A parameter or the role is set otherwise (taint_watch.c): by set_config(),
 * which will only do so now, or as a function begins or has ended.
 */
extern void baton_notice_set_config(void);
extern void baton_notice_settings(void);

/* Every message to the client, as baton_context_note_message() has it. */
extern void baton_notice_message(char type);

/* ----------------------------------------------------------------
 *		What is noticed while a statement is planned.
 * ----------------------------------------------------------------
 */

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

/* A function is looked up (pg_baton.c): the planner asks before it copies one. */
extern void baton_planning_looks_up(Oid function);

/* Within the planner? */
extern bool baton_planning_is_under_way(void);

/* From pg_baton.c: a statement is planned, by that planner. */
extern PlannedStmt *baton_planning_run(Query *parse, const char *query_string,
									   int cursor_options, ParamListInfo parameters,
									   planner_hook_type planner);

/* ----------------------------------------------------------------
 *		The named prepared statements of a session.
 * ----------------------------------------------------------------
 */

/* Once a backend; NULL if all is well, else why it cannot pool. */
extern const char *baton_statements_attach(void);

/* The rest: as the functions of context.h, for this part of a context. */
extern void baton_statements_install(const BatonSessionRecord *record);
extern bool baton_statements_capture(uint64 session);
extern void baton_statements_forget(uint64 session);

#endif							/* BATON_STATEMENT_TRACKING_H */
