/*-------------------------------------------------------------------------
 *
 * boundary.h
 *		The point between two transactions, at which a backend may change
 *		sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BOUNDARY_H
#define BATON_BOUNDARY_H

#include "access/xact.h"

/*
 * Wraps PqCommMethods in this backend. The first boundary calls `attach`,
 * which ends the process with FATAL if the backend cannot pool.
 */
extern void baton_boundary_install(void (*attach) (void));

/* A transaction event: nothing commits once the session's client is lost. */
extern void baton_boundary_transaction(XactEvent event);

#endif							/* BATON_BOUNDARY_H */
