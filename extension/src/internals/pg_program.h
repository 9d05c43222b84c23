/*-------------------------------------------------------------------------
 *
 * pg_program.h
 *		What the server's program has and does not export: its variables, hash
 *		tables, built-in functions and libraries.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_PROGRAM_H
#define BATON_PG_PROGRAM_H

#include <link.h>

#include "fmgr.h"
#include "utils/hsearch.h"

/* ----------------------------------------------------------------
 *		Where the server program keeps its variables.
 * ----------------------------------------------------------------
 */

/* From start to before end; both are aligned for a pointer. */
typedef struct BatonProgramData
{
	uintptr_t	start;
	uintptr_t	end;
} BatonProgramData;

/* False if it was not found. */
extern bool baton_program_data(BatonProgramData *data);

/* Is it the server program's own code, and no library's? */
extern bool baton_is_program_code(const void *address);

/* ----------------------------------------------------------------
 *		Finding hash tables that other files of the server keep to themselves.
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		Built-in functions of SQL that are to be ours.
 * ----------------------------------------------------------------
 */

typedef struct BatonBuiltin
{
	Oid			oid;			/* InvalidOid: this major does not have it */
	const char *name;			/* of the C function */
	PGFunction	original;
	PGFunction	ours;
} BatonBuiltin;

/*
 * Postmaster only: has SQL call `ours` for each, in every process that is
 * forked from now on.  All or none: what keeps us from it, NULL if nothing.
 */
extern const char *baton_builtins_replace(const BatonBuiltin *builtins, int count);

/*
 * Is it one of them?  Then needs_fmgr_hook is to say that it must be seen.
 */
extern bool baton_builtin_is_replaced(Oid function);

/* ----------------------------------------------------------------
 *		The server's modules that this process loads, as it loads them.
 * ----------------------------------------------------------------
 */

/* The last library that has been looked at; pg_program.c alone sets it. */
extern struct link_map *baton_last_library;

/*
 * Once a backend: what is loaded by now is looked at.  NULL, or what is not as
 * expected.
 */
extern const char *baton_libraries_attach(void);

/* Has any library been loaded since the last was looked at? */
static inline bool
baton_libraries_more(void)
{
	return baton_last_library != NULL && baton_last_library->l_next != NULL;
}

/*
 * The file of the next module of the server's (who has PG_MODULE_MAGIC) that was
 * loaded, also where its initialisation failed; NULL if there is no more.
 */
extern const char *baton_libraries_next(void);

#endif							/* BATON_PG_PROGRAM_H */
