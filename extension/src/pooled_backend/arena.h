/*-------------------------------------------------------------------------
 *
 * arena.h
 *		Read access to the dispatcher's ARENA.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ARENA_H
#define BATON_ARENA_H

#include "baton_shared.h"

/* Maps it read-only; NULL if all is well, else why not. Closes fd. */
extern const char *baton_arena_map(int fd, uint64 size);

/* Would so many bytes more keep within pg_baton.session_memory? */
extern bool baton_arena_has_room(Size bytes);

/*
 * A session's record, its items, and the entries they name.  ereport(ERROR)s for
 * a place outside of it.  A record is a copy, which the next one overwrites.
 */
extern const BatonSessionRecord *baton_record(uint64 session);

/* NULL instead of an error. */
extern const BatonSessionRecord *baton_record_if_sound(uint64 session);
extern const BatonItem *baton_record_items(const BatonSessionRecord *record);
extern const BatonEntry *baton_entry(uint32 heap_offset);
#define baton_entry_key(e) ((const char *) (e) + BATON_ENTRY_HEADER_SIZE)
#define baton_entry_value(e) (baton_entry_key(e) + (e)->key_length)

#endif							/* BATON_ARENA_H */
