/*-------------------------------------------------------------------------
 *
 * statement_names.h
 *		The names in a statement that a new object could hide.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_NAMES_H
#define BATON_STATEMENT_NAMES_H

#include "utils/plancache.h"

typedef struct StatementNames StatementNames;

/*
 * An object was made; its hash is for baton_names_hidden_by().  Called whenever
 * invalidations are taken in: must not do more than mark.
 */
typedef void (*BatonObjectMade) (uint32 hash);

#define BATON_ANY_FUNCTION 0

/* Once a backend. */
extern void baton_names_attach(BatonObjectMade made_callback);

/* A transaction is under way. */
extern void baton_names_in_transaction(void);

/* Those of a plan, in the plan's memory. */
extern StatementNames *baton_names_collect(const CachedPlanSource *plan);

/* A session comes: what is analysed for it is analysed from now on. */
extern void baton_names_stay_begins(void);

/* The plan was analysed in this stay, perhaps with another search path. */
extern void baton_names_analysed(StatementNames *names);

/* May the object be one of the statement's? */
extern bool baton_names_hidden_by(const StatementNames *names, uint32 hash);

/*
 * Are there new ones?  Then each valid plan is to be looked at: true if its
 * names may be hidden by what was made since it was analysed.
 */
extern bool baton_names_to_look_at(void);
extern bool baton_names_look_at(StatementNames *names, const CachedPlanSource *plan);
extern void baton_names_looked_at(void);

#endif							/* BATON_STATEMENT_NAMES_H */
