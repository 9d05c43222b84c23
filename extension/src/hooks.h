/*-------------------------------------------------------------------------
 *
 * hooks.h
 *		The server's hooks and callbacks, all of them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HOOKS_H
#define BATON_HOOKS_H

/* From _PG_init, in the postmaster. */
extern void baton_hooks_install(void);

#endif							/* BATON_HOOKS_H */
