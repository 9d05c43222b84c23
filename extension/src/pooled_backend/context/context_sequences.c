/*-------------------------------------------------------------------------
 *
 * context_sequences.c
 *		Carrying a session's sequence values from backend to backend.
 *
 * sequence.c keeps, for each sequence the session has used, what currval()
 * returns and the numbers fetched in advance (CACHE), and for lastval() which
 * sequence was used last.  Each sequence becomes one item of the session's
 * context (BATON_KIND_SEQUENCE, key: the relation's oid), lastval() one more
 * (BATON_KIND_OTHER, key "lastval").
 *
 * Both ways it is memory against memory (see sequence_state.c), so nothing
 * can fail for want of a privilege or wait for a lock: whether the sequence
 * still exists, may be read, or was rewritten is found out by sequence.c
 * itself when it is used, in the way and with the errors it always had.
 * What sequence.c checks there is init_sequence(): a relfilenode other than
 * the remembered one makes it drop the cached numbers, so the relfilenode is
 * carried along with them.  The local transaction id is not carried; without
 * it the first use in a transaction takes the sequence's lock.
 *
 * What is placed mirrors what the dispatcher has for the session in place: it is
 * filled by install and brought up to date by capture.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/sequence.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "arena.h"
#include "context_sequences.h"
#include "delta.h"
#include "pooled_state.h"
#include "sequence_state.h"

static const char LASTVAL_KEY[] = "lastval";

#define LASTVAL_KEY_LENGTH (sizeof(LASTVAL_KEY) - 1)

/* Value of a BATON_KIND_SEQUENCE item.  No padding: it is compared as bytes. */
typedef struct SequenceValue
{
	int64		last;
	int64		cached;
	int64		increment;		/* 0 if no numbers are left */
	uint32		filenode;		/* 0 if no numbers are left */
	uint32		reserved;
} SequenceValue;

/* What the dispatcher has of one sequence. */
typedef struct KnownSequence
{
	Oid			relid;			/* hash key */
	uint32		round;			/* last capture that still saw it */
	SequenceValue value;
} KnownSequence;

static BatonPlacedSequences *const placed = &BatonPlaced.sequences;

static uint32 capture_round = 0;

/*
 * sequence.c never forgets a dropped sequence, which costs it next to
 * nothing; us it costs an item at every switch.  So when there are this many
 * entries, those without a relation are dropped, and the bound is set anew.
 */
#define PRUNE_AT_LEAST 64
static long prune_at = PRUNE_AT_LEAST;

const char *
baton_sequences_attach(void)
{
	HASHCTL		control;

	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(KnownSequence);
	placed->known = hash_create("pg_baton known sequences", 16, &control,
								HASH_ELEM | HASH_BLOBS);
	return baton_sequence_state_attach();
}

/* Empties a table; true if there was anything in it. */
static bool
empty_table(HTAB *table)
{
	HASH_SEQ_STATUS scan;
	void	   *entry;

	if (table == NULL || hash_get_num_entries(table) == 0)
		return false;
	hash_seq_init(&scan, table);
	while ((entry = hash_seq_search(&scan)) != NULL)
		(void) hash_search(table, entry, HASH_REMOVE, NULL);
	return true;
}

/* Back to a session that never used a sequence. */
static void
clear(void)
{
	baton_sequence_set_last_used(NULL);
	if (baton_sequence_table() != NULL)
	{
		/* a table that has grown stays slow to walk; that one is given up */
		if (hash_get_num_entries(baton_sequence_table()) > PRUNE_AT_LEAST)
			ResetSequenceCaches();
		else
			(void) empty_table(baton_sequence_table());
	}
	(void) empty_table(placed->known);
	placed->last_used = InvalidOid;
}

static void
install_sequence(const BatonStored *entry)
{
	Oid			relid;
	SequenceValue value;
	KnownSequence *item;

	if (entry->key_length != sizeof(relid) ||
		entry->value_length != sizeof(value))
		elog(ERROR, "sequence value of session context is malformed");
	memcpy(&relid, entry->key, sizeof(relid));
	memcpy(&value, entry->value, sizeof(value));

	baton_sequence_put(relid, value.filenode, value.last, value.cached, value.increment);

	item = hash_search(placed->known, &relid, HASH_ENTER, NULL);
	item->round = capture_round;
	item->value = value;
}

