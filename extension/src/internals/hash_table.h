/*-------------------------------------------------------------------------
 *
 * hash_table.h
 *		Finding hash tables that other files of the server keep to themselves.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HASH_TABLE_H
#define BATON_HASH_TABLE_H

#include "utils/hsearch.h"

/*
 * sizeof(HTAB), which is private to dynahash.c; 0 if a table does not look as
 * it is expected to.
 */
extern Size baton_hash_header_size(void);

/*
 * The table that hash_create() has made under that name below
 * TopMemoryContext; NULL if there is none, or more than one.
 */
extern HTAB *baton_hash_find(const char *name);

/* The same, for one that was made below another context. */
extern HTAB *baton_hash_find_below(MemoryContext parent, const char *name);

#endif							/* BATON_HASH_TABLE_H */
