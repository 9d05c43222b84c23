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

#include "held_statement.h"

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

/* All that were described with settings are looked up (statement_settings.c). */
extern void baton_held_look_up_described(void);

/* What of the plans was made up to now was made in their own environment. */
extern void baton_held_settle(void);

/* The generic plan of that text is made, and holds such (held_statement.h). */
extern void baton_held_folds(const char *query_string, bool folds, bool inlines);

/* Looks a statement up, as the server will. */
extern void baton_held_look_up(const char *name);

/* The plan was just stored under the name looked up last. */
extern void baton_held_prepared(CachedPlanSource *plan);

/* Ties a name to what was found stored under it. */
extern void baton_held_tie(HeldStatement *held, CachedPlanSource *plan);

#endif							/* BATON_STATEMENT_HELD_H */
