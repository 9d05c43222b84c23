/*-------------------------------------------------------------------------
 *
 * statement_sparing.h
 *		Custom plans that need not be made.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_SPARING_H
#define BATON_STATEMENT_SPARING_H

#include "held_statement.h"

/* A held statement has that common one's plans: spares the session what it can. */
extern void baton_sparing_begin(CachedPlanSource *plan, HeldStatement *held,
								const CommonStatement *common);

/* The held statement was prepared just now: is it one that the backend keeps? */
extern void baton_sparing_find_twin(HeldStatement *held, bool from_sql);

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

#endif							/* BATON_STATEMENT_SPARING_H */
