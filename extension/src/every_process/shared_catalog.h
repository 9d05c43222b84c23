/*-------------------------------------------------------------------------
 *
 * shared_catalog.h
 *		Roles and databases by name, for a process without a database.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SHARED_CATALOG_H
#define BATON_SHARED_CATALOG_H

#include "access/genam.h"
#include "access/htup.h"
#include "datatype/timestamp.h"

/* What pg_authid says of a role. */
typedef struct BatonRole
{
	Oid			oid;
	char		name[NAMEDATALEN];
	bool		superuser;
	bool		can_login;
	int32		connection_limit;	/* -1: none */
	bool		expires;
	TimestampTz valid_until;	/* if it expires */
	bool		readable;		/* false: its row is too long to be read
								 * without a database */
	char	   *verifier;		/* NULL: no password, or not readable */
} BatonRole;

/*
 * All of these within a transaction.  From here to its end roles and memberships
 * are what they are now, also for the catalog caches.
 */
extern void baton_roles_hold(void);

/* False if there is no such role. */
extern bool baton_role_by_name(const char *name, BatonRole *role);
extern bool baton_role_by_oid(Oid oid, BatonRole *role);

/* The first there is, if it may; NULL: none may. */
extern char *baton_superuser_who_may_log_in(void);

/* Overwrites the verifier: nobody needs it any more. */
extern void baton_role_wipe(BatonRole *role);

/*
 * Scans a shared catalog for rows with that value, by the index if the process
 * has come far enough to use one.  `equal` is the type's equality function.
 */
extern SysScanDesc baton_shared_scan(Relation catalog, Oid index, AttrNumber attribute,
									 RegProcedure equal, Datum value);

/* The row of pg_database; NULL if there is no such database. */
extern HeapTuple baton_database_row(const char *name);

#endif							/* BATON_SHARED_CATALOG_H */
