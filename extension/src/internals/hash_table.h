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

/*
 * A static variable of the server's that points to a table can be given another
 * table, by what it points to.  Have the two the same form, but for so many words
 * of their headers, which are their own?
 */
extern bool baton_hash_same_form(const HTAB *one, const HTAB *other, int own_words);

/* Room for the header of a table that is not in place. */
extern HTAB *baton_hash_make_room(MemoryContext context);

/* What is in place goes to `room`, and the other comes to its place. */
extern void baton_hash_exchange(HTAB *place, HTAB *room, const HTAB *other);

#endif							/* BATON_HASH_TABLE_H */
