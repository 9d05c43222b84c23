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

/* Would so many bytes more keep within pg_baton.session_memory? */
extern bool baton_arena_has_room(Size bytes);

#endif							/* BATON_ARENA_H */
