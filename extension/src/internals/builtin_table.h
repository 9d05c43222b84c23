/*-------------------------------------------------------------------------
 *
 * builtin_table.h
 *		Built-in functions of SQL that are to be ours.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BUILTIN_TABLE_H
#define BATON_BUILTIN_TABLE_H

#include "fmgr.h"

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

#endif							/* BATON_BUILTIN_TABLE_H */
