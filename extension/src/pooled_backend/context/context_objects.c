/*-------------------------------------------------------------------------
 *
 * context_objects.c
 *		Sequence values and the temporary namespace in the session context.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "arena.h"
#include "context_objects.h"
#include "delta.h"
#include "pg_catalogs.h"
#include "pg_sequence.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		Carrying a session's sequence values from backend to backend.
 *
 * sequence.c keeps, for each sequence the session has used, what currval()
 * returns and the numbers fetched in advance (CACHE), and for lastval() which
 * sequence was used last.  Each sequence becomes one item of the session's
 * context (BATON_KIND_SEQUENCE, key: the relation's oid), lastval() one more
 * (BATON_KIND_OTHER, key "lastval").
 *
 * Both ways it is memory against memory (see pg_sequence.c), so nothing
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
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		Whether a session has a temporary namespace.
 *
 * Problem: namespace.c makes a backend's temporary namespace when a temporary
 * object is first made, and from then on it is there, empty or not: in
 * current_schemas(true), in pg_my_temp_schema(), in the search path, and in
 * which error a missing pg_temp.x gets.  A session that has had a temporary
 * object shall see one on every backend, and no other session shall.
 *
 * Objects in it are not dealt with here: a session that has any stays on its
 * backend (taint.c), so a namespace is empty whenever it is shown or hidden.
 *
 * Decision: that the session has one is an item of its context.  Where the
 * session has none, the backend's is hidden (pg_catalogs.c has how, and
 * by what that is kept from being noticed).  Where the session has one, the
 * backend's is shown again; or it is made, by a transaction of ours.
 *
 * At exit RemoveTempRelationsCallback() (namespace.c) finds nothing to do of a
 * hidden one, and there is nothing.  A session that makes its first temporary
 * object while it is hidden makes InitTempTableNamespace() set it up again, with
 * all that this means on a direct connection (privileges, what is left if it is
 * rolled back): the same namespace, as it is named after the backend's id.
 *
 * Invariants: `own` is the backend's namespace since it was first seen, shown
 * or not, outside a transaction: by then its exit callback is registered.
 * BatonPlaced has what the context of the session in place says.
 * ----------------------------------------------------------------
 */

#define TEMPORARY_KEY "temporary"
#define TEMPORARY_KEY_LENGTH (sizeof(TEMPORARY_KEY) - 1)

static Oid	own = InvalidOid;
static Oid	own_toast = InvalidOid;

bool
baton_temporary_is_item(const BatonStored *entry)
{
	return entry->kind == BATON_KIND_OTHER &&
		entry->key_length == TEMPORARY_KEY_LENGTH &&
		memcmp(entry->key, TEMPORARY_KEY,
			   TEMPORARY_KEY_LENGTH) == 0;
}

/*
 * Is a namespace shown?  Learns of one that the session in place has made;
 * it cannot have made more than one, for it keeps the first.
 */
static bool
look(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	if (!OidIsValid(namespace))
		return false;
	own = namespace;
	own_toast = toast_namespace;
	return true;
}

/*
 * As if the session had just made its first temporary object.  As the
 * superuser who will own it, since the session's role need not be allowed to
 * make temporary objects any more; and as an ordinary transaction, whatever
 * the session's default_transaction_* are.
 */
static void
make(void)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			user;
	int			security;

	baton_own_transaction_start();
	XactReadOnly = false;

	/* leftovers of a crashed backend are removed under it */
	PushActiveSnapshot(GetTransactionSnapshot());
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   security | SECURITY_LOCAL_USERID_CHANGE);
	(void) LookupCreationNamespace("pg_temp");
	SetUserIdAndSecContext(user, security);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

void
baton_temporary_install(bool wanted)
{
	bool		shown = look();

	if (wanted && !shown)
	{
		if (OidIsValid(own))
			baton_namespace_show(own, own_toast);
		else
		{
			make();
			(void) look();
		}
	}
	else if (!wanted && shown)
		baton_namespace_hide(own);
	BatonPlaced.has_temporary_namespace = wanted;
}

bool
baton_temporary_capture(void)
{
	if (BatonPlaced.has_temporary_namespace || !look())
		return false;
	BatonPlaced.has_temporary_namespace = true;
	baton_delta_put(BATON_KIND_OTHER, TEMPORARY_KEY, TEMPORARY_KEY_LENGTH,
					"", 0, NULL, 0);
	return true;
}

void
baton_temporary_forget(void)
{
	BatonPlaced.has_temporary_namespace = look();	/* the next install hides
													 * it */
}

void
baton_temporary_commits(void)
{
	/* known since it was seen committed, hence registered */
	if (OidIsValid(own))
		baton_namespace_commits();
}
