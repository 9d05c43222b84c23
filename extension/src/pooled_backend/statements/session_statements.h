/*-------------------------------------------------------------------------
 *
 * session_statements.h
 *		The statements that the session in place has looked up: what they take
 *		from the common ones, and leave to them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SESSION_STATEMENTS_H
#define BATON_SESSION_STATEMENTS_H

#include "datatype/timestamp.h"
#include "utils/plancache.h"

#include "baton_shared.h"
#include "statement_cache.h"

/* ----------------------------------------------------------------
 *		The counters of prepared statements, by which plancache.c chooses
 *		between custom and generic plans.
 * ----------------------------------------------------------------
 */

/* An item's counter, if the dispatcher had none left. */
#define BATON_NO_COUNTER PG_UINT32_MAX

/*
 * A plan that executes its generic plan where the server would make custom
 * ones, all of them alike (statement_cache.c): its counters are then not its
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

/* Are the plan's others than those written? */
extern bool baton_counters_changed(const CachedPlanSource *plan,
								   const SparedPlans *spared,
								   const BatonStatementCounter *written);

/* Writes them into the slot. */
extern void baton_counters_store(const CachedPlanSource *plan,
								 const SparedPlans *spared, uint32 counter,
								 BatonStatementCounter *written);

/* ----------------------------------------------------------------
 *		A statement that the session in place has looked up.
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		Custom plans that need not be made.
 * ----------------------------------------------------------------
 */

/*
 * A custom plan is about to be made for the query; is there something to be
 * learnt of it?  And it was made.
 */
extern bool baton_sparing_asks(const char *query_string);
extern void baton_sparing_learn(const char *query_string, bool alike,
								const PlannedStmt *planned);

/*
 * From now on all executions are what the server's would be: the session is to
 * be shown its counters, or a plan, or something changes that plans depend on.
 */
extern void baton_sparing_end(void);

/* ----------------------------------------------------------------
 *		The statements that the session in place has looked up.
 * ----------------------------------------------------------------
 */

/* NULL if all is well, else why it cannot be done. */
extern const char *baton_held_attach(void);

/* The session that was in place leaves: what is of use to others is kept. */
extern void baton_held_close(void);

/* Has the session in place looked up so many that it is better to end than to close them? */
extern bool baton_held_are_many(void);

/* The bytes of what the session in place has looked up. */
extern Size baton_held_bytes(void);

/* The session of the record comes. */
extern void baton_held_open(const BatonSessionRecord *record);

/* All statements are about to be listed, or dropped. */
extern void baton_held_look_up_all(void);

/* All that were described with settings are looked up (statement_description.c). */
extern void baton_held_look_up_described(void);

/* What of the plans was made up to now was made in their own environment. */
extern void baton_held_settle(void);

/* The generic plan of that text is made, and holds such. */
extern void baton_held_folds(const char *query_string, bool folds, bool inlines);

/* Looks a statement up, as the server will. */
extern void baton_held_look_up(const char *name);

/* The plan was just stored under the name looked up last. */
extern void baton_held_prepared(CachedPlanSource *plan);

/* Ties a name to what was found stored under it. */
extern void baton_held_tie(HeldStatement *held, CachedPlanSource *plan);

#endif							/* BATON_SESSION_STATEMENTS_H */
