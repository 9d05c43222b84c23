/*-------------------------------------------------------------------------
 *
 * statement_environment.h
 *		What analysis and planning of a statement depend on beside its text.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_ENVIRONMENT_H
#define BATON_STATEMENT_ENVIRONMENT_H

#include "nodes/parsenodes.h"

#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		What a statement's trees and plan hold of the moment they were made at.
 * ----------------------------------------------------------------
 */

typedef struct BatonBindings
{
	bool		objects;		/* a constant that was read as the name of a
								 * relation or type */
	bool		functions;		/* or of a function */
	bool		roles;			/* or of a role */
	bool		constants;		/* one of a user's type, such as an enum */
	bool		moment;			/* one that is the time itself ('now') */
} BatonBindings;

/* Of analysed trees; reads no catalog. */
extern void baton_bindings_find(BatonBindings *bindings, List *queries, const char *text);

/* Users' types that values in analysed trees are converted to. */
extern List *baton_bindings_types(List *queries);

/* Functions that their text calls by a name, not those of views and defaults. */
extern List *baton_bindings_functions(List *queries);

/* Both of one query, by one walk. */
extern void baton_bindings_types_and_functions(Query *query, List **types, List **functions);

/* Does the analysed query hold the time itself? */
extern bool baton_bindings_moment(Query *query, const char *text);

/* Does it hold a function as a constant ('f'::regproc)? */
extern bool baton_bindings_function_constant(Query *query);

/* Is it a function in SQL of a user's?  Reads catalogs. */
extern bool baton_bindings_is_users_sql(Oid function);

/* ----------------------------------------------------------------
 *		What analysis and planning of a statement take in beside its text.
 * ----------------------------------------------------------------
 */

/*
 * An environment.  The role is compared itself: settings that give a wanted number can be
 * found, and must not give the rights of another.
 */
typedef struct StatementEnvironment
{
	uint64		number;			/* equal number, equal settings */
	Oid			role;
} StatementEnvironment;

static inline bool
baton_same_environment(StatementEnvironment one, StatementEnvironment other)
{
	return one.number == other.number && one.role == other.role;
}

/* The environment in force. */
extern StatementEnvironment baton_statement_environment(void);

/*
 * Once: who must know before the environment changes, of plans that are still
 * what it was until then.  Cannot fail.
 */
extern void baton_environment_watch(void (*before) (void));

/*
 * A session is put in place, with that version of its context; the same as was
 * in place before?
 */
extern void baton_environment_install(uint64 context_version, bool same);

/* The environment is about to change, or may be. */
extern void baton_environment_changes(void);

/* Something is looked up, analysed or planned: by whom? */
extern void baton_environment_look_at_role(void);

/* It may change at any moment, until the client's command is complete. */
extern void baton_environment_is_volatile(void);
extern void baton_environment_is_stable(void);

/* From pg_baton.c: a transaction or subtransaction is on its way to an end. */
extern void baton_environment_transaction(void);

#endif							/* BATON_STATEMENT_ENVIRONMENT_H */
