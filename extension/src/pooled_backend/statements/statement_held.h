/*-------------------------------------------------------------------------
 *
 * statement_held.h
 *		The statements that the session in place has looked up.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_HELD_H
#define BATON_STATEMENT_HELD_H

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
	uint64		environment;	/* that it was looked up or prepared in */
	uint64		epoch;			/* and when that was */
	int			own_generation; /* of the generic plan, if it was made in that
								 * environment */
	bool		folds;			/* a generic plan holds what a user's
								 * immutable function has returned, */
	bool		folds_private;	/* with placeholders of the session */
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

/* Memory that is freed when the session's statements are taken out. */
extern MemoryContext baton_held_context;

/* NULL if all is well, else why it cannot be done. */
extern const char *baton_held_attach(void);

/* The session that was in place leaves: what is of use to others is kept. */
extern void baton_held_close(void);

/* The session of the record comes. */
extern void baton_held_open(const BatonSessionRecord *record);

/* All statements are about to be listed, or dropped. */
extern void baton_held_look_up_all(void);

/* All that were described with settings are looked up (statement_settings.c). */
extern void baton_held_look_up_described(void);

/* What of the plans was made up to now was made in their own environment. */
extern void baton_held_settle(void);

/* The generic plan of that text is made, and holds such. */
extern void baton_held_folds(const char *query_string);

/* Looks a statement up, as the server will. */
extern void baton_held_look_up(const char *name);

/* The plan was just stored under the name looked up last. */
extern void baton_held_prepared(CachedPlanSource *plan);

/* Ties a name to what was found stored under it. */
extern void baton_held_tie(HeldStatement *held, CachedPlanSource *plan);

#endif							/* BATON_STATEMENT_HELD_H */
