/*-------------------------------------------------------------------------
 *
 * loaded_libraries.h
 *		The server's modules that this process loads, as it loads them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LOADED_LIBRARIES_H
#define BATON_LOADED_LIBRARIES_H

#include <link.h>

/* The last library that has been looked at; loaded_libraries.c alone sets it. */
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

#endif							/* BATON_LOADED_LIBRARIES_H */
