/*-------------------------------------------------------------------------
 *
 * statement_environment.h
 *		What analysis and planning of a statement depend on besides its text.
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
 *		What a statement's trees and plan keep of the moment when they were made.
 * ----------------------------------------------------------------
 */

typedef struct BatonBindings
{
	bool		functions;		/* a constant that was read as the name of a
								 * function, or an array of names */
	bool		roles;			/* or of a role */
	bool		constants;		/* a constant of a user's type, such as an
								 * enum */
	bool		moment;			/* a constant that is the time itself ('now') */
} BatonBindings;

/* For analysed trees; reads no catalog. */
extern void baton_bindings_find(BatonBindings *bindings, List *queries, const char *text);

/* What analysed trees name, without what views and defaults call. */
typedef struct BatonNamed
{
	List	   *types;			/* user-defined, that values are converted to */
	List	   *targets;		/* tables that rows are inserted into */
	List	   *functions;		/* called by name */
	List	   *regclasses;		/* relations by constants ('t'::regclass) */
	List	   *regtypes;		/* types by constants */
} BatonNamed;

/* Reads no catalog. */
extern void baton_bindings_named(BatonNamed *named, List *queries);
extern void baton_named_free(BatonNamed *named);

/* Does the analysed query hold the time itself? */
extern bool baton_bindings_moment(Query *query, const char *text);

/* Does it hold a function as a constant ('f'::regproc)? */
extern bool baton_bindings_function_constant(Query *query);

/*
 * Is it a user-defined function in SQL, and may a literal in its body be read
 * as a moment ('today')? Reads catalogs.
 */
extern bool baton_bindings_is_users_sql(Oid function, bool *may_have_moment);

/* ----------------------------------------------------------------
 *		What analysis and planning of a statement depend on besides its text.
 * ----------------------------------------------------------------
 */

/*
 * An environment. The role is compared itself: settings that yield a wanted
 * number can be found, and must not give another role's rights.
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
 * Called once: `before` is called before the environment changes, while plans
 * are still as they were made in it. Cannot fail.
 */
extern void baton_environment_watch(void (*before) (void));

/*
 * A session is put in place, with that version of its context; `same`: it is
 * the session that was in place before.
 */
extern void baton_environment_install(uint64 context_version, bool same);

/* The environment is about to change, or may change. */
extern void baton_environment_changes(void);

/* Something is looked up, analysed or planned: checks the current role. */
extern void baton_environment_look_at_role(void);

/*
 * The environment may change at any moment until the client's command is
 * complete, and no portal is open that may run on.
 */
extern void baton_environment_is_volatile(void);
extern void baton_environment_is_stable(void);

/* Called from pg_baton.c: a transaction or subtransaction ends. */
extern void baton_environment_transaction(void);

#endif							/* BATON_STATEMENT_ENVIRONMENT_H */
