/*-------------------------------------------------------------------------
 *
 * prepared_table.h
 *		The table of prepared statements, which asks for what is looked up.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PREPARED_TABLE_H
#define BATON_PREPARED_TABLE_H

#include "commands/prepare.h"

/* A name is about to be looked up, or entered. */
typedef void (*BatonStatementWanted) (const char *name, uint32 hash);

/* NULL if all is well, else why the table cannot be replaced. */
extern const char *baton_table_attach(BatonStatementWanted wanted);

/* Looking up, entering and removing without asking. */
extern PreparedStatement *baton_table_find(const char *name, uint32 hash);
extern void baton_table_enter(const char *name, uint32 hash, CachedPlanSource *plan,
							  bool from_sql, TimestampTz prepare_time);
extern void baton_table_remove(const char *name, uint32 hash);

/* The session leaves; its entries, at most so many, have been removed. */
extern void baton_table_refresh(int names);

#endif							/* BATON_PREPARED_TABLE_H */
