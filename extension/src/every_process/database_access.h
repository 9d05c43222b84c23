/*-------------------------------------------------------------------------
 *
 * database_access.h
 *		A role's right to connect to a database, and a statement that needs a
 *		database without other sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DATABASE_ACCESS_H
#define BATON_DATABASE_ACCESS_H

#include "access/htup.h"
#include "utils/resowner.h"

#include "catalog_watch.h"

/* ----------------------------------------------------------------
 *		May a role connect to a database?
 * ----------------------------------------------------------------
 */

/*
 * The launcher, for which all logins wait, reads at most this many rows for
 * the memberships of one role: a few milliseconds, and some hundred
 * memberships.
 */
#define BATON_MEMBERSHIP_ROWS 50000

typedef enum BatonPrivilege
{
	BATON_PRIVILEGE_HELD,
	BATON_PRIVILEGE_MISSING,

	/*
	 * the list is too long to be read without a database, or the role has too
	 * many memberships
	 */
	BATON_PRIVILEGE_UNKNOWN,
} BatonPrivilege;

/*
 * For a process without a database, within a transaction.  `row` is the
 * database's row of pg_database; the role is not a superuser.  At most
 * most_rows rows are read to find its direct and indirect memberships.
 */
extern BatonPrivilege baton_connect_privilege(HeapTuple row, Oid role, int most_rows);

/*
 * Can all memberships of the role be found within most_rows rows, with or
 * without inheritance of privileges?
 */
extern bool baton_has_few_memberships(Oid role, int most_rows);

/*
 * For a process without a database, within a transaction: does the role have
 * the privileges of that other role (has_privs_of_role in acl.c)?  At most
 * most_rows rows are read.
 */
extern BatonPrivilege baton_role_privilege(Oid role, Oid other, int most_rows);

/*
 * In a backend of the database, within a transaction: as CheckMyDatabase in
 * postinit.c, raises an ERROR if the authenticated user may not connect (any
 * more).
 */
extern void baton_connect_check(void);

/* ----------------------------------------------------------------
 *		The pool leaves a database that a statement needs for itself.
 */

/*
 * Called before a utility statement (pg_baton.c).  Fails as the statement
 * itself would if sessions of the pool do not leave its database.
 */
extern void baton_database_utility_begins(BatonUtility *utility);

/*
 * Called when a transaction's resources are released (pg_baton.c): gives up
 * its claims on databases.
 */
extern void baton_database_release(ResourceReleasePhase phase, bool is_top);

#endif							/* BATON_DATABASE_ACCESS_H */
