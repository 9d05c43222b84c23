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

#include "baton_shared.h"
#include "utils/plancache.h"

/* An item's counter, if the dispatcher had none left. */
#define BATON_NO_COUNTER PG_UINT32_MAX

/*
 * A plan that executes its generic plan where the server would make custom
 * ones, all of them alike (statement_values.c): its counters are then not its
 * session's, and stand for them.
 */
typedef struct SparedPlans
{
	int			due;			/* custom plans still to be counted; 0: none */
	double		cost;			/* of each */
	BatonStatementCounter own;	/* the session's counters when it began */
	BatonStatementCounter set;	/* and what the plan was given */
} SparedPlans;

/* The counters of the plan's session. */
extern void baton_counters_get(const CachedPlanSource *plan, const SparedPlans *spared,
							   BatonStatementCounter *counters);

/*
 * From now on the plan's custom plans, of that cost each, are spared, as many
 * as the server would begin with; and not any more.
 */
extern void baton_counters_spare(CachedPlanSource *plan, SparedPlans *spared, double cost);
extern void baton_counters_end_sparing(CachedPlanSource *plan, SparedPlans *spared);

/* Gives the plan the counters of that slot. */
extern void baton_counters_load(CachedPlanSource *plan, uint32 counter,
								BatonStatementCounter *written);

/* Are the plan's others than those written? */
extern bool baton_counters_changed(const CachedPlanSource *plan,
								   const SparedPlans *spared,
								   const BatonStatementCounter *written);

/* Writes them into the slot. */
extern void baton_counters_store(const CachedPlanSource *plan,
								 const SparedPlans *spared, uint32 counter,
								 BatonStatementCounter *written);

#endif							/* BATON_STATEMENT_COUNTERS_H */
