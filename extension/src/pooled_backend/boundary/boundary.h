/*-------------------------------------------------------------------------
 *
 * boundary.h
 *		The point between two transactions at which the baton goes on.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BOUNDARY_H
#define BATON_BOUNDARY_H

/*
 * Wraps PqCommMethods in this backend, which attaches at the first boundary:
 * `attach` ends it, by FATAL, if it cannot pool.
 */
extern void baton_boundary_install(void (*attach) (void));

#endif							/* BATON_BOUNDARY_H */
