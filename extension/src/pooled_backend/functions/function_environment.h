/*-------------------------------------------------------------------------
 *
 * function_environment.h
 *		What a compiled PL/pgSQL function and its plans take in.
 *
 * See function_environment.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_FUNCTION_ENVIRONMENT_H
#define BATON_FUNCTION_ENVIRONMENT_H

#include "utils/palloc.h"

#define ENVIRONMENT_SETTINGS_MAX 32

typedef struct Environment
{
	uint64		hash;
	Oid			role;			/* current_user; InvalidOid: like none */
	bool		has_temporary;	/* a temporary namespace is shown */
	uint64		session;		/* that has temporary objects, 0: none has */
	int			ints[ENVIRONMENT_SETTINGS_MAX];
	bool		bools[ENVIRONMENT_SETTINGS_MAX];
	char	   *strings[ENVIRONMENT_SETTINGS_MAX];	/* its own */
} Environment;

/*
 * Finds the settings' records; once, with PL/pgSQL loaded.  NULL if all is
 * well.
 */
extern const char *baton_environment_attach(void);

/* Is this the environment in force?  Not if its hash is another. */
extern bool baton_environment_matches(const Environment *environment);
extern uint64 baton_environment_hash(void);

/*
 * Makes it the environment in force, after what it was is forgotten.  If
 * memory runs out it is like none.
 */
extern void baton_environment_note(Environment *environment,
								   MemoryContext context);

/* What it was is forgotten. */
extern void baton_environment_forget(Environment *environment);

/* Is that setting a part of it? */
extern bool baton_environment_has(const char *setting);

#endif							/* BATON_FUNCTION_ENVIRONMENT_H */
