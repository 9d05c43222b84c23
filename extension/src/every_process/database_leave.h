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

/* From _PG_init, in the postmaster. */
extern void baton_database_leave_init(void);

/*
 * A utility statement begins (hooks.c).  Fails as the statement itself
 * would if sessions of the pool do not leave its database.
 */
extern void baton_database_utility_begins(BatonUtility *utility);

#endif							/* BATON_DATABASE_LEAVE_H */
