/*-------------------------------------------------------------------------
 *
 * called_functions.h
 *		The functions that a call by name may mean.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CALLED_FUNCTIONS_H
#define BATON_CALLED_FUNCTIONS_H

#include "nodes/parsenodes.h"

#include "search_path.h"

/* Of the hashes of names, to tell what is called so. */
#define BATON_FUNCTION_SALT 0x7F4A7C15

/* The functions that compete with the one that was chosen. */
typedef struct BatonCompetitors
{
	bool		too_many;		/* to be listed */
	int			count;
	uint32	   *hashes;			/* of their OIDs, as baton_called_changed()
								 * gives them, and of the name in each schema */
} BatonCompetitors;

/* Once a backend. */
extern void baton_called_attach(void);

/*
 * The row of a function has changed, as an invalidation of PROCOID says; false if
 * it is one of the server's own, which any call may mean.  The hash of its OID.
 */
extern bool baton_called_changed(uint32 invalidation, uint32 *hash);

/*
 * In a transaction: what those are called that have changed since the last time.
 * False if too many have.
 */
typedef void (*BatonFunctionNamed) (uint32 hash);

extern bool baton_called_any_changed(void);
extern bool baton_called_name_changed(BatonFunctionNamed named);

/*
 * In a transaction: looks up the competitors of each of the functions, which a query
 * calls (baton_bindings_functions).
 */
typedef void (*BatonCompetitorFound) (uint32 hash);

extern void baton_called_analysed(const List *functions, BatonCompetitorFound found);

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

#endif							/* BATON_CALLED_FUNCTIONS_H */
