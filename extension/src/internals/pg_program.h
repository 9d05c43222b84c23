/*-------------------------------------------------------------------------
 *
 * pg_program.h
 *		What the server's program contains and does not export: its variables,
 *		hash tables, built-in functions and libraries.
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
 *		The memory of the server program's variables.
 */

/* From start to before end; both are aligned for a pointer. */
typedef struct BatonProgramData
{
	uintptr_t	start;
	uintptr_t	end;
} BatonProgramData;

/* Returns false if the data was not found. */
extern bool baton_program_data(BatonProgramData *data);

/* Is the address in the server program's own code, and in no library's? */
extern bool baton_is_program_code(const void *address);

/* ----------------------------------------------------------------
 *		Finding hash tables that are private to other files of the server.
 */

/*
 * sizeof(HTAB), which is private to dynahash.c; 0 if a table does not have the
 * expected form.
 */
extern Size baton_hash_header_size(void);

/*
 * The table that hash_create() has made under that name below
 * TopMemoryContext; NULL if there is none, or several.
 */
extern HTAB *baton_hash_find(const char *name);

/* The same, for a table made below another context. */
extern HTAB *baton_hash_find_below(MemoryContext parent, const char *name);

/*
 * A static variable of the server that points to a table can be given another
 * table by overwriting what it points to.  Do the two have the same form,
 * except for own_words words of their headers, which differ?
 */
extern bool baton_hash_same_form(const HTAB *one, const HTAB *other, int own_words);

/* Allocates room for the header of a table that is not in place. */
extern HTAB *baton_hash_make_room(MemoryContext context);

/* Moves the table in place to `room`, and the other one into its place. */
extern void baton_hash_exchange(HTAB *place, HTAB *room, const HTAB *other);

/* ----------------------------------------------------------------
 *		Replacing built-in functions of SQL.
 */

typedef struct BatonBuiltin
{
	Oid			oid;			/* InvalidOid: not in this major */
	const char *name;			/* of the C function */
	PGFunction	original;
	PGFunction	ours;
} BatonBuiltin;

/*
 * Postmaster only: has SQL call `ours` for each, in every process forked from
 * now on.  All or none.  Returns what prevents it, or NULL.
 */
extern const char *baton_builtins_replace(const BatonBuiltin *builtins, int count);

/* Has the function been replaced?  Then needs_fmgr_hook must claim it. */
extern bool baton_builtin_is_replaced(Oid function);

/* ----------------------------------------------------------------
 *		The modules of the server that this process loads.
 */

/* The last library that has been examined; pg_program.c alone sets it. */
extern struct link_map *baton_last_library;

/*
 * Called once in a backend: marks all loaded libraries as examined.  Returns
 * NULL, or what is not as expected.
 */
extern const char *baton_libraries_attach(void);

/* Has any library been loaded since the last was examined? */
static inline bool
baton_libraries_more(void)
{
	return baton_last_library != NULL && baton_last_library->l_next != NULL;
}

/*
 * The file of the next module of the server (a library with PG_MODULE_MAGIC)
 * that was loaded, even if its initialisation failed; NULL if there are no
 * more.
 */
extern const char *baton_libraries_next(void);

#endif							/* BATON_PG_PROGRAM_H */
