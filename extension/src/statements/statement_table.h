/*-------------------------------------------------------------------------
 *
 * statement_table.h
 *		A table of prepared statements for each session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_TABLE_H
#define BATON_STATEMENT_TABLE_H

#include "lib/ilist.h"
#include "utils/hsearch.h"

struct known_hash;

typedef struct StatementTable
{
	HTAB	   *handle;			/* a handle of its own; it describes the table
								 * while the table is not in place */
	bool		permanent;		/* prepare.c's own table, never destroyed */
	uint64		session;		/* whose statements these are, 0: nobody's */
	uint64		context_version;	/* version of the session's context that
									 * the table is known to agree with, 0: to
									 * be compared */
	uint32		counter_version;	/* version of the session's counters that
									 * the plans agree with */
	uint64		discards;		/* baton_discards that its plans know of */
	uint64		fingerprint;	/* of statements and parameters, 0: unknown */
	uint64		parameters;		/* of the parameters that its plans were made
								 * under, if not mixed */
	bool		mixed;			/* some plans may have been made under others:
								 * never another session's */
	bool		has_initial;	/* the context has an item with the counters'
								 * first values */
	int			statements;		/* number of known statements */
	struct known_hash *known;	/* what the dispatcher knows of them; owned by
								 * statement_known.c */
	dlist_node	use_node;		/* in the list by use, last used first */
	dlist_node	twin_node;		/* in the list of equal fingerprints */
} StatementTable;

/* Bound of what a backend keeps: tables plus statements in them. */
extern PGDLLIMPORT int baton_backend_statements;

/* The table that prepare.c works on at the moment. */
extern StatementTable *baton_table_in_place;

/* NULL if all is well, else why the tables cannot be exchanged. */
extern const char *baton_table_attach(void);

/* An empty table that belongs to nobody; one and the same until claimed. */
extern StatementTable *baton_table_empty(void);

/* Exchanges the table that prepare.c works on. */
extern void baton_table_place(StatementTable *table);

/* To look into a table, in place or not. */
extern HTAB *baton_table_handle(StatementTable *table);

extern StatementTable *baton_table_find(uint64 session);
extern void baton_table_claim(StatementTable *table, uint64 session);
extern void baton_table_used(StatementTable *table);
extern void baton_table_fingerprint(StatementTable *table, uint64 fingerprint);
extern StatementTable *baton_table_twin(uint64 fingerprint);
extern StatementTable *baton_table_oldest(void);
extern void baton_table_count(StatementTable *table, int statements);
extern bool baton_table_full(void);

/* Takes an emptied table from its session; for use by another, or destroyed. */
extern void baton_table_recycle(StatementTable *table);

#endif							/* BATON_STATEMENT_TABLE_H */
