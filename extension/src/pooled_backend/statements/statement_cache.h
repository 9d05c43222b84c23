/*-------------------------------------------------------------------------
 *
 * statement_cache.h
 *		The prepared statements that a backend keeps, each once by content, and
 *		whether their plans depend on values.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_CACHE_H
#define BATON_STATEMENT_CACHE_H

#include "lib/ilist.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

#include "arena.h"
#include "majors.h"
#include "statement_environment.h"
#include "statement_names.h"

/* ----------------------------------------------------------------
 *		Memory for the hash tables of statements, which survive running out of
 *		memory.
 *
 * SH_GROW() (simplehash.h) of 15 and 16 sets the table's size before it
 * allocates: if that fails, the table's size is wrong from then on. (17 and
 * later allocate first.) The tables here outlive the error, so the allocator,
 * which is called in between, restores the size.
 * ----------------------------------------------------------------
 */

pg_noreturn static inline void
baton_map_no_memory(Size bytes)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory"),
			 errdetail("Failed on request of size %zu for the table of prepared statements.",
					   bytes)));
	pg_unreachable();
}

/*
 * Defines the allocator of the simplehash.h table `prefix`, which must have
 * been included with SH_USE_NONDEFAULT_ALLOCATOR.
 *
 * Sizes are powers of two, and a table grows to twice its size. The next entry
 * finds out again that it must grow.
 */
#define BATON_MAP_ALLOCATOR(prefix) \
static inline void * \
prefix##_allocate(prefix##_hash *map_here, Size bytes) \
{ \
	void	   *entries = MemoryContextAllocExtended(map_here->ctx, bytes, \
													 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO | MCXT_ALLOC_NO_OOM); \
\
	if (likely(entries != NULL)) \
		return entries; \
	if (map_here->data != NULL && \
		map_here->size * sizeof(*map_here->data) == bytes) \
	{ \
		map_here->size /= 2; \
		map_here->sizemask = (uint32) (map_here->size - 1); \
		map_here->grow_threshold = 0; \
	} \
	baton_map_no_memory(bytes); \
} \
\
static inline void \
prefix##_free(prefix##_hash *map_here, void *entries) \
{ \
	pfree(entries); \
}

/* ----------------------------------------------------------------
 *		Statements whose plan does not depend on the parameter values.
 * ----------------------------------------------------------------
 */

/* What is known about the custom plans of a statement. */
typedef struct CustomPlans
{
	bool		known;
	bool		alike;			/* equal whatever the values are: then */
	double		run_cost;		/* the cost of running one of them, */
	double		cost;			/* and with the charge for planning it */
} CustomPlans;

/*
 * Is the query planned in the same way for all values of its parameters
 * (except NULL)? Must be called before it is planned, with its relations
 * locked.
 */
extern bool baton_values_are_indifferent(const Query *query);

/* The costs of a custom plan, as plancache.c computes them. */
extern void baton_values_set_costs(CustomPlans *plans, const PlannedStmt *planned);

/* Does the running cost of the generic plan indicate the same plan? */
extern bool baton_values_fit(const CustomPlans *plans, double generic_cost);

/* ----------------------------------------------------------------
 *		The prepared statements that a backend keeps, each once by content.
 * ----------------------------------------------------------------
 */

/* The key of a statement. */
typedef struct CommonKey
{
	StatementEnvironment environment;	/* statement_environment.c */
	uint32		hash;			/* of the value */
	uint32		length;
	const char *value;			/* the description, statement_description.c */
} CommonKey;

/* Allocated, with all that belongs to it, in its plan's memory context. */
typedef struct CommonStatement
{
	CommonKey	key;
	CachedPlanSource *plan;		/* never executed: executed plans refer to its
								 * data */
	double		generic_cost;	/* of the generic plan */
	uint64		analyst;		/* session in which the trees were made */
	CustomPlans custom;
	StatementNames *names;
	int			pins;			/* sessions' plans that refer to it */
	bool		watched;		/* see baton_common_watch() */
	uint64		last_use;		/* a value of BatonSelf.memory.uses */
	dlist_node	use_node;		/* in the list by use, most recently used
								 * first */
	bool		is_new;			/* its names have not been looked at yet */
	dlist_node	new_node;		/* then: in a list of new ones */
} CommonStatement;

extern void baton_common_attach(void);

/*
 * The statement that an entry of a session describes, for this environment.
 * Made without analysis if it does not exist. NULL if the description cannot
 * be understood. Temporary data is left in the current memory context.
 */
extern CommonStatement *baton_common_get(const BatonStored *entry, StatementEnvironment environment,
										 uint64 session);

/* The statement of that content, if it exists. */
extern CommonStatement *baton_common_find(const char *value, uint32 length,
										  StatementEnvironment environment);

/*
 * Keeps a session's own plan for all sessions. Returns NULL if a statement has
 * the same content already.
 */
extern CommonStatement *baton_common_keep(CachedPlanSource *plan, const char *value,
										  uint32 length, StatementEnvironment environment);

/*
 * The session begins to do what may make plans invalid. Is there a statement,
 * or one of this content, that was analysed by then, holds literals, and is
 * not valid any more?
 */
extern void baton_common_watch(void);
extern bool baton_common_lost_any(void);
extern bool baton_common_lost(const char *value, uint32 length);

/* Its plan has new query trees, which were made in that session. */
extern void baton_common_analysed(CommonStatement *common, uint64 session);

/* See statement_names.h. */
extern void baton_common_object_made(uint32 hash);

/*
 * The last use of the least recently used statement that no session has; 0:
 * there is none. The second function drops that one and returns the bytes
 * freed.
 */
extern uint64 baton_common_oldest(void);
extern Size baton_common_drop_oldest(void);

#endif							/* BATON_STATEMENT_CACHE_H */
