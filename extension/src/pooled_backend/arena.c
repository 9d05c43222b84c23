/*-------------------------------------------------------------------------
 *
 * arena.c
 *		Read access to the dispatcher's ARENA: session records, and the
 *		session contexts at rest.
 *
 * Only the dispatcher writes the ARENA. A record and its items do not change
 * while a backend owns the session, so only the owner may read them without
 * locks.
 *
 * A faulty dispatcher ends a backend with an error and does not crash the
 * server. Every value that decides how far is read is copied once, and the
 * copy is checked and used: the place of the records when the memory is
 * mapped; a record, and an entry's header, at each access. Every offset is
 * checked against the mapping's size.
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

#include "common/int.h"
#include "port/atomics.h"

#include "arena.h"
#include "dispatcher_link.h"
#include "pg_process.h"
#include "pooled_state.h"
#include "majors.h"

static const char *arena = NULL;
static uint64 arena_size = 0;

/* Place and number of the records, from the header when it was mapped. */
static uint64 records_offset = 0;
static uint32 records = 0;

/* A copy of the last requested record. */
static BatonSessionRecord asked_for;

BATON_STOP_POINT const char *
baton_arena_map(int fd, uint64 size)
{
	BatonArenaHeader header;
	struct stat status;
	void	   *address;
	int			seals;

	/* the seal guarantees that the file does not shrink */
	if (size < BATON_ARENA_HEADER_SIZE ||
		fstat(fd, &status) != 0 || (uint64) status.st_size < size ||
		(seals = fcntl(fd, F_GET_SEALS)) < 0 || (seals & F_SEAL_SHRINK) == 0)
	{
		close(fd);
		return "the dispatcher's session memory is not sealed";
	}
	address = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (address == MAP_FAILED)
		return "could not map the dispatcher's session memory";

	memcpy(&header, address, sizeof(header));
	pg_compiler_barrier();		/* the compiler must not read it again */
	if (header.magic != BATON_MAGIC ||
		header.layout_version != BATON_LAYOUT_VERSION ||
		header.total_size > size ||
		header.session_offset > size ||
		(uint64) header.session_slots * sizeof(BatonSessionRecord) > size - header.session_offset)
	{
		munmap(address, size);
		return "the dispatcher's session memory is of another version";
	}

	if (arena != NULL)
		munmap(unconstify(char *, arena), arena_size);
	arena = (const char *) address;
	arena_size = size;
	records_offset = header.session_offset;
	records = header.session_slots;
	return NULL;
}

const BatonSessionRecord *
baton_record_if_sound(uint64 session)
{
	uint32		index = (uint32) session;
	BatonSessionRecord record;
	uint32		statements_end;

	if (index >= records)
		return NULL;
	memcpy(&record, arena + records_offset + (Size) index * sizeof(BatonSessionRecord),
		   sizeof(record));
	pg_compiler_barrier();		/* the compiler must not read it again */
	if (record.id != session || baton_sound_timestamp(record.login_time_us) == 0 ||
		record.tenant >= BatonControlMade.pool_slots ||
		pg_add_u32_overflow(record.first_statement, record.statement_count,
							&statements_end) ||
		statements_end > record.item_count)
		return NULL;
	/* a caller that has the last record continues with a sound one */
	asked_for = record;
	return &asked_for;
}

const BatonSessionRecord *
baton_record(uint64 session)
{
	const BatonSessionRecord *record = baton_record_if_sound(session);

	if (unlikely(record == NULL))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("session record %u is damaged", (uint32) session)));
	return record;
}

/* A piece of the heap; an error if it would leave the mapping. */
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
										  (uint64) record->item_count * sizeof(BatonItem));
}

const BatonStored *
baton_entry(BatonStored *stored, uint32 heap_offset)
{
	const char *piece = heap_piece(heap_offset, sizeof(BatonEntry));
	BatonEntry	header;

	memcpy(&header, piece, sizeof(header));
	pg_compiler_barrier();		/* the compiler must not read it again */
	(void) heap_piece(heap_offset, (uint64) sizeof(BatonEntry) +
					  header.key_length + (uint64) header.value_length);

	stored->serial = header.serial;
	stored->kind = header.kind;
	stored->key_length = header.key_length;
	stored->value_length = header.value_length;
	stored->key = piece + sizeof(BatonEntry);
	stored->value = stored->key + header.key_length;
	return stored;
}

