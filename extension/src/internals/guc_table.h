/*-------------------------------------------------------------------------
 *
 * guc_table.h
 *		The server's table of parameter records, and what guc.c keeps beside it.
 *
 * guc_table_15.c is for 15, guc_table_16.c for 16 and later.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_GUC_TABLE_H
#define BATON_GUC_TABLE_H

#include "utils/guc_tables.h"

/* Once, at attach.  NULL, or why the table cannot be worked with. */
extern const char *baton_guc_table_attach(void);

/* The parameter of that name; NULL if there is none. */
extern struct config_generic *baton_guc_find(const char *name);

/*
 * All records, sorted by name.  Of an attached backend the array is the
 * table's, and good until the table changes; else it is palloc'd.
 */
extern struct config_generic **baton_guc_records(int *count);

/*
 * Rises when a record has come into the table, gone from it, or been replaced
 * by another.  Cheap enough for every boundary.
 */
extern uint64 baton_guc_table_version(void);

/*
 * The placeholder of that name, which must not be there, comes into being
 * without a value; NULL if a library has reserved the prefix.  And it goes,
 * when it is without a value.
 */
extern struct config_generic *baton_guc_add_placeholder(const char *name);
extern void baton_guc_remove_placeholder(struct config_generic *record);

/* Is it one that was removed, but has stayed in the table? */
extern bool baton_guc_is_removed(const struct config_generic *record);

/* So many have stayed that each new one takes long. */
extern bool baton_guc_table_is_overgrown(void);

/* Where the active value comes from. */
extern void baton_guc_set_origin(struct config_generic *record, GucSource source,
								 GucContext scontext, Oid srole);

/*
 * The next ReportChangedGUCOptions() looks at the record, which must be
 * reported to clients, and at all such records.
 */
extern void baton_guc_look_for_report(struct config_generic *record);
extern void baton_guc_look_for_reports(void);

#endif							/* BATON_GUC_TABLE_H */
