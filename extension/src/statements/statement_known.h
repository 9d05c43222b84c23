/*-------------------------------------------------------------------------
 *
 * statement_known.h
 *		What is known of the statements of a session's table.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_KNOWN_H
#define BATON_STATEMENT_KNOWN_H

#include "commands/prepare.h"
#include "common/hashfn.h"
#include "context.h"
#include "statement_table.h"

/* An item's counter, if the dispatcher had none left. */
#define NO_COUNTER PG_UINT32_MAX

typedef struct KnownStatement
{
	char		name[NAMEDATALEN];
	CachedPlanSource *plan;		/* NULL once dropped */
	uint64		serial;			/* entry it is equal to, 0: not known */
	TimestampTz prepare_time;
	uint32		counter;		/* slot in CONTROL, NO_COUNTER: not known */
	BatonStatementCounter written;	/* counters as the context has them */
	uint64		seen;			/* number of the pass that saw it last */
} KnownStatement;

typedef struct KnownEntry
{
	const char *name;			/* points into the statement */
	KnownStatement *statement;
	uint32		hash;
	char		status;
} KnownEntry;

#define SH_PREFIX known
#define SH_ELEMENT_TYPE KnownEntry
#define SH_KEY_TYPE const char *
#define SH_KEY name
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) (key), strlen(key))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_SCOPE static inline
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) ((a)->hash)
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Number of the look at all statements of a table; raised as one begins. */
extern uint64 baton_known_pass;

extern void baton_known_attach(void);

/* Ties a known statement to its plan. */
extern void baton_known_tie(KnownStatement *known, CachedPlanSource *plan);

extern KnownStatement *baton_known_find(StatementTable *table, const char *name);
extern KnownStatement *baton_known_add(StatementTable *table, const char *name);

/* Its plan must have gone. */
extern void baton_known_remove(StatementTable *table, KnownStatement *known);

/* Drops a statement of the table in place, and what is known of it. */
extern void baton_known_drop(KnownStatement *known);

/* Drops whatever is in the table in place. */
extern void baton_known_empty_table(void);

/* Calls it for the plan of each statement of the table. */
extern void baton_known_for_plans(StatementTable *table,
								  void (*callback) (CachedPlanSource *plan));

#endif							/* BATON_STATEMENT_KNOWN_H */
