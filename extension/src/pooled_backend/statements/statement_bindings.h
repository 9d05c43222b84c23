/*-------------------------------------------------------------------------
 *
 * statement_bindings.h
 *		What a statement's trees and plan hold of the moment they were made at.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_BINDINGS_H
#define BATON_STATEMENT_BINDINGS_H

#include "nodes/parsenodes.h"

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

#endif							/* BATON_STATEMENT_BINDINGS_H */
