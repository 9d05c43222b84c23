/*-------------------------------------------------------------------------
 *
 * utility_statement.h
 *		What the watchers of a utility statement share (hooks.c calls them).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_UTILITY_STATEMENT_H
#define BATON_UTILITY_STATEMENT_H

#include "nodes/nodes.h"

/*
 * A utility statement on its way.  What a watcher has to know again when it
 * has succeeded it notes here as it begins: the tree may be gone by then
 * (ROLLBACK and DISCARD drop plans).
 */
typedef struct BatonUtility
{
	const Node *statement;		/* NULL once it has run */
	bool		top_level;		/* a client's own, of no function's or DO's */

	bool		loads;			/* taint_watch.c: LOAD */
	bool		prepares;		/* statement_notice.c: PREPARE */
	bool		discards_plans; /* statement_notice.c: DISCARD PLANS or ALL */
	uint64	   *settings_before;	/* settings_watch.c: to compare with;
									 * NULL: not */
} BatonUtility;

#endif							/* BATON_UTILITY_STATEMENT_H */
