/*-------------------------------------------------------------------------
 *
 * session_statements.h
 *		The statements that the session in place has looked up: what they take
 *		from the common statements, and leave to them.
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

/* An item's counter, if the dispatcher had no free one. */
#define BATON_NO_COUNTER PG_UINT32_MAX

/*
 * A plan that executes its generic plan where the server would make custom
 * plans, all of them equal (statement_cache.c). Its counters are then not its
 * session's, and stand for them.
 */
typedef struct SparedPlans
{
	int			due;			/* custom plans still to be counted; 0: none */
	double		cost;			/* of each */
	BatonStatementCounter own;	/* the session's counters at the begin */
	BatonStatementCounter set;	/* the counters that the plan was given */
} SparedPlans;

/* The session's counters of the plan. */
extern void baton_counters_get(const CachedPlanSource *plan, const SparedPlans *spared,
							   BatonStatementCounter *counters);

/* Do the plan's counters differ from those written? */
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
 * statement. A statement that was not looked up cannot have changed.
 */
typedef struct HeldStatement
{
	char		name[NAMEDATALEN];
	uint32		hash;			/* of the name */
	bool		unready;		/* in the context, but its plan is not made
								 * yet */
	bool		in_context;		/* the session's context has the name, */
	bool		is_new;			/* but not this plan, which was prepared here */
	bool		counter_due;	/* the dispatcher will tell the slot */
	CachedPlanSource *plan;		/* NULL: does not exist, or is unknown */
	struct PlanTie *tie;		/* the plan's tie, which tells when it is
								 * dropped */
	CommonStatement *common;	/* the one that the plan refers to; NULL: the
								 * plan was prepared here */
	StatementEnvironment environment;	/* environment in which it was looked
										 * up or prepared */
	uint64		epoch;			/* and the epoch of that */
	int			own_generation; /* generation of the generic plan, if it was
								 * made in that environment */
	bool		folds;			/* a generic plan holds the result of a user's
								 * immutable function */
	bool		inlines;		/* or perhaps the body of a function in SQL */
	CustomPlans custom;			/* what was learnt of them, unless from the
								 * common statement */
	CommonStatement *twin;		/* if prepared here: the common statement that
								 * equals it */
	SparedPlans spared;
	char	   *value;			/* its description, if it is not the common
								 * statement's; NULL: unknown */
	uint32		value_length;
	TimestampTz prepare_time;
	uint32		counter;		/* slot in CONTROL, or BATON_NO_COUNTER */
	BatonStatementCounter written;	/* counters as the context has them */
	dlist_node	node;			/* in BatonPlaced.held, in the order of the
								 * look-ups */
} HeldStatement;

/* ----------------------------------------------------------------
 *		Custom plans that need not be made.
 * ----------------------------------------------------------------
 */

/*
 * A custom plan is about to be made for the query; can anything be learnt from
 * it? The second function is called when it was made.
 */
extern bool baton_sparing_asks(const char *query_string);
extern void baton_sparing_learn(const char *query_string, bool alike,
								const PlannedStmt *planned);

/*
 * From now on all executions are the server's own: the session is about to see
 * its counters, or a plan, or something changes that plans depend on.
 */
extern void baton_sparing_end(void);

/* ----------------------------------------------------------------
 *		The statements that the session in place has looked up.
 * ----------------------------------------------------------------
 */

/* Returns NULL, or the reason why it failed. */
extern const char *baton_held_attach(void);

/* The session in place leaves: keeps what other sessions can use. */
extern void baton_held_close(void);

/*
 * Has the session in place looked up so many statements that ending the
 * backend is better than closing them?
 */
extern bool baton_held_are_many(void);

/* The bytes of the statements that the session in place has looked up. */
extern Size baton_held_bytes(void);

/* The session of the record comes. */
extern void baton_held_open(const BatonSessionRecord *record);

/* All statements are about to be listed, or dropped. */
extern void baton_held_look_up_all(void);

/*
 * Looks up all statements that were described with settings
 * (statement_description.c).
 */
extern void baton_held_look_up_described(void);

/* Whatever plans have acquired so far was made in their own environment. */
extern void baton_held_settle(void);

/* The generic plan of that text has been made, and contains such results. */
extern void baton_held_folds(const char *query_string, bool folds, bool inlines);

/* Looks a statement up, before the server does. */
extern void baton_held_look_up(const char *name);

/* The plan was just stored under the name looked up last. */
extern void baton_held_prepared(CachedPlanSource *plan);

/* Ties a name to the plan that was found stored under it. */
extern void baton_held_tie(HeldStatement *held, CachedPlanSource *plan);

#endif							/* BATON_SESSION_STATEMENTS_H */
