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
 *		What plancache.c keeps of a prepared statement, assembled, shared and
 *		taken apart from outside.
 */

/* NULL if the list of saved plans is as expected, else why it is not. */
extern const char *baton_plan_attach(void);

/* The plan that was saved last; after attach there is always a plan. */
extern CachedPlanSource *baton_newest_plan(void);

/*
 * Completes a plan without analysis: sets what CompleteCachedPlan() sets;
 * valid only if the plan is of a kind that is never revalidated.  `result`,
 * which is copied, describes what it returns; NULL: nothing.
 */
extern void baton_plan_complete(CachedPlanSource *plan, const Oid *parameter_types,
								int parameters, int cursor_options, bool fixed_result,
								TupleDesc result);

/*
 * Makes the plan the other one without changing its address; the other's
 * struct is invalid then.
 */
extern void baton_plan_become(CachedPlanSource *plan, CachedPlanSource *made);

/*
 * A plan in a new context below the current one, and with its own counters,
 * that refers to the trees of another plan, which must outlive it.  The caller
 * saves it.
 */
extern CachedPlanSource *baton_plan_view(const CachedPlanSource *plan);

/* Moves a plan's trees to another plan, and frees that plan's own. */
extern void baton_plan_give_trees(CachedPlanSource *from, CachedPlanSource *to);

/*
 * Makes the generic plan of `from`, which must have one, that of `to` as well.
 */
extern void baton_plan_share_generic(const CachedPlanSource *from, CachedPlanSource *to);
extern void baton_plan_drop_generic(CachedPlanSource *plan);

/* The same, and `to` continues the count of what `from` has planned. */
extern void baton_plan_give_generic(const CachedPlanSource *from, CachedPlanSource *to);

/* Has its trees made again, and its generic plan. */
extern void baton_plan_invalidate(CachedPlanSource *plan);

/* Has its trees alone made again. */
extern void baton_plan_invalidate_trees(CachedPlanSource *plan);

/*
 * For all saved plans: has what depends on roles made again.  `memberships`:
 * the right to execute functions may have changed, too.
 */
extern void baton_plan_roles_change(bool memberships);

/*
 * The bytes of its memory contexts, and of its generic plan if at most
 * `references` plan sources refer to that.
 */
extern Size baton_plan_bytes(const CachedPlanSource *plan, int references);

/*
 * Frees the SPI plans that were prepared with this parser setup, if `find`
 * returns a place for their argument.
 */
extern void baton_plan_free_spi(bool (*is_parser) (ParserSetupHook setup),
								SPIPlanPtr *(*find) (void *argument, const void *context),
								const void *context);

/*
 * Sets the function called at the begin of each analysis, and its argument.
 */
extern void baton_plan_set_parser(CachedPlanSource *plan, ParserSetupHook setup, void *argument);

/* The counters by which custom and generic plans are chosen. */
extern void baton_plan_get_counters(const CachedPlanSource *plan, BatonStatementCounter *counters);
extern void baton_plan_set_counters(CachedPlanSource *plan, const BatonStatementCounter *counters);
extern void baton_plan_set_generic_cost(CachedPlanSource *plan, double cost);

/* ----------------------------------------------------------------
 *		The table of prepared statements, replaced by one that calls back at
 *		each look-up.
 */

/* Called before a name is looked up, or entered. */
typedef void (*BatonStatementWanted) (const char *name, uint32 hash);

/* NULL, or why the table cannot be replaced. */
extern const char *baton_table_attach(BatonStatementWanted wanted);

/* Looking up, entering and removing without the callback. */
extern PreparedStatement *baton_table_find(const char *name, uint32 hash);
extern void baton_table_enter(const char *name, uint32 hash, CachedPlanSource *plan,
							  bool from_sql, TimestampTz prepare_time);
extern void baton_table_remove(const char *name, uint32 hash);

/*
 * Called when the session leaves; its entries, at most `names`, have been
 * removed.
 */
extern void baton_table_refresh(int names);

/* ----------------------------------------------------------------
 *		Queries that are analysed, run and not kept.
 */

/*
 * Is it certain that nothing keeps the query beyond its execution?  Called
 * when its analysis ends.  False in doubt.
 */
extern bool baton_analysed_for_once(const ParseState *pstate);

#endif							/* BATON_PG_PLANCACHE_H */
