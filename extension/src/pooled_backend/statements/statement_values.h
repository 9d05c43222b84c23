/*-------------------------------------------------------------------------
 *
 * statement_values.h
 *		Statements that are planned alike whatever values they are given.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_VALUES_H
#define BATON_STATEMENT_VALUES_H

#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

/* What is known of the custom plans of a statement. */
typedef struct CustomPlans
{
	bool		known;
	bool		alike;			/* whatever the values are: then */
	double		run_cost;		/* what one of them costs to run, */
	double		cost;			/* and with the charge for planning it */
} CustomPlans;

/*
 * Is the query planned alike, whatever the values of its parameters are (but
 * for NULL)?  To be asked before it is planned, with its relations locked.
 */
extern bool baton_values_are_indifferent(const Query *query);

/* The costs of a custom plan, as plancache.c reckons them. */
extern void baton_values_set_costs(CustomPlans *plans, const PlannedStmt *planned);

/* Does a generic plan of that cost to run look like the same plan? */
extern bool baton_values_fit(const CustomPlans *plans, double generic_cost);

#endif							/* BATON_STATEMENT_VALUES_H */
