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

/*
 * Would so many bytes more keep within pg_baton.session_memory, and within the
 * share of a role's account?
 */
extern bool baton_arena_has_room(uint32 account, Size bytes);

/* Is there room for a change of so many bytes that frees as many? */
extern bool baton_arena_has_room_to_shrink(Size bytes);

/*
 * A session's record, its items, and the entries they name.  ereport(ERROR)s for
 * a place outside of it.  A record is a copy, which the next one overwrites.
 */
extern const BatonSessionRecord *baton_record(uint64 session);

/* NULL instead of an error. */
extern const BatonSessionRecord *baton_record_if_sound(uint64 session);

/* In the ARENA itself: each member of an item is to be read once. */
extern const BatonItem *baton_record_items(const BatonSessionRecord *record);

/*
 * An entry: its header as it was when it was looked at, which is what was
 * checked, and where its bytes are.  These are in the ARENA itself, and may become
 * others at any moment: they may be compared and copied, and nothing else; what
 * is taken apart, or read up to its end, is a copy.
 */
typedef struct BatonStored
{
	uint64		serial;
	uint16		kind;
	uint16		key_length;
	uint32		value_length;
	const char *key;
	const char *value;
} BatonStored;

/* Fills and returns `stored`. */
extern const BatonStored *baton_entry(BatonStored *stored, uint32 heap_offset);

/* Does more than one session have it?  So it was a moment ago. */
extern bool baton_entry_is_shared(uint32 heap_offset);

/* A copy of its value, with a zero byte behind it; palloc'd. */
extern char *baton_entry_copy_value(const BatonStored *entry);

#endif							/* BATON_ARENA_H */
