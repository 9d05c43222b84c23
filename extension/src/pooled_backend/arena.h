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

/*
 * Maps it read-only and closes fd. Returns NULL, or the reason why it failed.
 */
extern const char *baton_arena_map(int fd, uint64 size);

/*
 * Would `bytes` more stay within pg_baton.session_memory, and within the share
 * of a role's account?
 */
extern bool baton_arena_has_room(uint32 account, Size bytes);

/* Is there room for a change of this size that frees as much? */
extern bool baton_arena_has_room_to_shrink(Size bytes);

/*
 * Claims room for changes of this size of the session in place, before the
 * backend looks whether there is room: until the dispatcher has stored the
 * changes, they are missing in what it has counted, and other backends may look
 * at the same moment. Small changes need no claim. Returns whether one was
 * made.
 */
extern bool baton_arena_claim(uint64 session, Size bytes);
extern void baton_arena_claim_no_more(uint64 session);

/*
 * A session's record, its items, and the entries they refer to. Raises ERROR
 * for a place outside of the ARENA. A record is a copy, which the next call
 * overwrites.
 */
extern const BatonSessionRecord *baton_record(uint64 session);

/* Returns NULL instead of raising an error. */
extern const BatonSessionRecord *baton_record_if_sound(uint64 session);

/* In the ARENA itself: each member of an item must be read once only. */
extern const BatonItem *baton_record_items(const BatonSessionRecord *record);

/*
 * An entry: a copy of its header, which was checked, and the place of its
 * bytes. The bytes are in the ARENA itself and may change at any moment: they
 * may only be compared and copied. Code that parses them, or reads up to a
 * terminator, must use a copy.
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

/* Did more than one session hold it a moment ago? */
extern bool baton_entry_is_shared(uint32 heap_offset);

/* A palloc'd copy of its value, NUL-terminated. */
extern char *baton_entry_copy_value(const BatonStored *entry);

#endif							/* BATON_ARENA_H */
