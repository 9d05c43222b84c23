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
 * database's row.  A backend can read that one, and asks when it greets.  So it is
 * with a role of very many memberships: a role with CREATEROLE can give itself as
 * many as it likes, and logins of all others would wait for the launcher to follow them.
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
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "connect_privilege.h"
#include "majors.h"
#include "shared_catalog.h"

/* What a scan costs, in rows. */
#define ROWS_A_SCAN 50

/* The roles whose privileges a role has, as far as they have been found. */
typedef struct Membership
{
	List	   *roles;			/* in the order in which they are followed */
	HTAB	   *found;			/* the same, to be looked up */
	int			rows_left;		/* so many rows more may be read */
	bool		without_privileges; /* follows those that are not inherited,
									 * too */
} Membership;

static void
add_role(Membership *membership, Oid role)
{
	bool		is_known;

	(void) hash_search(membership->found, &role, HASH_ENTER, &is_known);
	if (!is_known)
		membership->roles = lappend_oid(membership->roles, role);
}

/*
 * The next row that has this value.  All that are read count, and a scan for as many:
 * as long as a process has not read the descriptions of the indexes, it passes over the
 * whole catalog.
 */
static SysScanDesc
begin_scan(Membership *membership, Relation catalog, Oid index, AttrNumber attribute, Oid value)
{
	membership->rows_left -= ROWS_A_SCAN;
	if (criticalSharedRelcachesBuilt)
		return baton_shared_scan(catalog, index, attribute, F_OIDEQ, ObjectIdGetDatum(value));
	return systable_beginscan(catalog, InvalidOid, false, NULL, 0, NULL);
}

static HeapTuple
next_row(Membership *membership, SysScanDesc scan)
{
	return --membership->rows_left > 0 ? systable_getnext(scan) : NULL;
}

/* Does it use the privileges of the roles it is a member of? */
static bool
inherits(Membership *membership, Relation authid, Oid role)
{
	SysScanDesc scan;
	HeapTuple	row;
	bool		result = false;

	scan = begin_scan(membership, authid, AuthIdOidIndexId, Anum_pg_authid_oid, role);
	while (HeapTupleIsValid(row = next_row(membership, scan)))
	{
		Form_pg_authid form = (Form_pg_authid) GETSTRUCT(row);

		if (form->oid != role)
			continue;
		result = form->rolinherit;
		break;
	}
	systable_endscan(scan);
	return result;
}

/* The roles that it is directly a member of. */
static void
add_memberships(Membership *membership, Relation members, Oid role, bool role_inherits)
{
	SysScanDesc scan;
	HeapTuple	row;

	scan = begin_scan(membership, members, AuthMemMemRoleIndexId,
					  Anum_pg_auth_members_member, role);
	while (HeapTupleIsValid(row = next_row(membership, scan)))
	{
		Form_pg_auth_members form = (Form_pg_auth_members) GETSTRUCT(row);

		if (form->member != role)
			continue;
		if (membership->without_privileges || baton_membership_inherits(form, role_inherits))
			add_role(membership, form->roleid);
	}
	systable_endscan(scan);
}

/*
 * All roles whose privileges it has, itself first; as roles_is_member_of in
 * acl.c.  A database's owner is a member of pg_database_owner there, but that
 * function knows it of a process's own database only.  False if not all were read.
 */
static bool
find_roles(Membership *membership, Oid role, Oid database_owner)
{
	Relation	members = table_open(AuthMemRelationId, AccessShareLock);
	Relation	authid = table_open(AuthIdRelationId, AccessShareLock);
	bool		role_decides = !membership->without_privileges && !baton_owner_is_member(false);
	ListCell   *cell;

	add_role(membership, role);
	/* the list grows meanwhile, as it does there */
	foreach(cell, membership->roles)
	{
		Oid			member = lfirst_oid(cell);
		bool		member_inherits = !role_decides || inherits(membership, authid, member);

		add_memberships(membership, members, member, member_inherits);
		if (member == database_owner && baton_owner_is_member(member_inherits))
			add_role(membership, ROLE_PG_DATABASE_OWNER);
		if (membership->rows_left <= 0)
			break;
	}
	table_close(authid, AccessShareLock);
	table_close(members, AccessShareLock);
	return membership->rows_left > 0;
}

/* Is one of these roles, or everybody, granted CONNECT? */
static bool
is_granted(const Acl *list, const Membership *membership)
{
	/* ACL_DAT, whose macro our warnings object to; there are no NULLs in it */
	const AclItem *items = (const AclItem *) ((const char *) list + ARR_OVERHEAD_NONULLS(1));

	for (int i = 0; i < ACL_NUM(list); i++)
	{
		const AclItem *item = &items[i];

		if ((item->ai_privs & ACL_CONNECT) == 0)
			continue;
		if (item->ai_grantee == ACL_ID_PUBLIC)
			return true;
		if (membership != NULL &&
			hash_search(membership->found, &item->ai_grantee, HASH_FIND, NULL) != NULL)
			return true;
	}
	return false;
}

static void
begin(Membership *membership, int most_rows)
{
	HASHCTL		control = {.keysize = sizeof(Oid),.entrysize = sizeof(Oid),.hcxt = CurrentMemoryContext};

	membership->roles = NIL;
	membership->found = hash_create("pg_baton roles", 32, &control,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	membership->rows_left = most_rows;
	membership->without_privileges = false;
}

static void
end(Membership *membership)
{
	hash_destroy(membership->found);
	list_free(membership->roles);
}

static BatonPrivilege
privilege_by_roles(const Acl *list, Oid role, Oid database_owner, int most_rows)
{
	Membership	membership;
	BatonPrivilege result;
	bool		is_complete;

	begin(&membership, most_rows);
	is_complete = find_roles(&membership, role, database_owner);
	if (is_granted(list, &membership))
		result = BATON_PRIVILEGE_HELD;
	else
		result = is_complete ? BATON_PRIVILEGE_MISSING : BATON_PRIVILEGE_UNKNOWN;
	end(&membership);
	return result;
}

bool
baton_has_few_memberships(Oid role, int most_rows)
{
	Membership	membership;
	bool		is_complete;

	begin(&membership, most_rows);
	membership.without_privileges = true;
	is_complete = find_roles(&membership, role, InvalidOid);
	end(&membership);
	return is_complete;
}

BatonPrivilege
baton_connect_privilege(HeapTuple row, Oid role, int most_rows)
{
	Form_pg_database form = (Form_pg_database) GETSTRUCT(row);
	Relation	catalog;
	Datum		value;
	bool		is_null;
	Acl		   *list;
	BatonPrivilege result = BATON_PRIVILEGE_MISSING;

	if (HeapTupleHasExternal(row))
		return BATON_PRIVILEGE_UNKNOWN;

	catalog = table_open(DatabaseRelationId, AccessShareLock);
	value = heap_getattr(row, Anum_pg_database_datacl, RelationGetDescr(catalog), &is_null);
	list = is_null ? acldefault(OBJECT_DATABASE, form->datdba) : DatumGetAclPCopy(value);
	table_close(catalog, AccessShareLock);

	/* mostly everybody may, and nobody's memberships need be known */
	if (is_granted(list, NULL))
		result = BATON_PRIVILEGE_HELD;
	else if (OidIsValid(role))
		result = privilege_by_roles(list, role, form->datdba, most_rows);
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
