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
#include "statement_environment.h"

/* ----------------------------------------------------------------
 *		The functions that a call by name may mean.
 * ----------------------------------------------------------------
 */

/* Salt of the hashes of functions' names. */
#define BATON_FUNCTION_SALT 0x7F4A7C15

/* The functions that compete with the chosen one. */
typedef struct BatonCompetitors
{
	bool		too_many;		/* too many to be listed */
	int			count;
	uint32	   *hashes;			/* of their OIDs, as called_changed() returns
								 * them, and of the name in each schema */
} BatonCompetitors;

/*
 * Reports the names of the functions that have changed since the last call.
 * Returns false if too many have. Must be called in a transaction.
 */
typedef void (*BatonFunctionNamed) (uint32 hash);

/*
 * Looks up the competitors of each function that a query calls
 * (BatonNamed). Must be called in a transaction.
 */
typedef void (*BatonCompetitorFound) (uint32 hash);

/*
 * What was looked up for a function that was called with that search path;
 * NULL: it is no longer known.
 */
extern const BatonCompetitors *baton_called_competitors(Oid function,
														const BatonSearchPath *path);

/*
 * Lists the functions of a name, in any schema of the search path and in the
 * given one, in the current memory context. Must be called in a transaction.
 */
extern void baton_called_list(BatonCompetitors *competitors, const char *name,
							  const BatonSearchPath *path, Oid schema);

/* ----------------------------------------------------------------
 *		The names in a statement that a new object could hide.
 * ----------------------------------------------------------------
 */

typedef struct StatementNames StatementNames;

/*
 * An object was made; its hash is for baton_names_hidden_by(). Called whenever
 * invalidations are processed: must only mark.
 */
typedef void (*BatonObjectMade) (uint32 hash);

/* Hashes for objects without a name that could be compared. */
#define BATON_ANY_FUNCTION 0	/* one of the server's functions, or too many */
#define BATON_ANY_OBJECT 1		/* casts, operator classes, text search, ... */
#define BATON_ANY_ROLE 2
#define BATON_ANY_ENUM 3
#define BATON_ANY_ROW 4			/* of a relation that no names have */

/* Called once per backend. */
extern void baton_names_attach(BatonObjectMade made_callback);

/* A transaction is under way. */
extern void baton_names_in_transaction(void);

/*
 * Looks up functions that have changed, in a transaction of its own if there
 * is none.
 */
extern void baton_names_look_up_functions(void);

/* A query was analysed: notes the names of all that it names. */
extern void baton_names_query_analysed(Query *query);

/*
 * Lists the unsalted hashes of the names of these types and of their component
 * types, of the domains in these targets, and of types in constants; and the
 * names (char *) that the constants may have been read from, which are valid
 * until another query is analysed. Returns false if some are no longer known.
 */
extern bool baton_names_of(const BatonNamed *named, List **hashes, List **names);

/* The hashes for one type. Must be called in a transaction. */
extern const List *baton_names_look_up_type(Oid type);

/* The names of a plan, in the plan's memory. */
extern StatementNames *baton_names_collect(const CachedPlanSource *plan);

/*
 * The objects made since a moment, which is given as their count. Returns true
 * if one matches, or if they are no longer known. A type's hash is salted.
 */
#define BATON_TYPE_SALT 0x9E3779B9
typedef bool (*BatonMadeMatches) (uint32 hash, void *argument);

extern uint64 baton_names_made(void);
extern bool baton_names_made_since(uint64 since, BatonMadeMatches matches, void *argument);

/*
 * The hash of a function's OID shall be reported when that function changes.
 */
extern void baton_names_expect(uint32 hash);

/* A session comes: analyses from now on belong to its stay. */
extern void baton_names_stay_begins(void);

/* The plan was analysed in this stay, perhaps with another search path. */
extern void baton_names_analysed(StatementNames *names);

/*
 * The planner may copy the body of a function in SQL: the types of its
 * constants are in no tree that is shown, so that any row type counts.
 */
extern void baton_names_will_inline(void);

/*
 * Its generic plan holds bodies of functions in SQL: these may mean any
 * object, and the role may no longer be allowed to call them.
 */
extern void baton_names_inlined(StatementNames *names);

/* Do its trees hold the time when they were made ('now')? */
extern bool baton_names_moment(const StatementNames *names);

/* May the statement mean this object? */
extern bool baton_names_hidden_by(const StatementNames *names, uint32 hash);

/*
 * An analysed plan can be looked at once a transaction has begun. Returns true
 * if objects made since may hide its names.
 */
extern bool baton_names_can_look(void);
extern bool baton_names_look_at(StatementNames *names, const CachedPlanSource *plan);

#endif							/* BATON_STATEMENT_NAMES_H */
