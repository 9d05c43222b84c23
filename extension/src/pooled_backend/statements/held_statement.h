/*-------------------------------------------------------------------------
 *
 * held_statement.h
 *		A statement that the session in place has looked up.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HELD_STATEMENT_H
#define BATON_HELD_STATEMENT_H

#include "datatype/timestamp.h"

#include "statement_common.h"
#include "statement_counters.h"

/*
 * A name that was looked up since the session came, and what is known of the
 * statement.  What was not looked up cannot have changed.
 */
typedef struct HeldStatement
{
	char		name[NAMEDATALEN];
	uint32		hash;			/* of the name */
	bool		unready;		/* in the context, but not made yet */
	bool		in_context;		/* the session's context has the name, */
	bool		is_new;			/* but not this plan, which was prepared here */
	bool		counter_due;	/* the dispatcher will say which slot */
	CachedPlanSource *plan;		/* NULL: not there, or not known */
	struct PlanTie *tie;		/* the plan's, which tells that it has gone */
	CommonStatement *common;	/* that the plan refers to; NULL: it was
								 * prepared here */
	StatementEnvironment environment;	/* that it was looked up or prepared
										 * in */
	uint64		epoch;			/* and when that was */
	int			own_generation; /* of the generic plan, if it was made in that
								 * environment */
	bool		folds;			/* a generic plan holds what a user's
								 * immutable function has returned */
	bool		inlines;		/* or perhaps a function in SQL */
	CustomPlans custom;			/* what was learnt of them, if not from the
								 * common statement */
	CommonStatement *twin;		/* prepared here: the common statement that it
								 * was found to be equal to */
	SparedPlans spared;
	char	   *value;			/* its description, if it is not the common
								 * statement's; NULL: not known */
	uint32		value_length;
	TimestampTz prepare_time;
	uint32		counter;		/* slot in CONTROL, or BATON_NO_COUNTER */
	BatonStatementCounter written;	/* counters as the context has them */
	dlist_node	node;			/* in BatonPlaced.held, in the order of
								 * looking up */
} HeldStatement;

#endif							/* BATON_HELD_STATEMENT_H */
