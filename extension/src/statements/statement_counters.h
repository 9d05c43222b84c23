/*-------------------------------------------------------------------------
 *
 * statement_counters.h
 *		The counters of prepared statements, by which plancache.c chooses
 *		between custom and generic plans.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_COUNTERS_H
#define BATON_STATEMENT_COUNTERS_H

#include "context.h"
#include "utils/plancache.h"

/* An item's counter, if the dispatcher had none left. */
#define BATON_NO_COUNTER PG_UINT32_MAX

extern void baton_counters_get(const CachedPlanSource *plan,
							   BatonStatementCounter *counters);

/* Gives the plan the counters of that slot. */
extern void baton_counters_load(CachedPlanSource *plan, uint32 counter,
								BatonStatementCounter *written);

/* Are the plan's others than those written? */
extern bool baton_counters_changed(const CachedPlanSource *plan,
								   const BatonStatementCounter *written);

/* Writes them into the slot. */
extern void baton_counters_store(const CachedPlanSource *plan, uint32 counter,
								 BatonStatementCounter *written);

#endif							/* BATON_STATEMENT_COUNTERS_H */
