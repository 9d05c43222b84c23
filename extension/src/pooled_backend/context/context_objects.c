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
#include "storage/ipc.h"
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
 * For each sequence that the session has used, sequence.c keeps the value of
 * currval() and the numbers fetched in advance (CACHE); for lastval() it keeps
 * the sequence that was used last. Each sequence becomes one item of the
 * session's context (BATON_KIND_SEQUENCE, key: the relation's oid), lastval()
 * becomes another (BATON_KIND_OTHER, key "lastval").
 *
 * Both directions copy memory (see pg_sequence.c), so no step can fail for
 * want of a privilege or wait for a lock. sequence.c itself finds out, when
 * the sequence is used, whether it still exists, may be read, or was
 * rewritten, with its usual errors. Its check is in init_sequence(): if the
 * relfilenode is not the remembered one, the cached numbers are dropped; so
 * the relfilenode is carried along with them. The local transaction id is not
 * carried; without it the first use in a transaction takes the sequence's
 * lock.
 *
 * BatonPlaced.sequences mirrors what the dispatcher has for the session in
 * place: install fills it, and capture brings it up to date.
 * ----------------------------------------------------------------
 */

static const char LASTVAL_KEY[] = "lastval";

#define LASTVAL_KEY_LENGTH (sizeof(LASTVAL_KEY) - 1)

/*
 * Value of a BATON_KIND_SEQUENCE item, without padding: it is compared as
 * bytes.
 */
typedef struct SequenceValue
{
	int64		last;
	int64		cached;
	int64		increment;		/* 0 if no numbers are left */
	uint32		filenode;		/* 0 if no numbers are left */
	uint32		reserved;
} SequenceValue;

/* One sequence, as the dispatcher has it. */
typedef struct KnownSequence
{
	Oid			relid;			/* hash key */
	uint32		round;			/* last capture that saw it */
	SequenceValue value;
} KnownSequence;

static BatonPlacedSequences *const placed = &BatonPlaced.sequences;

static uint32 capture_round = 0;

/*
 * sequence.c never forgets a dropped sequence, which costs it next to nothing;
 * here it costs an item at every hand-over. So from this many entries on,
 * those without a relation are dropped, and the bound is recomputed.
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

/* Empties a table; returns true if it had entries. */
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

/* Returns to the state of a session that never used a sequence. */
static void
clear(void)
{
	baton_sequence_set_last_used(NULL);
	if (baton_sequence_table() != NULL)
	{
		/* a table that has grown stays slow to walk, so it is given up */
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

	/* after all items, since their order is not guaranteed */
	if (OidIsValid(placed->last_used) && baton_sequence_table() != NULL)
		baton_sequence_set_last_used(hash_search(baton_sequence_table(),
												 &placed->last_used,
												 HASH_FIND, NULL));
}

/*
 * Drops entries whose sequence does not exist any more. The session cannot
 * notice: currval() of a dropped sequence fails on the relation, and lastval()
 * is as undefined without an entry as with one (see there).
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

/* Tells the dispatcher about one sequence, if it does not know. */
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

/* Tells the dispatcher which sequences this capture has not seen. */
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
			/*
			 * without "last" it was only looked at, for example by
			 * pg_sequences
			 */
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
 * Problem: namespace.c makes a backend's temporary namespace for its first
 * temporary object, and from then on the namespace is visible, empty or not:
 * in current_schemas(true), in pg_my_temp_schema(), in the search path, and in
 * the error that a missing pg_temp.x gets. A session that has had a temporary
 * object shall see a namespace on every backend, and no other session shall.
 *
 * Objects in it are not handled here: a session that has any stays on its
 * backend (taint.c), so a namespace is empty whenever it is shown or hidden.
 *
 * Decision: an item of the session's context records that it has a temporary
 * namespace. If the session has none, the backend's is hidden (pg_catalogs.c
 * says how, and why nothing notices). If the session has one, the backend's is
 * shown again, or a transaction of ours makes it.
 *
 * At exit RemoveTempRelationsCallback() (namespace.c) does nothing about a
 * hidden namespace, which is empty. A session that makes its first temporary
 * object while the namespace is hidden makes InitTempTableNamespace() set it
 * up again, with all that this implies on a direct connection (privileges,
 * what is left after a rollback). It is the same namespace, because its name
 * comes from the backend's id.
 *
 * Invariants: `own` is the backend's namespace once it was seen outside a
 * transaction, shown or not: by then its exit callback is registered.
 * BatonPlaced records what the context of the session in place says.
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
 * A transaction that sets up the namespace again takes it back as it aborts.
 * RemoveTempRelationsCallback() would first find it, abort the transaction,
 * and then remove the objects of no namespace, which is an error.
 */
static void
abort_before_removal(int code, Datum argument)
{
	AbortOutOfAnyTransaction();
}

/*
 * Is a namespace shown? Also records one that the session in place has made. A
 * session makes at most one, and keeps it.
 */
static bool
look(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	if (!OidIsValid(namespace))
		return false;
	if (!OidIsValid(own))
		before_shmem_exit(abort_before_removal, (Datum) 0);
	own = namespace;
	own_toast = toast_namespace;
	return true;
}

/*
 * Acts as if the session had just made its first temporary object. It runs as
 * the superuser that will own the namespace, because the session's role may no
 * longer be allowed to make temporary objects; and as an ordinary transaction,
 * whatever the session's default_transaction_* are.
 */
static void
make(void)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			user;
	int			security;

	baton_own_transaction_start();
	XactReadOnly = false;

	/*
	 * InitTempTableNamespace() removes leftovers of a crashed backend under
	 * it
	 */
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
	/* it is recorded once it was seen committed, hence registered */
	if (OidIsValid(own))
		baton_namespace_commits();
}
