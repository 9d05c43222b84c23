/*-------------------------------------------------------------------------
 *
 * statement_tracking.h
 *		Noticing, capturing and installing what a session does to its prepared
 *		statements.
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

/* Called from pg_baton.c: a utility statement begins, and has succeeded. */
extern void baton_notice_utility_begins(BatonUtility *utility);
extern void baton_notice_utility_done(const BatonUtility *utility);

/* pg_prepared_statement() is about to run (called from taint_watch.c). */
extern void baton_notice_listing(void);

/*
 * A parameter or the role changes (called from taint_watch.c): by
 * set_config(), which has yet to do it, or when a function begins or has
 * ended.
 */
extern void baton_notice_set_config(void);
extern void baton_notice_settings(void);

/*
 * Called for every message to the client, as baton_context_note_message() is.
 */
extern void baton_notice_message(char type);

/* ----------------------------------------------------------------
 *		What is noticed while a statement is planned.
 * ----------------------------------------------------------------
 */

/* An expression is about to execute a function (called from taint_watch.c). */
extern void baton_planning_function(Oid function);

/*
 * `planned` is called when a plan was made that is not for one execution, and
 * that holds the result of a user's immutable function, or perhaps the body of
 * a function in SQL.
 */
extern void baton_planning_watch(void (*planned) (bool folds, bool inlines));

/*
 * `copied` is called when a user's function in SQL may be copied into a plan.
 */
extern void baton_planning_watch_copies(void (*copied) (Oid function));

/*
 * `rewritten` is called when a query that writes is planned: the rewriter has
 * added the columns' defaults, including a domain's.
 */
extern void baton_planning_watch_rewritten(void (*rewritten) (Query *query));

/*
 * A function is looked up (called from pg_baton.c): the planner does that
 * before it copies a function.
 */
extern void baton_planning_looks_up(Oid function);

/* Is the planner running? */
extern bool baton_planning_is_under_way(void);

/* Called from pg_baton.c to plan a statement with that planner. */
extern PlannedStmt *baton_planning_run(Query *parse, const char *query_string,
									   int cursor_options, ParamListInfo parameters,
									   planner_hook_type planner);

/* ----------------------------------------------------------------
 *		The named prepared statements of a session.
 * ----------------------------------------------------------------
 */

/* Called once per backend. Returns NULL, or the reason why it cannot pool. */
extern const char *baton_statements_attach(void);

/* The rest works as the functions of context.h, for this part of a context. */
extern void baton_statements_install(const BatonSessionRecord *record);
extern bool baton_statements_capture(uint64 session);
extern void baton_statements_forget(uint64 session);

#endif							/* BATON_STATEMENT_TRACKING_H */
