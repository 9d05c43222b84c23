/*-------------------------------------------------------------------------
 *
 * statement_share.h
 *		What a session's statements leave behind for all.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_SHARE_H
#define BATON_STATEMENT_SHARE_H

#include "held_statement.h"

/* What stands on the context of query trees made in the plan's environment. */
extern const char baton_own_trees[];

/* Hands what a view has come to have to its common statement. */
extern void baton_share_view(HeldStatement *held);

/*
 * Keeps the plan that the session has prepared; false if it may not be, or if
 * there is one of its content, to which its generic plan is handed.
 */
extern bool baton_share_plan(HeldStatement *held);

#endif							/* BATON_STATEMENT_SHARE_H */
