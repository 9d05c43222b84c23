/*-------------------------------------------------------------------------
 *
 * pg_sequence.c
 *		The two static variables of commands/sequence.c, found and exchanged.
 *
 * currval(), lastval() and the numbers that a sequence with CACHE has fetched
 * in advance are stored in a hash table and in a pointer to one of its
 * entries:
 *
 *    static HTAB *seqhashtab;
 *    static SeqTableData *last_used_seq;
 *
 * With access to both, a session's values are moved by reading and writing
 * memory: no lock is taken, no privilege asked for, no catalog read, and two
 * sequences that stand at the same number are distinguished.  Only these two
 * words must be found; the table itself is used through dynahash's public
 * functions.
 *
 * They are found, once for each backend, at attach:
 *
 * - sequence.c is made to create its table, by asking it for a relation that
 *   is no sequence (init_sequence() enters the hash entry before it looks at
 *   the relation's kind); that table is found by its name (pg_program.c).
 * - seqhashtab is the only word of the server program's data that holds that
 *   address and that ResetSequenceCaches() sets to NULL.
 * - last_used_seq is the only word near it that ResetSequenceCaches() sets to
 *   NULL after another value was written there; during this test, all signals
 *   are blocked, and the word is restored at once.
 * - Finally, lastval() must return, through it, what was stored there.  From
 *   17 on it opens a sequence and no other relation (sequence_open in
 *   sequence.c), so without a sequence the test only shows that it has read
 *   the word.
 * - Two entries that were made in succession are as far apart as dynahash
 *   puts entries of that size (element_alloc in dynahash.c).
 *
 * If any of this does not hold, the backend refuses to pool.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "pg_program.h"
#include "pg_sequence.h"

#if PG_VERSION_NUM >= 170000
#define MyLocalTransactionId (MyProc->vxid.lxid)
#define LASTVAL_TAKES_ANY false
#else
#define MyLocalTransactionId (MyProc->lxid)
#define LASTVAL_TAKES_ANY true
#endif

/* Addresses of seqhashtab and last_used_seq. */
static HTAB *volatile *table_variable = NULL;
static BatonSequenceState *volatile *last_used_variable = NULL;

/* The greatest distance of last_used_seq from seqhashtab, in words. */
#define NEIGHBOURHOOD 128

/*
 * With more copies of the table's address than this in the data, the search
 * fails.
 */
#define MAX_CANDIDATES 16

/*
 * Runs a callback that may fail in a subtransaction; returns false if it
 * failed.  The error itself is discarded.
 */
static bool
attempt(void (*callback) (void))
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	bool		exit_on_error = ExitOnAnyError;
	uint32		held_off = QueryCancelHoldoffCount;
	volatile bool done = false;

	/*
	 * the boundary may have set this, which makes every error end the process
	 */
	ExitOnAnyError = false;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		callback();
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	QueryCancelHoldoffCount = held_off; /* an error has set it to zero */
	ExitOnAnyError = exit_on_error;
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return done;
}

/* The relation, no sequence, that sequence.c is asked for. */
static Oid	asked_for;

/* Always fails, but after init_sequence() has entered the relation's OID. */
static void
provoke_entry(void)
{
	(void) DirectFunctionCall1(pg_sequence_last_value,
							   ObjectIdGetDatum(asked_for));
}

/*
 * The entry that lastval() must use through last_used_seq, and what it
 * returned.
 */
static BatonSequenceState probe;
static int64 probe_result;

static void
ask_lastval(void)
{
	probe_result = DatumGetInt64(DirectFunctionCall1(lastval, (Datum) 0));
}

/* Finds seqhashtab; leaves sequence.c without a table. */
static const char *
find_table_variable(const BatonProgramData *range)
{
	HTAB	   *table;
	BatonSequenceState *entry;
	BatonSequenceState *other;
	Oid			key = RelationRelationId;
	ptrdiff_t	distance;
	HTAB	  **candidates[MAX_CANDIDATES];
	int			candidate_count = 0;

	asked_for = key;
	if (attempt(provoke_entry))
		return "pg_sequence_last_value() takes pg_class for a sequence";
	asked_for = AttributeRelationId;
	if (attempt(provoke_entry))
		return "pg_sequence_last_value() takes pg_attribute for a sequence";
	table = baton_hash_find("Sequence values");
	if (table == NULL)
		return "the table of sequence values was not found";
	entry = hash_search(table, &key, HASH_FIND, NULL);
	if (entry == NULL || entry->relid != key ||
		entry->filenode != InvalidOid ||
		entry->lxid != MyLocalTransactionId ||
		entry->last_valid || entry->last != 0 || entry->cached != 0)
		return "an entry of the table of sequence values is not as expected";
	other = hash_search(table, &asked_for, HASH_FIND, NULL);
	distance = other == NULL ? 0 : (char *) entry - (char *) other;
	if (distance < 0)
		distance = -distance;
	if (distance != MAXALIGN(sizeof(HASHELEMENT)) + MAXALIGN(sizeof(*entry)))
		return "an entry of the table of sequence values has another size than expected";

	for (uintptr_t word = range->start; word < range->end; word += sizeof(void *))
	{
		if (*(HTAB *volatile *) word != table)
			continue;
		if (candidate_count == MAX_CANDIDATES)
			return "the table of sequence values is referred to too often";
		candidates[candidate_count++] = (HTAB **) word;
	}

	ResetSequenceCaches();
	for (int i = 0; i < candidate_count; i++)
	{
		if (*(HTAB *volatile *) candidates[i] != NULL)
			continue;
		if (table_variable != NULL)
			return "seqhashtab is ambiguous";
		table_variable = (HTAB *volatile *) candidates[i];
	}
	if (table_variable == NULL)
		return "seqhashtab was not found";
	return NULL;
}

