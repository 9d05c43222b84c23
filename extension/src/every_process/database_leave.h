/*-------------------------------------------------------------------------
 *
 * database_leave.h
 *		The pool leaves a database that a statement wants for itself.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DATABASE_LEAVE_H
#define BATON_DATABASE_LEAVE_H

#include "utility_statement.h"
#include "utils/resowner.h"

/*
 * A utility statement begins (hooks.c).  Fails as the statement itself
 * would if sessions of the pool do not leave its database.
 */
extern void baton_database_utility_begins(BatonUtility *utility);

/* Resources of a transaction are released (hooks.c): lets the database go. */
extern void baton_database_release(ResourceReleasePhase phase, bool is_top);

#endif							/* BATON_DATABASE_LEAVE_H */
