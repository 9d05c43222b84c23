/*-------------------------------------------------------------------------
 *
 * function_table.h
 *		PL/pgSQL's compiled functions, apart for each environment.
 *
 * See function_table.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_FUNCTION_TABLE_H
#define BATON_FUNCTION_TABLE_H

#include "utility_hook.h"

/* Installs the hooks on calls of functions; from _PG_init. */
extern void baton_functions_init(void);

/* This backend will pool; before it calls any function of a user's. */
extern void baton_functions_begin(void);

/* Once, at attach.  NULL, or why this backend cannot pool. */
extern const char *baton_functions_attach(void);

/* Another session is put in place than the one before. */
extern void baton_functions_session_changes(void);

/* Called from the utility hook for each statement about to run. */
extern void baton_functions_utility_begins(const BatonUtility *utility);

#endif							/* BATON_FUNCTION_TABLE_H */