/* Finds last_used_seq; called while both variables are NULL. */
static const char *
find_last_used_variable(const BatonProgramData *range)
{
	uintptr_t	centre = (uintptr_t) table_variable;
	uintptr_t	from = Max(range->start, centre - NEIGHBOURHOOD * sizeof(void *));
	uintptr_t	to = Min(range->end, centre + NEIGHBOURHOOD * sizeof(void *));
	sigset_t	all_signals;
	sigset_t	signals_before;
	int			found = 0;

	/*
	 * The words tried may be any variables, including those that a signal
	 * handler writes, so no handler may run meanwhile.  Backends have no
	 * threads that would touch the server program's own variables.
	 */
	sigfillset(&all_signals);
	sigprocmask(SIG_SETMASK, &all_signals, &signals_before);
	for (uintptr_t address = from; address < to; address += sizeof(void *))
	{
		BatonSequenceState *volatile *word = (BatonSequenceState *volatile *) address;

		if (address == centre || *word != NULL)
			continue;
		*word = &probe;
		ResetSequenceCaches();
		if (*word == NULL)
		{
			found++;
			last_used_variable = word;
		}
		else
			*word = NULL;
	}
	sigprocmask(SIG_SETMASK, &signals_before, NULL);

	if (found == 0)
		return "last_used_seq was not found";
	if (found > 1)
		return "last_used_seq is ambiguous";
	return NULL;
}

static const char *
check_last_used_variable(void)
{
	bool		done;

	memset(&probe, 0, sizeof(probe));
	probe.relid = RelationRelationId;
	probe.lxid = InvalidLocalTransactionId;
	probe.last_valid = true;
	probe.last = probe.cached = INT64CONST(0x5eedba7055555555);
	*last_used_variable = &probe;
	done = attempt(ask_lastval);
	*last_used_variable = NULL;
	if (done != LASTVAL_TAKES_ANY || (done && probe_result != probe.last) ||
		probe.lxid != MyLocalTransactionId)
		return "lastval() does not follow last_used_seq as expected";
	return NULL;
}

const char *
baton_sequence_state_attach(void)
{
	MemoryContext context = CurrentMemoryContext;
	BatonProgramData range;
	const char *problem = NULL;
	Oid			user;
	int			security;

	if (!baton_program_data(&range))
		return "the server program's data was not found";

	ResetSequenceCaches();
	StartTransactionCommand();

	/* lastval() checks a privilege on pg_class, which is not tested here */
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   security | SECURITY_LOCAL_USERID_CHANGE);

	problem = find_table_variable(&range);
	if (problem == NULL)
		problem = find_last_used_variable(&range);
	if (problem == NULL)
		problem = check_last_used_variable();

	SetUserIdAndSecContext(user, security);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	/* in any case, sequence.c begins anew */
	ResetSequenceCaches();
	return problem;
}

HTAB *
baton_sequence_table(void)
{
	return *table_variable;
}

static HTAB *
make_table(void)
{
	HASHCTL		control;

	if (*table_variable != NULL)
		return *table_variable;

	/* as create_seq_hashtable() does; ResetSequenceCaches() destroys it */
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(BatonSequenceState);
	*table_variable = hash_create("Sequence values", 16, &control,
								  HASH_ELEM | HASH_BLOBS);
	return *table_variable;
}

void
baton_sequence_put(Oid relid, Oid filenode, int64 last, int64 cached, int64 increment)
{
	BatonSequenceState *state = hash_search(make_table(), &relid, HASH_ENTER, NULL);

	state->filenode = filenode;
	state->lxid = InvalidLocalTransactionId;
	state->last_valid = true;
	state->last = last;
	state->cached = cached;
	state->increment = increment;
}

/* If lastval() refers to this entry, it is undefined from now on. */
void
baton_sequence_remove(Oid relid)
{
	if (*last_used_variable != NULL && (*last_used_variable)->relid == relid)
		*last_used_variable = NULL;
	if (*table_variable != NULL)
		(void) hash_search(*table_variable, &relid, HASH_REMOVE, NULL);
}

BatonSequenceState *
baton_sequence_last_used(void)
{
	return *last_used_variable;
}

void
baton_sequence_set_last_used(BatonSequenceState *state)
{
	*last_used_variable = state;
}
