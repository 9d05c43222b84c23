/*-------------------------------------------------------------------------
 *
 * shared_catalog.c
 *		Roles and databases by name, for a process without a database.
 *
 * The launcher has no database, so only the shared catalogs that every
 * process can read before it has one are within reach: pg_authid,
 * pg_auth_members, pg_database (RelationCacheInitializePhase2 in relcache.c).
 * Their TOAST tables are not: reading one is FATAL ("cannot read pg_class
 * without having selected a database", ScanPgRelation), which no PG_CATCH
 * sees.  A catalog cache fetches toasted values as soon as it is asked for a
 * row (CatalogCacheCreateEntry in catcache.c), and a row that long is within
 * anybody's power: a user may give himself a SCRAM verifier with a salt of
 * any length.  So rows are read by scans, as GetDatabaseTuple in postinit.c
 * does, and no cache is asked for one that has not been seen to be readable; nor
 * is anything that does so by itself, as has_privs_of_role()
 * (connect_privilege.c has what we use of it).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"

#include "shared_catalog.h"

SysScanDesc
baton_shared_scan(Relation catalog, Oid index, AttrNumber attribute,
				  RegProcedure equal, Datum value)
{
	ScanKeyData key;

	/* systable_beginscan does not refer to the key afterwards */
	ScanKeyInit(&key, attribute, BTEqualStrategyNumber, equal, value);
	return systable_beginscan(catalog, index, criticalSharedRelcachesBuilt,
							  NULL, 1, &key);
}

/* A copy of the row whose attribute is that; or NULL. */
static HeapTuple
row_by(Relation catalog, Oid index, AttrNumber attribute, RegProcedure equal, Datum value)
{
	SysScanDesc scan;
	HeapTuple	row;

	scan = baton_shared_scan(catalog, index, attribute, equal, value);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		row = heap_copytuple(row);
	systable_endscan(scan);
	return row;
}

/*
 * With these locks held, to look at roles once more accepts no invalidations
 * (LockRelationOid() in lmgr.c, 15 to 18: only who gets a lock anew does), and as
 * long as none are accepted the catalog snapshot is the same
 * (GetNonHistoricCatalogSnapshot() in snapmgr.c).  So a row that could be read
 * can be read by a catalog cache, too.  Which indexes: those of the caches
 * AUTHNAME and AUTHMEMMEMROLE (syscache.c).
 */
void
baton_roles_hold(void)
{
	LockRelationOid(AuthIdRelationId, AccessShareLock);
	LockRelationOid(AuthIdRolnameIndexId, AccessShareLock);
	LockRelationOid(AuthMemRelationId, AccessShareLock);
	LockRelationOid(AuthMemMemRoleIndexId, AccessShareLock);
}

static bool
role_by(Oid index, AttrNumber attribute, RegProcedure equal, Datum value, BatonRole *role)
{
	Relation	catalog = table_open(AuthIdRelationId, AccessShareLock);
	HeapTuple	row = row_by(catalog, index, attribute, equal, value);
	bool		found = HeapTupleIsValid(row);

	memset(role, 0, sizeof(*role));
	role->connection_limit = -1;
	if (found)
	{
		Form_pg_authid form = (Form_pg_authid) GETSTRUCT(row);
		bool		is_null;

		strlcpy(role->name, NameStr(form->rolname), NAMEDATALEN);
		role->oid = form->oid;
		role->superuser = form->rolsuper;
		role->can_login = form->rolcanlogin;
		role->connection_limit = form->rolconnlimit;
		role->readable = !HeapTupleHasExternal(row);

		value = heap_getattr(row, Anum_pg_authid_rolvaliduntil,
							 RelationGetDescr(catalog), &is_null);
		role->expires = !is_null;
		if (role->expires)
			role->valid_until = DatumGetTimestampTz(value);

		value = heap_getattr(row, Anum_pg_authid_rolpassword,
							 RelationGetDescr(catalog), &is_null);
		if (!is_null && role->readable)
			role->verifier = TextDatumGetCString(value);

		/* a verifier must not lie about in free memory */
		explicit_bzero(row->t_data, row->t_len);
		heap_freetuple(row);
	}
	table_close(catalog, AccessShareLock);
	return found;
}

bool
baton_role_by_name(const char *name, BatonRole *role)
{
	return role_by(AuthIdRolnameIndexId, Anum_pg_authid_rolname, F_NAMEEQ,
				   CStringGetDatum(name), role);
}

bool
baton_role_by_oid(Oid oid, BatonRole *role)
{
	return role_by(AuthIdOidIndexId, Anum_pg_authid_oid, F_OIDEQ, ObjectIdGetDatum(oid), role);
}

char *
baton_superuser_who_may_log_in(void)
{
	Relation	catalog = table_open(AuthIdRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	row;
	char	   *name = NULL;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_authid form = (Form_pg_authid) GETSTRUCT(row);

		if (!form->rolsuper || !form->rolcanlogin || HeapTupleHasExternal(row))
			continue;
		if (name == NULL || form->oid == BOOTSTRAP_SUPERUSERID)
			name = pstrdup(NameStr(form->rolname));
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return name;
}

void
baton_role_wipe(BatonRole *role)
{
	if (role->verifier != NULL)
		explicit_bzero(role->verifier, strlen(role->verifier));
}

HeapTuple
baton_database_row(const char *name)
{
	Relation	catalog = table_open(DatabaseRelationId, AccessShareLock);
	HeapTuple	row = row_by(catalog, DatabaseNameIndexId, Anum_pg_database_datname,
							 F_NAMEEQ, CStringGetDatum(name));

	table_close(catalog, AccessShareLock);
	return row;
}
