/*-------------------------------------------------------------------------
 *
 * pg_sequence.h
 *		The two static variables of commands/sequence.c, found and exchanged.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_SEQUENCE_H
#define BATON_PG_SEQUENCE_H

#include "storage/lock.h"
#include "utils/hsearch.h"

/*
 * Mirror of SeqTableData, which is private to sequence.c; the same from 15 to
 * 18 (16 renamed filenode, keeping its width). baton_sequence_state_attach
 * checks it as far as is possible without a sequence.
 */
typedef struct BatonSequenceState
{
	Oid			relid;			/* hash key */
	Oid			filenode;		/* last seen relfilenode */
	LocalTransactionId lxid;	/* transaction in which the process holds its
								 * lock */
	bool		last_valid;		/* is `last` what currval() returns? */
	int64		last;
	int64		cached;			/* last number fetched; cached != last means
								 * numbers are left */
	int64		increment;		/* meaningful only if numbers are left */
} BatonSequenceState;

/*
 * Called once, at attach; outside a transaction.  Returns NULL, or why the
 * state cannot be exchanged.
 */
extern const char *baton_sequence_state_attach(void);

/* The table of BatonSequenceState by relid, or NULL. */
extern HTAB *baton_sequence_table(void);

/*
 * Enters a sequence, of which no lock is held, as the session that used it
 * last has it; creates the table if there is none.
 */
extern void baton_sequence_put(Oid relid, Oid filenode, int64 last, int64 cached,
							   int64 increment);

/* Removes a sequence, if it is there. */
extern void baton_sequence_remove(Oid relid);

/* The entry that lastval() refers to, or NULL if it is undefined. */
extern BatonSequenceState *baton_sequence_last_used(void);
extern void baton_sequence_set_last_used(BatonSequenceState *state);

#endif							/* BATON_PG_SEQUENCE_H */
