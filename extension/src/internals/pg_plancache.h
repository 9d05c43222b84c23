/*-------------------------------------------------------------------------
 *
 * pg_plancache.h
 *		PostgreSQL's prepared statements (plancache.c, prepare.c): their parts,
 *		the table that finds them by name, and queries that are not kept.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_PLANCACHE_H
#define BATON_PG_PLANCACHE_H

#include "commands/prepare.h"
#include "executor/spi.h"
#include "parser/parse_node.h"
#include "utils/plancache.h"

#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		What plancache.c keeps of a prepared statement, put together, shared and
 *		taken apart by hand.
 * ----------------------------------------------------------------
 */

/* NULL if the list of saved plans is as expected, else why it is not. */
extern const char *baton_plan_attach(void);

/* The plan that was saved last; after attach there is always one. */
extern CachedPlanSource *baton_newest_plan(void);

/*
 * Completes a plan without analysis: what CompleteCachedPlan() fills in, valid
 * only if it is of a kind that is never revalidated.  `result`, which is
 * copied, describes what it returns; NULL if nothing.
 */
extern void baton_plan_complete(CachedPlanSource *plan, const Oid *parameter_types,
								int parameters, int cursor_options, bool fixed_result,
								TupleDesc result);

/* The plan becomes the other one where it stands; the other's struct is void. */
extern void baton_plan_become(CachedPlanSource *plan, CachedPlanSource *made);

/*
 * A plan of its own context, below the current one, and with counters of its
 * own, that refers to the trees of another, which must outlive it.  It is to be
 * saved.
 */
extern CachedPlanSource *baton_plan_view(const CachedPlanSource *plan);

/* Hands the trees it was analysed into to another plan, which gives its up. */
extern void baton_plan_give_trees(CachedPlanSource *from, CachedPlanSource *to);

/* The generic plan of `from`, which has one, is that of `to` as well. */
extern void baton_plan_share_generic(const CachedPlanSource *from, CachedPlanSource *to);
extern void baton_plan_drop_generic(CachedPlanSource *plan);

/* The same, and `to` counts on from what `from` has planned. */
extern void baton_plan_give_generic(const CachedPlanSource *from, CachedPlanSource *to);

/* Its trees are to be made again, and with them its generic plan. */
extern void baton_plan_invalidate(CachedPlanSource *plan);

/* The same of the trees alone. */
extern void baton_plan_invalidate_trees(CachedPlanSource *plan);

/*
 * What depends on roles is to be made again, of all saved plans.  `memberships`:
 * who may execute a function may have changed, too.
 */
extern void baton_plan_roles_change(bool memberships);

/*
 * The bytes of its memory contexts, and of its generic plan's if no more than so
 * many plan sources refer to that.
 */
extern Size baton_plan_bytes(const CachedPlanSource *plan, int references);

/*
 * Frees the SPI plans that were prepared with this parser setup, and whose
 * argument for it is wanted.
 */
extern void baton_plan_free_spi(bool (*is_parser) (ParserSetupHook setup),
								SPIPlanPtr *(*find) (void *argument, const void *context),
								const void *context);

/* What is called as each analysis begins, and with what. */
extern void baton_plan_set_parser(CachedPlanSource *plan, ParserSetupHook setup, void *argument);

/* The counters by which custom and generic plans are chosen. */
extern void baton_plan_get_counters(const CachedPlanSource *plan, BatonStatementCounter *counters);
extern void baton_plan_set_counters(CachedPlanSource *plan, const BatonStatementCounter *counters);
extern void baton_plan_set_generic_cost(CachedPlanSource *plan, double cost);

/* ----------------------------------------------------------------
 *		The table of prepared statements, which asks for what is looked up.
 * ----------------------------------------------------------------
 */

/* A name is about to be looked up, or entered. */
typedef void (*BatonStatementWanted) (const char *name, uint32 hash);

/* NULL if all is well, else why the table cannot be replaced. */
extern const char *baton_table_attach(BatonStatementWanted wanted);

/* Looking up, entering and removing without asking. */
extern PreparedStatement *baton_table_find(const char *name, uint32 hash);
extern void baton_table_enter(const char *name, uint32 hash, CachedPlanSource *plan,
							  bool from_sql, TimestampTz prepare_time);
extern void baton_table_remove(const char *name, uint32 hash);

/* The session leaves; its entries, at most so many, have been removed. */
extern void baton_table_refresh(int names);

/* ----------------------------------------------------------------
 *		Queries that are analysed, run and forgotten.
 * ----------------------------------------------------------------
 */

/*
 * Is the query, whose analysis ends, surely one that nothing keeps beyond its
 * execution?  False in doubt.
 */
extern bool baton_analysed_for_once(const ParseState *pstate);

#endif							/* BATON_PG_PLANCACHE_H */
