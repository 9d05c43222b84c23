/*-------------------------------------------------------------------------
 *
 * pg_baton.h
 *		The library's entry, and all hooks and callbacks of the server, with the
 *		order of their watchers.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_BATON_H
#define BATON_PG_BATON_H

/* Called by _PG_init, in the postmaster. */
extern void baton_hooks_install(void);

#endif							/* BATON_PG_BATON_H */
