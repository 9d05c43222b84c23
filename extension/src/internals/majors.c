/*-------------------------------------------------------------------------
 *
 * majors.c
 *		What PostgreSQL exports in different forms in its major versions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "catalog/pg_tablespace.h"
#include "common/string.h"
#include "libpq/auth.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "replication/slot.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/smgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"

#include "majors.h"

#if PG_VERSION_NUM >= 180000
#include "storage/waiteventset.h"
#endif

bool
baton_input_is_buffered(void)
{
#if PG_VERSION_NUM >= 170000
	return pq_buffer_remaining_data() > 0;
#else
	return pq_buffer_has_data();
#endif
}

uint32
baton_frontend_protocol(uint32 asked)
{
#if PG_VERSION_NUM >= 180000
	return Min(asked, PG_PROTOCOL_LATEST);
#else
	return asked;
#endif
}

char *
baton_clean_ascii(const char *text)
{
#if PG_VERSION_NUM >= 160000
	return pg_clean_ascii(text, 0);
#else
	char	   *copy = pstrdup(text);

	pg_clean_ascii(copy);
	return copy;
#endif
}

WaitEventSet *
baton_wait_set_create(int events)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, events);
#else
	return CreateWaitEventSet(TopMemoryContext, events);
#endif
}

/*
 * From 16 on some are reserved for members of pg_use_reserved_connections
 * besides those for superusers; the pool uses neither.
 */
int
baton_reserved_connections(void)
{
#if PG_VERSION_NUM >= 160000
	return SuperuserReservedConnections + ReservedConnections;
#else
	return ReservedBackends;
#endif
}

bool
baton_has_free_connections(int count)
{
#if PG_VERSION_NUM >= 160000
	int			free_ones;

	return count <= 0 || HaveNFreeProcs(count, &free_ones);
#else
	return HaveNFreeProcs(count);
#endif
}

/* InitPostgres() in postinit.c */
void
baton_connections_are_reserved(void)
{
#if PG_VERSION_NUM >= 160000
	ereport(FATAL,
			(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
			 errmsg("remaining connection slots are reserved for roles with the %s attribute",
					"SUPERUSER")));
#else
	ereport(FATAL,
			(errcode(ERRCODE_TOO_MANY_CONNECTIONS),
			 errmsg("remaining connection slots are reserved for non-replication superuser connections")));
#endif
}

bool
baton_authenticated_is_superuser(void)
{
#if PG_VERSION_NUM >= 160000
	return superuser_arg(GetAuthenticatedUserId());
#else
	return GetAuthenticatedUserIsSuperuser();
#endif
}

AclResult
baton_database_aclcheck(Oid database, Oid role, AclMode mode)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(DatabaseRelationId, database, role, mode);
#else
	return pg_database_aclcheck(database, role, mode);
#endif
}

bool
baton_database_ownercheck(Oid database, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, role);
#else
	return pg_database_ownercheck(database, role);
#endif
}

AclResult
baton_tablespace_aclcheck(Oid tablespace, Oid role, AclMode mode)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(TableSpaceRelationId, tablespace, role, mode);
#else
	return pg_tablespace_aclcheck(tablespace, role, mode);
#endif
}

bool
baton_membership_inherits(const FormData_pg_auth_members *membership, bool role_inherits)
{
#if PG_VERSION_NUM >= 160000
	return membership->inherit_option;
#else
	return role_inherits;
#endif
}

/* roles_is_member_of() in acl.c */
bool
baton_owner_is_member(bool role_inherits)
{
#if PG_VERSION_NUM >= 160000
	return true;
#else
	return role_inherits;
#endif
}

bool
baton_holds_shared_lock(void)
{
	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
#if PG_VERSION_NUM >= 160000
		if (!dlist_is_empty(&MyProc->myProcLocks[i]))
			return true;
#else
		if (MyProc->myProcLocks[i].next != &MyProc->myProcLocks[i])
			return true;
#endif
	}
	return false;
}

bool
baton_lock_is_held(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

void
baton_login_take_snapshot(void)
{
#if PG_VERSION_NUM < 180000
	(void) GetTransactionSnapshot();
#endif
}

void
baton_drop_temporary_slots(void)
{
#if PG_VERSION_NUM >= 170000
	ReplicationSlotCleanup(false);
#else
	ReplicationSlotCleanup();
#endif
}

/* The current file of the catalog: a mapped relation's number may change. */
#if PG_VERSION_NUM >= 160000

static RelFileLocator
shared_catalog_place(Oid catalog)
{
	RelFileLocator place = {.spcOid = GLOBALTABLESPACE_OID,.dbOid = InvalidOid};

	place.relNumber = RelationMapOidToFilenumber(catalog, true);
	return place;
}

#else

static RelFileNode
shared_catalog_place(Oid catalog)
{
	RelFileNode place = {.spcNode = GLOBALTABLESPACE_OID,.dbNode = InvalidOid};

	place.relNode = RelationMapOidToFilenode(catalog, true);
	return place;
}

#endif

BlockNumber
baton_shared_catalog_size(Oid catalog)
{
#if PG_VERSION_NUM >= 170000
	return smgrnblocks(smgropen(shared_catalog_place(catalog), INVALID_PROC_NUMBER), MAIN_FORKNUM);
#else
	return smgrnblocks(smgropen(shared_catalog_place(catalog), InvalidBackendId), MAIN_FORKNUM);
#endif
}

Buffer
baton_shared_catalog_read(Oid catalog, BlockNumber block)
{
	return ReadBufferWithoutRelcache(shared_catalog_place(catalog), MAIN_FORKNUM, block,
									 RBM_NORMAL, NULL, true);
}

bool
baton_user_namespaces(void)
{
#if PG_VERSION_NUM >= 170000
	return false;
#else
	return Db_user_namespace;
#endif
}

bool
baton_gss_delegates(void)
{
#if PG_VERSION_NUM >= 160000
	return pg_gss_accept_delegation;
#else
	return false;
#endif
}

/* check_role() in variable.c uses it in a parallel worker */
bool
baton_current_role_is_superuser(void)
{
#if PG_VERSION_NUM >= 170000
	return current_role_is_superuser;
#else
	return session_auth_is_superuser;
#endif
}

int
baton_attribute_stattarget(const FormData_pg_attribute *attribute)
{
#if PG_VERSION_NUM >= 170000
	return 0;
#else
	return attribute->attstattarget;
#endif
}

void
baton_attribute_set_stattarget(FormData_pg_attribute *attribute, int target)
{
#if PG_VERSION_NUM < 170000
	attribute->attstattarget = target;
#endif
}

void
baton_attribute_is_complete(TupleDesc description, int index)
{
#if PG_VERSION_NUM >= 180000
	populate_compact_attribute(description, index);
#else
	TupleDescAttr(description, index)->attcacheoff = -1;
#endif
}
