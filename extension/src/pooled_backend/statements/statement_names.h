/*-------------------------------------------------------------------------
 *
 * statement_names.h
 *		The names in a statement that a new object or function could take over.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_NAMES_H
#define BATON_STATEMENT_NAMES_H

#include "nodes/parsenodes.h"
#include "utils/plancache.h"

#include "pg_catalogs.h"

/* ----------------------------------------------------------------
 *		The functions that a call by name may mean.
 * ----------------------------------------------------------------
 */

/* Of the hashes of names, to tell what is called so. */
#define BATON_FUNCTION_SALT 0x7F4A7C15

/* The functions that compete with the one that was chosen. */
typedef struct BatonCompetitors
{
	bool		too_many;		/* to be listed */
	int			count;
	uint32	   *hashes;			/* of their OIDs, as called_changed() gives
								 * them, and of the name in each schema */
} BatonCompetitors;

/*
 * In a transaction: what those are called that have changed since the last time.
 * False if too many have.
 */
typedef void (*BatonFunctionNamed) (uint32 hash);

/*
 * In a transaction: looks up the competitors of each of the functions, which a query
 * calls (baton_bindings_functions).
 */
typedef void (*BatonCompetitorFound) (uint32 hash);

/*
 * What was looked up for a function as it was called with that search path; NULL: it
 * is not known any more.
 */
extern const BatonCompetitors *baton_called_competitors(Oid function,
														const BatonSearchPath *path);

/*
 * In a transaction: of a name, in any schema of the search path and in that one.
 * What is listed lies in the current memory context.
 */
extern void baton_called_list(BatonCompetitors *competitors, const char *name,
							  const BatonSearchPath *path, Oid schema);

/* ----------------------------------------------------------------
 *		The names in a statement that a new object could hide.
 * ----------------------------------------------------------------
 */

typedef struct StatementNames StatementNames;

/*
 * An object was made; its hash is for baton_names_hidden_by().  Called whenever
 * invalidations are taken in: must not do more than mark.
 */
typedef void (*BatonObjectMade) (uint32 hash);

/* What is made or changed without a name that could be compared. */
#define BATON_ANY_FUNCTION 0	/* one of the server's, or too many */
#define BATON_ANY_OBJECT 1		/* casts, operator classes, text search, ... */
#define BATON_ANY_ROLE 2
#define BATON_ANY_ENUM 3

/* Once a backend. */
extern void baton_names_attach(BatonObjectMade made_callback);

/* A transaction is under way. */
extern void baton_names_in_transaction(void);

/*
 * Functions that have changed are looked up, in a transaction of its own if
 * there is none.
 */
extern void baton_names_look_up_functions(void);

/* A query was analysed: what its types and functions are called is noted. */
extern void baton_names_query_analysed(Query *query);

/*
 * The hashes of the names of a type in a query that was analysed, and of those that it
 * is made of, unsalted.  None: they are not known any more.
 */
extern const List *baton_names_of_type(Oid type);

/* Those of a plan, in the plan's memory. */
extern StatementNames *baton_names_collect(const CachedPlanSource *plan);

/*
 * What was made since a moment, which is told by a count; true if it matches
 * for any, or they are not known any more.  A type's hash is salted.
 */
#define BATON_TYPE_SALT 0x9E3779B9
typedef bool (*BatonMadeMatches) (uint32 hash, void *argument);

extern uint64 baton_names_made(void);
extern bool baton_names_made_since(uint64 since, BatonMadeMatches matches, void *argument);

/* The hash of a function's OID is to be told when that function changes. */
extern void baton_names_expect(uint32 hash);

/* A session comes: what is analysed for it is analysed from now on. */
extern void baton_names_stay_begins(void);

/* The plan was analysed in this stay, perhaps with another search path. */
extern void baton_names_analysed(StatementNames *names);

/*
 * Its generic plan holds bodies of functions in SQL: any object may be meant
 * there, and the role may not be allowed to call them any more.
 */
extern void baton_names_inlined(StatementNames *names);

/* Do its trees hold the time they were made at ('now')? */
extern bool baton_names_moment(const StatementNames *names);

/* May the object be one of the statement's? */
extern bool baton_names_hidden_by(const StatementNames *names, uint32 hash);

/*
 * A plan that was analysed is to be looked at, once a transaction has been under
 * way: true if its names may be hidden by what was made since.
 */
extern bool baton_names_can_look(void);
extern bool baton_names_look_at(StatementNames *names, const CachedPlanSource *plan);

#endif							/* BATON_STATEMENT_NAMES_H */