void
baton_sequences_install(const BatonSessionRecord *record)
{
	const BatonItem *items;

	clear();
	if (record->item_count == 0)
		return;

	/* sorted by kind, statements before these */
	items = baton_record_items(record);
	for (uint32 i = record->first_statement + record->statement_count;
		 i < record->item_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, items[i].entry);

		if (entry->kind == BATON_KIND_SEQUENCE)
			install_sequence(entry);
		else if (entry->kind == BATON_KIND_OTHER &&
				 entry->key_length == LASTVAL_KEY_LENGTH &&
				 memcmp(entry->key, LASTVAL_KEY,
						LASTVAL_KEY_LENGTH) == 0)
		{
			if (entry->value_length != sizeof(placed->last_used))
				elog(ERROR, "lastval of session context is malformed");
			memcpy(&placed->last_used, entry->value,
				   sizeof(placed->last_used));
		}
	}

	/* the items' order is nobody's promise, so this comes after all of them */
	if (OidIsValid(placed->last_used) && baton_sequence_table() != NULL)
		baton_sequence_set_last_used(hash_search(baton_sequence_table(),
												 &placed->last_used,
												 HASH_FIND, NULL));
}

/*
 * Drops entries whose sequence does not exist any more.  No one can tell:
 * currval() of a dropped sequence fails on the relation, and lastval() is as
 * undefined without an entry as with one (see there).
 */
static void
prune(HTAB *table)
{
	MemoryContext context = CurrentMemoryContext;
	HASH_SEQ_STATUS scan;
	BatonSequenceState *state;

	StartTransactionCommand();
	hash_seq_init(&scan, table);
	while ((state = hash_seq_search(&scan)) != NULL)
	{
		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(state->relid)))
			continue;
		baton_sequence_remove(state->relid);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	prune_at = Max(PRUNE_AT_LEAST, 2 * hash_get_num_entries(table));
}

/* Tells the dispatcher of one sequence, if it does not know. */
static bool
capture_sequence(const BatonSequenceState *state)
{
	SequenceValue value;
	KnownSequence *item;
	bool		found;

	memset(&value, 0, sizeof(value));
	value.last = state->last;
	value.cached = state->cached;
	if (state->cached != state->last)
	{
		value.increment = state->increment;
		value.filenode = state->filenode;
	}

	item = hash_search(placed->known, &state->relid, HASH_ENTER, &found);
	item->round = capture_round;
	if (found && memcmp(&item->value, &value, sizeof(value)) == 0)
		return false;
	item->value = value;
	baton_delta_put(BATON_KIND_SEQUENCE, (const char *) &state->relid,
					sizeof(state->relid), (const char *) &value, sizeof(value),
					NULL, 0);
	return true;
}

/* Tells the dispatcher of sequences that this capture has not seen. */
static void
capture_removals(void)
{
	HASH_SEQ_STATUS scan;
	KnownSequence *item;

	hash_seq_init(&scan, placed->known);
	while ((item = hash_seq_search(&scan)) != NULL)
	{
		if (item->round == capture_round)
			continue;
		baton_delta_delete(BATON_KIND_SEQUENCE, (const char *) &item->relid,
						   sizeof(item->relid));
		(void) hash_search(placed->known, &item->relid, HASH_REMOVE, NULL);
	}
}

static bool
capture_last_used(void)
{
	BatonSequenceState *state = baton_sequence_last_used();
	Oid			last_used = state != NULL ? state->relid : InvalidOid;

	if (last_used == placed->last_used)
		return false;
	placed->last_used = last_used;
	if (OidIsValid(last_used))
		baton_delta_put(BATON_KIND_OTHER, LASTVAL_KEY, LASTVAL_KEY_LENGTH,
						(const char *) &last_used, sizeof(last_used), NULL, 0);
	else
		baton_delta_delete(BATON_KIND_OTHER, LASTVAL_KEY, LASTVAL_KEY_LENGTH);
	return true;
}

bool
baton_sequences_capture(uint64 session)
{
	HTAB	   *table = baton_sequence_table();
	bool		changed = false;
	long		valid = 0;

	if (table != NULL && hash_get_num_entries(table) == 0)
		table = NULL;
	if (table == NULL && hash_get_num_entries(placed->known) == 0)
		return false;

	if (table != NULL && hash_get_num_entries(table) > prune_at)
		prune(table);

	capture_round++;
	if (table != NULL)
	{
		HASH_SEQ_STATUS scan;
		BatonSequenceState *state;

		hash_seq_init(&scan, table);
		while ((state = hash_seq_search(&scan)) != NULL)
		{
			/* without a "last" it was only looked at, say by pg_sequences */
			if (!state->last_valid)
				continue;
			valid++;
			if (capture_sequence(state))
				changed = true;
		}
	}
	if (hash_get_num_entries(placed->known) != valid)
	{
		capture_removals();
		changed = true;
	}
	if (capture_last_used())
		changed = true;
	return changed;
}

void
baton_sequences_forget(uint64 session)
{
	clear();
}
