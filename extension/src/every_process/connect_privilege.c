/*-------------------------------------------------------------------------
 *
 * connect_privilege.c
 *		May a role connect to a database?
 *
 * The launcher must know, and cannot ask as a backend does: all checks of
 * privileges look roles up in a catalog cache (has_privs_of_role, through
 * has_rolinherit in acl.c), and a row that is partly in a TOAST table is the
 * launcher's end (shared_catalog.c says why).  Any role can make itself such
 * a row, and grant itself to another, so that to leave the check out where
 * such roles are near would be a way past it.  So the rule of
 * pg_database_aclcheck() is followed here with scans alone, which need no
 * more of a role than its inline attributes.
 *
 * What remains is a list of privileges that was itself moved out of the
 * database's row.  A backend can read that one, and asks when it greets.
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
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "connect_privilege.h"
#include "majors.h"
#include "shared_catalog.h"

/* Does it use the privileges of the roles it is a member of? */
static bool
inherits(Relation authid, Oid role)
{
	SysScanDesc scan;
	HeapTuple	row;
	bool		result;

	scan = baton_shared_scan(authid, AuthIdOidIndexId, Anum_pg_authid_oid,
							 F_OIDEQ, ObjectIdGetDatum(role));
	row = systable_getnext(scan);
	result = HeapTupleIsValid(row) && ((Form_pg_authid) GETSTRUCT(row))->rolinherit;
	systable_endscan(scan);
	return result;
}

/* The roles that it is directly a member of, added to the list. */
static List *
add_memberships(List *roles, Relation members, Oid role, bool role_inherits)
{
	SysScanDesc scan;
	HeapTuple	row;

	scan = baton_shared_scan(members, AuthMemMemRoleIndexId, Anum_pg_auth_members_member,
							 F_OIDEQ, ObjectIdGetDatum(role));
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_auth_members form = (Form_pg_auth_members) GETSTRUCT(row);

		if (!baton_membership_inherits(form, role_inherits))
			continue;
		roles = list_append_unique_oid(roles, form->roleid);
	}
	systable_endscan(scan);
	return roles;
}

/*
 * All roles whose privileges it has, itself first; as roles_is_member_of in
 * acl.c.  A database's owner is a member of pg_database_owner there, but that
 * function knows it of a process's own database only.
 */
static List *
privileges_of(Oid role, Oid database_owner)
{
	Relation	members = table_open(AuthMemRelationId, AccessShareLock);
	List	   *roles = list_make1_oid(role);
	ListCell   *cell;
	Relation	authid = table_open(AuthIdRelationId, AccessShareLock);

	/* the list grows meanwhile, as it does there */
	foreach(cell, roles)
	{
		Oid			member = lfirst_oid(cell);

		bool		member_inherits = inherits(authid, member);

		roles = add_memberships(roles, members, member, member_inherits);
		if (member == database_owner && baton_owner_is_member(member_inherits))
			roles = list_append_unique_oid(roles, ROLE_PG_DATABASE_OWNER);
	}
	table_close(authid, AccessShareLock);
	table_close(members, AccessShareLock);
	return roles;
}

BatonPrivilege
baton_connect_privilege(HeapTuple row, Oid role)
{
	Form_pg_database form = (Form_pg_database) GETSTRUCT(row);
	Relation	catalog;
	Datum		value;
	bool		is_null;
	Acl		   *list;
	const AclItem *items;
	List	   *roles;
	BatonPrivilege result = BATON_PRIVILEGE_MISSING;

	if (HeapTupleHasExternal(row))
		return BATON_PRIVILEGE_UNKNOWN;

	catalog = table_open(DatabaseRelationId, AccessShareLock);
	value = heap_getattr(row, Anum_pg_database_datacl, RelationGetDescr(catalog), &is_null);
	list = is_null ? acldefault(OBJECT_DATABASE, form->datdba) : DatumGetAclPCopy(value);
	table_close(catalog, AccessShareLock);

	/* ACL_DAT, whose macro our warnings object to; there are no NULLs in it */
	items = (const AclItem *) ((char *) list + ARR_OVERHEAD_NONULLS(1));

	roles = privileges_of(role, form->datdba);
	for (int i = 0; i < ACL_NUM(list) && result == BATON_PRIVILEGE_MISSING; i++)
	{
		const AclItem *item = &items[i];

		if ((item->ai_privs & ACL_CONNECT) != 0 &&
			(item->ai_grantee == ACL_ID_PUBLIC || list_member_oid(roles, item->ai_grantee)))
			result = BATON_PRIVILEGE_HELD;
	}
	list_free(roles);
	pfree(list);
	return result;
}

void
baton_connect_check(void)
{
	Oid			role = GetAuthenticatedUserId();
	AclResult	result;

	result = baton_database_aclcheck(MyDatabaseId, role, ACL_CONNECT);
	if (result != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for database \"%s\"",
						get_database_name(MyDatabaseId)),
				 errdetail("User does not have CONNECT privilege.")));
}
