/*-------------------------------------------------------------------------
 *
 * taint_library.h
 *		Libraries of which nobody has said that they keep nothing.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_LIBRARY_H
#define BATON_TAINT_LIBRARY_H

#include "loaded_libraries.h"

/* Once, at attach.  NULL, or why this backend cannot pool. */
extern const char *baton_taint_library_attach(void);

/* A function of this library is looked up to be called. */
extern void baton_taint_library_used(const char *file);

/* Assign hook of pg_baton.stateless_libraries. */
extern void baton_taint_library_listed(const char *value, void *extra);

/* Out of date: the list has changed, or taint_library.c's own. */
extern bool baton_taint_library_stale;

/* Looks at what was loaded since; true if the backend has used an unlisted one. */
extern bool baton_taint_library_look(void);

/* Has this backend used one?  It then belongs to the session in place. */
extern bool baton_taint_library_found;

/*
 * NULL, or the listed library that has been used here and keeps what no other role may
 * come by: the process is its role's for life.
 */
extern const char *baton_taint_library_of_one_role(void);

static inline bool
baton_uses_unlisted_library(void)
{
	if (unlikely(baton_taint_library_stale || baton_libraries_more()))
		return baton_taint_library_look();
	return baton_taint_library_found;
}

#endif							/* BATON_TAINT_LIBRARY_H */