char *
baton_entry_copy_value(const BatonStored *entry)
{
	char	   *copy = palloc((Size) entry->value_length + 1);

	memcpy(copy, entry->value, entry->value_length);
	copy[entry->value_length] = '\0';
	return copy;
}

bool
baton_entry_is_shared(uint32 heap_offset)
{
	uint32		references;

	if (heap_offset == 0)
		return false;
	memcpy(&references, heap_piece(heap_offset - BATON_ENTRY_REFERENCES_BEFORE / 8,
								   sizeof(references)),
		   sizeof(references));
	return references > 1;
}

/* With smaller changes a look at all backends would cost more than they do. */
#define CLAIM_FROM (64 * 1024)

/*
 * Units that the backend in this slot has claimed for this session. After it,
 * another backend may have served the session and claimed room for it.
 */
static uint32
claimed_by(uint32 slot_index, uint64 session)
{
	BatonSessionSlot *slot;

	if (!baton_session_is_named(session))
		return 0;
	slot = baton_session_slot_at((uint32) session);
	if (slot->last_backend != slot_index + 1)
		return 0;
	return pg_atomic_read_u32(baton_atomic_u32(slot->claimed));
}

bool
baton_arena_claim(uint64 session, Size bytes)
{
	uint64		before = BatonSelf.slot->claimant;
	uint64		claimed = bytes / BATON_CLAIM_UNIT + 1;

	if (bytes < CLAIM_FROM)
		return false;
	/* what this backend has sent before may not have been stored yet */
	if (before != session)
		claimed += claimed_by(BatonSelf.slot_index, before);
	pg_atomic_write_u32(baton_atomic_u32(baton_session_slot(session)->claimed),
						(uint32) Min(claimed, PG_UINT32_MAX));
	BatonSelf.slot->claimant = session;
	/* of two backends that look at the same moment, one sees the other's */
	pg_memory_barrier();
	return true;
}

void
baton_arena_claim_no_more(uint64 session)
{
	pg_atomic_write_u32(baton_atomic_u32(baton_session_slot(session)->claimed), 0);
}

/*
 * What other backends have claimed, or this one for another session: of all
 * accounts, and of this one.
 */
static void
add_claims(uint32 account, Size bytes, uint64 *of_all, uint64 *of_account)
{
	if (bytes < CLAIM_FROM)
		return;
	for (uint32 i = 0; i < BatonControlMade.backend_slots; i++)
	{
		uint64		session = baton_backend_slot(i)->claimant;
		const BatonSessionRecord *record;
		uint64		claimed;

		claimed = (uint64) claimed_by(i, session) * BATON_CLAIM_UNIT;
		if (claimed == 0 || session == BatonSelf.slot->session)
			continue;
		*of_all += claimed;
		record = baton_record_if_sound(session);
		if (record != NULL && record->account == account)
			*of_account += claimed;
	}
}

/* Afterwards no role has more than what is left then (arena.rs). */
bool
baton_arena_has_room(uint32 account, Size bytes)
{
	const BatonArenaHeader *header = (const BatonArenaHeader *) arena;
	const uint64 *accounts = (const uint64 *) (arena + BATON_ARENA_ACCOUNTS_OFFSET);
	uint64		used = header->heap_used;
	uint64		limit = header->heap_limit;
	uint64		taken = accounts[account % BATON_ARENA_ACCOUNTS];
	uint64		left;

	add_claims(account, bytes, &used, &taken);
	left = used < limit ? limit - used : 0;
	return bytes == 0 || (bytes <= left / 2 && taken <= left - 2 * bytes);
}

/*
 * Replaced entries are freed after the whole change has come: until then both
 * exist. So up to a quarter of the heap's reserve is used.
 */
bool
baton_arena_has_room_to_shrink(Size bytes)
{
	const BatonArenaHeader *header = (const BatonArenaHeader *) arena;
	uint64		used = header->heap_used;
	uint64		limit = header->heap_limit;
	uint64		all = header->total_size - header->heap_offset;
	uint64		of_account = 0;

	add_claims(0, bytes, &used, &of_account);
	return all > limit && used <= limit + (all - limit) / 4 &&
		bytes <= limit + (all - limit) / 4 - used;
}
