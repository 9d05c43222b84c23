/*-------------------------------------------------------------------------
 *
 * database_access.c
 *		A role's right to connect to a database, and a statement that needs a
 *		database without other sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_tablespace.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/resowner.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#include "catalog_watch.h"
#include "database_access.h"
#include "dispatcher_link.h"
#include "majors.h"
#include "pg_process.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		May a role connect to a database?
 *
 * The launcher must know, and cannot ask as a backend does: all checks of
 * privileges look roles up in a catalog cache (has_privs_of_role, through
 * has_rolinherit in acl.c), and a row that is partly in a TOAST table ends
 * the launcher (catalog_watch.c says why).  Any role can make its own row
 * that long, and grant itself to another role.  If the check were left out
 * for roles with such memberships, a role could bypass it.  So this code
 * follows the rule of pg_database_aclcheck() with scans alone, which read
 * only the inline attributes of a role.
 *
 * Two cases remain.  A list of privileges may itself be moved out of the
 * database's row; a backend can read it, and checks when it greets.  A role
 * may have very many memberships: a role with CREATEROLE can give itself any
 * number, and all other logins would wait while the launcher follows them.
 * There, too, the backend checks.
 */

/* The cost of a scan, in rows. */
#define ROWS_A_SCAN 50

/*
 * The roles that give a role their privileges, as far as they have been found.
 */
