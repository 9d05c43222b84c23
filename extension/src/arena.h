/*-------------------------------------------------------------------------
 *
 * arena.h
 *		Mapping the dispatcher's ARENA.  Read access is declared in context.h.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ARENA_H
#define BATON_ARENA_H

/* Maps it read-only; NULL if all is well, else why not. Closes fd. */
extern const char *baton_arena_map(int fd, uint64 size);

#endif							/* BATON_ARENA_H */
