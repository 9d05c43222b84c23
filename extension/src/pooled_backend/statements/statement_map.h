/*-------------------------------------------------------------------------
 *
 * statement_map.h
 *		Memory for the hash tables of statements, which survive its want.
 *
 * SH_GROW() (simplehash.h) of 15 and 16 sets the table's size before it
 * allocates: if that fails, the table is taken for larger than it is from then
 * on.  (17 and later allocate first.)  The tables here outlive the error, so
 * the allocator, which is called in between, puts the size back.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_MAP_H
#define BATON_STATEMENT_MAP_H

#include "majors.h"
#include "utils/memutils.h"

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
 * Sizes are powers of two, and a table grows to twice its size.  That it must
 * grow is found out anew with the next entry.
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

#endif							/* BATON_STATEMENT_MAP_H */
