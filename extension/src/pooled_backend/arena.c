/*-------------------------------------------------------------------------
 *
 * arena.c
 *		Read access to the dispatcher's ARENA: session records, and the
 *		session contexts at rest.
 *
 * The dispatcher alone writes it.  A record and the items it names stand
 * still as long as a backend owns the session, so the owner, and nobody else,
 * may read them without locks.  Offsets are checked against the mapping's
 * size, so that a dispatcher gone wrong ends a backend with an error and does
 * not crash the server.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arena.h"

static const char *arena = NULL;
static uint64 arena_size = 0;

const char *
baton_arena_map(int fd, uint64 size)
{
	const BatonArena *header;
	struct stat status;
	void	   *address;
	int			seals;

	/* nor may it become shorter than it is */
	if (fstat(fd, &status) != 0 || (uint64) status.st_size < size ||
		(seals = fcntl(fd, F_GET_SEALS)) < 0 || (seals & F_SEAL_SHRINK) == 0)
	{
		close(fd);
		return "the dispatcher's session memory is not sealed";
	}
	address = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (address == MAP_FAILED)
		return "could not map the dispatcher's session memory";

	header = (const BatonArena *) address;
	if (size < BATON_ARENA_HEADER_SIZE ||
		header->magic != BATON_MAGIC ||
		header->layout_version != BATON_LAYOUT_VERSION ||
		header->total_size > size ||
		header->session_offset + (uint64) header->session_slots * BATON_RECORD_SIZE > size)
	{
		munmap(address, size);
		return "the dispatcher's session memory is of another version";
	}

	if (arena != NULL)
		munmap(unconstify(char *, arena), arena_size);
	arena = (const char *) address;
	arena_size = size;
	return NULL;
}

const BatonSessionRecord *
baton_record(uint64 session)
{
	const BatonArena *header = (const BatonArena *) arena;
	const BatonSessionRecord *record;
	uint32		index = (uint32) session;

	if (index >= header->session_slots)
		elog(ERROR, "session number %u is out of range", index);
	record = (const BatonSessionRecord *) (arena + header->session_offset +
										   (Size) index * BATON_RECORD_SIZE);
	if (record->id != session)
		elog(ERROR, "session record %u belongs to another session", index);
	return record;
}

/* A piece of the heap, or an error if it would leave the mapping. */
static const char *
heap_piece(uint32 heap_offset, uint64 length)
{
	uint64		offset = (uint64) heap_offset * 8;

	if (offset < BATON_ARENA_HEADER_SIZE || offset > arena_size ||
		length > arena_size - offset)
		elog(ERROR, "session context refers to a place outside the session memory");
	return arena + offset;
}

const BatonItem *
baton_record_items(const BatonSessionRecord *record)
{
	if (record->item_count == 0)
		return NULL;
	return (const BatonItem *) heap_piece(record->items,
										  (uint64) record->item_count * BATON_ITEM_SIZE);
}

const BatonEntry *
baton_entry(uint32 heap_offset)
{
	const BatonEntry *entry;

	entry = (const BatonEntry *) heap_piece(heap_offset, BATON_ENTRY_HEADER_SIZE);
	(void) heap_piece(heap_offset, (uint64) BATON_ENTRY_HEADER_SIZE +
					  entry->key_length + entry->value_length);
	return entry;
}

bool
baton_arena_has_room(Size bytes)
{
	const BatonArena *header = (const BatonArena *) arena;

	return bytes == 0 || header->heap_used + bytes <= header->heap_limit;
}
