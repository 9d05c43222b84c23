/*-------------------------------------------------------------------------
 *
 * taint_rules.h
 *		What an administrator lists: libraries and parameters that dedicate a
 *		backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_RULES_H
#define BATON_TAINT_RULES_H

#include "nodes/pg_list.h"
#include "utils/palloc.h"

#include "pg_program.h"

/* ----------------------------------------------------------------
 *		A parameter that is a list of names, parsed once for each value.
 * ----------------------------------------------------------------
 */

/* For one parameter; static, zero at first except for `split`. */
typedef struct BatonParsedList
{
	/* SplitIdentifierString or SplitGUCList */
	bool		(*split) (char *text, char separator, List **names);
	MemoryContext context;
	char	   *value;			/* the parsed value; NULL: none */
	List	   *names;			/* char * */
} BatonParsedList;

/* Is the name, which may be NULL, in the list `value`? */
extern bool baton_parsed_list_has(BatonParsedList *parsed, const char *value, const char *name);

/* ----------------------------------------------------------------
 *		Libraries that no list declares stateless.
 * ----------------------------------------------------------------
 */

/*
 * Called once, at attach. Returns NULL, or the reason why this backend cannot
 * pool.
 */
extern const char *baton_taint_library_attach(void);

/* A function of this library is looked up for a call. */
extern void baton_taint_library_used(const char *file);

/* Assign hook of pg_baton.stateless_libraries. */
extern void baton_taint_library_listed(const char *value, void *extra);

/*
 * The result is out of date: the parameter, or taint_rules.c's own list, has
 * changed.
 */
extern bool baton_taint_library_stale;

/*
 * Looks at the libraries loaded since; returns true if the backend has used an
 * unlisted one.
 */
extern bool baton_taint_library_look(void);

/* Has this backend used one? It then belongs to the session in place. */
extern bool baton_taint_library_found;

/*
 * NULL, or the listed library that was used here and keeps state that other
 * roles must not get: the process serves its role only, until it ends.
 */
extern const char *baton_taint_library_of_one_role(void);

static inline bool
baton_uses_unlisted_library(void)
{
	if (unlikely(baton_taint_library_stale || baton_libraries_more()))
		return baton_taint_library_look();
	return baton_taint_library_found;
}

/* ----------------------------------------------------------------
 *		Parameters whose change dedicates a backend.
 * ----------------------------------------------------------------
 */

/* pg_baton.dedicating_parameters */
extern char *baton_dedicating_parameters;

/* Has the session in place, or its client at login, set any of them? */
extern bool baton_dedicating_parameter_is_set(void);

#endif							/* BATON_TAINT_RULES_H */