typedef struct Membership
{
	List	   *roles;			/* in the order in which they are followed */
	HTAB	   *found;			/* the same roles, for lookup */
	int			rows_left;		/* the number of rows that may still be read */
	bool		without_privileges; /* follow memberships without inheritance,
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
 * Scans for the rows with this value.  Each row read counts, and each scan
 * counts as ROWS_A_SCAN rows: until the process has read the descriptions of
 * the indexes, a scan passes over the whole catalog.
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

/* Does the role use the privileges of the roles it is a member of? */
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

/* Adds the roles that this role is directly a member of. */
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
 * Finds all roles that give the role their privileges, itself first, as
 * roles_is_member_of in acl.c does.  There, a database's owner is a member of
 * pg_database_owner, but that function knows the owner of the process's own
 * database only.  Returns false if not all rows were read.
 */
static bool
find_roles(Membership *membership, Oid role, Oid database_owner)
{
	Relation	members = table_open(AuthMemRelationId, AccessShareLock);
	Relation	authid = table_open(AuthIdRelationId, AccessShareLock);
	bool		role_decides = !membership->without_privileges && !baton_owner_is_member(false);
	ListCell   *cell;

	add_role(membership, role);
	/* the list grows during the loop, as it does in acl.c */
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

/* Is CONNECT granted to one of these roles, or to PUBLIC? */
static bool
is_granted(const Acl *list, const Membership *membership)
{
	/* the macro ACL_DAT causes compiler warnings; the array has no NULLs */
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
baton_role_privilege(Oid role, Oid other, int most_rows)
{
	Membership	membership;
	BatonPrivilege result;
	bool		is_complete;

	begin(&membership, most_rows);
	is_complete = find_roles(&membership, role, InvalidOid);
	if (hash_search(membership.found, &other, HASH_FIND, NULL) != NULL)
		result = BATON_PRIVILEGE_HELD;
	else
		result = is_complete ? BATON_PRIVILEGE_MISSING : BATON_PRIVILEGE_UNKNOWN;
	end(&membership);
	return result;
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

	/* mostly PUBLIC has the privilege, and memberships need not be read */
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

/* ----------------------------------------------------------------
 *		The pool leaves a database that a statement needs for itself.
 *
 * DROP DATABASE, ALTER DATABASE RENAME and SET TABLESPACE, and CREATE
 * DATABASE of its template, demand that no other session is connected
 * (CountOtherDBBackends, procarray.c).  The server counts processes: an idle
 * backend of the pool would count, and a session between two transactions
 * would not.  So this code asks the dispatcher before the statement runs.  If
 * the database has no session, the dispatcher makes its backends leave, and
 * the server itself waits for them.  If it has sessions, this code waits for
 * them as the server would, and then fails with the server's error.
 *
 * First it takes the lock on the database that the statement will take, so
 * that no session can connect through the server's own port meanwhile.  The
 * connection to the dispatcher stays open until that lock is released; as
 * long as it is open, the pool admits no session either (database_lock.rs).
 *
 * The dispatcher is asked only if the permissions and the other cheap
 * conditions are met.  If the dispatcher is absent or does not answer, the
 * statement goes on.
 */

/*
 * After this time without an answer of the dispatcher, the statement goes on.
 */
#define ANSWER_TIMEOUT_MS 2000

/* As in CountOtherDBBackends: 50 times 100 ms. */
#define LEAVE_TRIES 50
#define LEAVE_STEP_MS 100

/* The exclusive use of a database that a statement demands. */
typedef struct Demand
{
	const char *database;		/* NULL: none */
	LOCKMODE	lock;
	bool		is_template;	/* for CREATE DATABASE */
	bool		forced;
} Demand;

/*
 * Connections of this transaction to the dispatcher; each holds a database.
 */
static List *holds = NIL;

/* --------------------------------
 *		what the statement demands, and whether it is permitted
 */

static const char *
option_string(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

static bool
has_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		if (strcmp(lfirst_node(DefElem, cell)->defname, name) == 0)
			return true;
	}
	return false;
}

/*
 * As have_createdb_privilege() (dbcommands.c), which is not exported in the
 * older minor releases of 15.
 */
static bool
may_create_databases(void)
{
	HeapTuple	tuple;
	bool		may;

	if (superuser())
		return true;
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (!HeapTupleIsValid(tuple))
		return false;
	may = ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
	ReleaseSysCache(tuple);
	return may;
}

static Demand
demand_of(BatonUtility *utility)
{
	Demand		demand = {.lock = AccessExclusiveLock};
	const char *name;

	switch (nodeTag(utility->statement))
	{
		case T_DropdbStmt:
			{
				const DropdbStmt *drop = (const DropdbStmt *) utility->statement;

				demand.database = drop->dbname;
				demand.forced = has_option(drop->options, "force");
				break;
			}
		case T_RenameStmt:
			{
				const RenameStmt *rename = (const RenameStmt *) utility->statement;

				if (rename->renameType == OBJECT_DATABASE && may_create_databases() &&
					!OidIsValid(get_database_oid(rename->newname, true)))
					demand.database = rename->subname;
				return demand;
			}
		case T_AlterDatabaseStmt:
			{
				const AlterDatabaseStmt *alter = (const AlterDatabaseStmt *) utility->statement;

				name = option_string(alter->options, "tablespace");
				if (name != NULL)
				{
					Oid			tablespace = get_tablespace_oid(name, true);

					if (OidIsValid(tablespace) && tablespace != GLOBALTABLESPACE_OID &&
						baton_tablespace_aclcheck(tablespace, GetUserId(), ACL_CREATE) == ACLCHECK_OK)
						demand.database = alter->dbname;
				}
				break;
			}
		case T_CreatedbStmt:
			{
				const CreatedbStmt *create = (const CreatedbStmt *) utility->statement;

				if (may_create_databases() &&
					!OidIsValid(get_database_oid(create->dbname, true)))
				{
					name = option_string(create->options, "template");
					demand.database = name != NULL ? name : "template1";
					demand.lock = ShareLock;
					demand.is_template = true;
				}
				break;
			}
		default:
			return demand;
	}

	/*
	 * These statements cannot run in a transaction block, and check that
	 * first.
	 */
	if (IsInTransactionBlock(utility->top_level))
		demand.database = NULL;
	return demand;
}

/*
 * The database, if the statement is permitted; otherwise the statement itself
 * reports why not.
 */
static Oid
database_for(const Demand *demand, const Node *statement)
{
	Oid			database = get_database_oid(demand->database, true);
	HeapTuple	tuple;
	bool		may;

	if (!OidIsValid(database))
		return InvalidOid;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	may = baton_database_ownercheck(database, GetUserId()) ||
		(demand->is_template && ((Form_pg_database) GETSTRUCT(tuple))->datistemplate);
	if (!demand->is_template && database == MyDatabaseId)
		may = false;
	if (IsA(statement, DropdbStmt) && ((Form_pg_database) GETSTRUCT(tuple))->datistemplate)
		may = false;
	if (IsA(statement, AlterDatabaseStmt) &&
		get_tablespace_oid(option_string(((const AlterDatabaseStmt *) statement)->options,
										 "tablespace"), true) ==
		((Form_pg_database) GETSTRUCT(tuple))->dattablespace)
		may = false;			/* nothing to do */
	ReleaseSysCache(tuple);
	return may ? database : InvalidOid;
}

/* --------------------------------
 *		asking the dispatcher
 */

/*
 * Opens a connection to the dispatcher that lasts as long as the transaction.
 */
static int
open_hold(void)
{
	MemoryContext caller;
	int			fd;

	/* allocate first, so that storing the descriptor cannot fail */
	caller = MemoryContextSwitchTo(TopMemoryContext);
	holds = lappend_int(holds, -1);
	MemoryContextSwitchTo(caller);

	fd = baton_channel_connect();
	if (fd < 0)
		return -1;
	ReserveExternalFD();
	lfirst_int(list_tail(holds)) = fd;
	return fd;
}

void
baton_database_release(ResourceReleasePhase phase, bool is_top)
{
	ListCell   *cell;

	if (!is_top || phase != RESOURCE_RELEASE_AFTER_LOCKS || holds == NIL)
		return;
	foreach(cell, holds)
	{
		if (lfirst_int(cell) >= 0)
		{
			close(lfirst_int(cell));
			ReleaseExternalFD();
		}
	}
	list_free(holds);
	holds = NIL;
}

static void
pause_ms(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Returns the number of sessions, or -1 if the dispatcher does not answer.
 * With check_rights, raises an ERROR if the user may not terminate one of
 * them: the rules and the texts of TerminateOtherDBBackends() (procarray.c)
 * are those of pg_terminate_backend().
 */
static int
ask(int fd, Oid database, bool forced, bool check_rights)
{
	StringInfoData question;
	BatonIncoming incoming;
	bool		sent;
	int			sessions = 0;

	baton_question_init(&question, BATON_QUERY_LEAVE_DATABASE);
	baton_wire_u8(&question, forced);
	baton_wire_u32(&question, database);
	sent = baton_channel_send(fd, BATON_MSG_HELLO_QUERY, baton_session_held(),
							  question.data, question.len);
	pfree(question.data);
	if (!sent)
		return -1;

	for (;;)
	{
		BatonWireReader in;
		Oid			role;

		if (baton_answer_next(fd, ANSWER_TIMEOUT_MS, &incoming) != BATON_RECEIVED_FRAME)
			return -1;
		if (incoming.frame.kind == BATON_MSG_DONE)
			return sessions;
		if (incoming.frame.kind != BATON_MSG_ROW)
			return -1;
		in.at = incoming.payload;
		in.end = incoming.payload + incoming.frame.length;
		in.bad = false;
		role = baton_wire_read_u32(&in);
		sessions += (int) baton_wire_read_u32(&in);
		if (in.bad)
			return -1;
		if (check_rights)
			baton_check_may_terminate(role);
	}
}

/* The number of pooled backends in a database, without this one. */
static int
pooled_backends_in(Oid database)
{
	int			count = 0;

	for (uint32 i = 0; i < BatonControlMade.backend_slots; i++)
	{
		BatonBackendSlot *slot = baton_backend_slot(i);
		uint32		pid = slot->pid;
		PGPROC	   *proc;

		if (slot->state == BATON_BACKEND_FREE || pid == 0 || pid == (uint32) MyProcPid ||
			slot->dedicated_cause == BATON_CAUSE_DISPATCHER_GONE)
			continue;
		proc = BackendPidGetProc(pid);
		if (proc != NULL && proc->databaseId == database)
			count++;
	}
	return count;
}

/*
 * Raises the statement's own error, counting sessions in place of pooled
 * backends.
 */
static void
fail_busy(const Demand *demand, Oid database, int sessions)
{
	int			others = CountDBBackends(database) - pooled_backends_in(database);

	if (database == MyDatabaseId)
		others--;
	sessions += Max(others, 0);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 demand->is_template ?
			 errmsg("source database \"%s\" is being accessed by other users", demand->database) :
			 errmsg("database \"%s\" is being accessed by other users", demand->database),
			 errdetail_plural("There is %d other session using the database.",
							  "There are %d other sessions using the database.",
							  sessions, sessions)));
}

void
baton_database_utility_begins(BatonUtility *utility)
{
	Demand		demand = demand_of(utility);
	Oid			database;
	int			fd;
	int			sessions;

	if (likely(demand.database == NULL) || BatonControlMemory == NULL ||
		RecoveryInProgress() || XactReadOnly || !IsTransactionState())
		return;
	database = database_for(&demand, utility->statement);
	if (!OidIsValid(database))
		return;
	LockSharedObject(DatabaseRelationId, database, 0, demand.lock);
	if (database_for(&demand, utility->statement) != database)
		return;

	fd = open_hold();
	if (fd < 0)
		return;
	sessions = ask(fd, database, false, demand.forced);
	if (demand.forced && sessions > 0)
	{
		/*
		 * sessions in backends end with the backends, which the statement
		 * terminates
		 */
		(void) ask(fd, database, true, false);
		return;
	}

	for (int i = 0; sessions > 0 && i < LEAVE_TRIES; i++)
	{
		pause_ms(LEAVE_STEP_MS);
		sessions = ask(fd, database, false, false);
	}
	if (sessions > 0)
		fail_busy(&demand, database, sessions);

	/*
	 * WITH (FORCE) requires a right to terminate the processes that remain:
	 * wait until the pool's have gone.
	 */
	for (int i = 0; demand.forced && i < LEAVE_TRIES && pooled_backends_in(database) > 0; i++)
		pause_ms(LEAVE_STEP_MS / 10);
}
