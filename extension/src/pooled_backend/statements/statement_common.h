/*-------------------------------------------------------------------------
 *
 * statement_common.h
 *		The prepared statements that a backend keeps, each once by content.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_COMMON_H
#define BATON_STATEMENT_COMMON_H

#include "arena.h"
#include "lib/ilist.h"
#include "statement_environment.h"
#include "statement_names.h"
#include "statement_values.h"
#include "utils/plancache.h"

/* What statements are told apart by. */
typedef struct CommonKey
{
	StatementEnvironment environment;	/* statement_environment.c */
	uint32		hash;			/* of the value */
	uint32		length;
	const char *value;			/* the description, statement_description.c */
} CommonKey;

/* Lies, with all that belongs to it, in its plan's memory context. */
typedef struct CommonStatement
{
	CommonKey	key;
	CachedPlanSource *plan;		/* never executed: what is executed refers to
								 * what this one has */
	double		generic_cost;	/* of the plan's generic plan */
	uint64		analyst;		/* session that the trees were made in */
	CustomPlans custom;
	StatementNames *names;
	int			pins;			/* sessions' plans that refer to it */
	bool		watched;		/* see baton_common_watch() */
	uint64		last_use;		/* a number of BatonSelf.memory.uses */
	dlist_node	use_node;		/* in the list by use, last used first */
	bool		is_new;			/* its names are still to be looked at */
	dlist_node	new_node;		/* then, in a list of such */
} CommonStatement;

extern void baton_common_attach(void);

/*
 * The statement that an entry of a session describes, for this environment; made,
 * if it is not there, without analysis.  NULL if the description cannot be understood.
 * What is needed for the making is left in the current memory context.
 */
extern CommonStatement *baton_common_get(const BatonStored *entry, StatementEnvironment environment,
										 uint64 session);

/* The statement of that content, if it is there. */
extern CommonStatement *baton_common_find(const char *value, uint32 length,
										  StatementEnvironment environment);

/*
 * Keeps a session's own plan for all.  NULL if there is one of its content
 * already.
 */
extern CommonStatement *baton_common_keep(CachedPlanSource *plan, const char *value,
										  uint32 length, StatementEnvironment environment);

/*
 * The session begins to do what may make plans invalid.  Is there a statement,
 * or is there one of this content, that was analysed then, holds literals, and
 * is not valid any more?
 */
extern void baton_common_watch(void);
extern bool baton_common_lost_any(void);
extern bool baton_common_lost(const char *value, uint32 length);

/* Its plan has got other query trees, made in that session. */
extern void baton_common_analysed(CommonStatement *common, uint64 session);

/* See statement_names.h. */
extern void baton_common_object_made(uint32 hash);

/*
 * The last use of the least recently used one that no session has; 0: there is
 * none.  And drops that one: the bytes that this frees.
 */
extern uint64 baton_common_oldest(void);
extern Size baton_common_drop_oldest(void);

#endif							/* BATON_STATEMENT_COMMON_H */
