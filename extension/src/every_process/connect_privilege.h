/*-------------------------------------------------------------------------
 *
 * connect_privilege.h
 *		May a role connect to a database?
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONNECT_PRIVILEGE_H
#define BATON_CONNECT_PRIVILEGE_H

#include "access/htup.h"

typedef enum BatonPrivilege
{
	BATON_PRIVILEGE_HELD,
	BATON_PRIVILEGE_MISSING,
	/* the list is too long to be read without a database */
	BATON_PRIVILEGE_UNKNOWN,
} BatonPrivilege;

/*
 * For a process without a database, within a transaction; `row` is the
 * database's of pg_database, the role no superuser.
 */
extern BatonPrivilege baton_connect_privilege(HeapTuple row, Oid role);

/*
 * In a backend of that database, within a transaction: as CheckMyDatabase in
 * postinit.c, an ERROR if the authenticated user may not be here (any more).
 */
extern void baton_connect_check(void);

#endif							/* BATON_CONNECT_PRIVILEGE_H */
