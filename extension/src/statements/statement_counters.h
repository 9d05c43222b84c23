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

#include "statement_known.h"

/* The counters of a plan that was never executed (CreateCachedPlan). */
extern const BatonStatementCounter baton_fresh_counters;

/* Is the entry the item that carries initial counters? */
extern bool baton_counters_is_item(const BatonEntry *entry);

/* Gives the plan of a statement its initial counters; initial may be NULL. */
extern void baton_counters_begin(KnownStatement *known, const BatonEntry *initial);

/* Has nobody written the statement's counters since its slot was allotted? */
extern bool baton_counters_slot_is_new(const KnownStatement *known);

/*
 * The statement is put anew: the dispatcher may give it the slot that the one
 * before it had, which is therefore left as if nobody had written it.
 */
extern void baton_counters_forget_slot(KnownStatement *known);

/* The plans of the table agree with the session's counters, and vice versa. */
extern void baton_counters_install(StatementTable *table, uint64 session);

/*
 * Writes the counters that have changed: of all statements, or of those that
 * were touched.  True if the delta has something.
 */
extern bool baton_counters_capture(StatementTable *table, uint64 session, bool all);

#endif							/* BATON_STATEMENT_COUNTERS_H */
