/*-------------------------------------------------------------------------
 *
 * catalog_watch.c
 *		Roles, databases and their settings: reading them without a database,
 *		and noticing their changes.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_ts_config.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "storage/sinval.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "catalog_watch.h"
#include "dispatcher_link.h"
#include "pg_process.h"

/* ----------------------------------------------------------------
 *		Roles and databases by name, for a process without a database.
 *
 * The launcher has no database, so it can use only the shared catalogs that
 * every process can read before it has a database: pg_authid,
 * pg_auth_members, pg_database (RelationCacheInitializePhase2 in relcache.c).
 * It cannot use their TOAST tables: reading one is FATAL ("cannot read
 * pg_class without having selected a database", ScanPgRelation), which no
 * PG_CATCH catches.  A catalog cache fetches toasted values as soon as it is
 * asked for a row (CatalogCacheCreateEntry in catcache.c), and any user can
 * cause such a long row: he may give himself a SCRAM verifier with a salt of
 * any length.  So rows are read by scans, as GetDatabaseTuple in postinit.c
 * does.  No cache is asked for a row before a scan has shown that the row is
 * readable, and no function is called that asks a cache by itself, as
 * has_privs_of_role() does (database_access.c has the replacement).
 */

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

/* Returns a copy of the row with this value of the attribute, or NULL. */
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
 * While these locks are held, another look at roles accepts no invalidations
 * (LockRelationOid() in lmgr.c, 15 to 18, accepts them only if it acquires a
 * lock that was not held).  As long as none are accepted, the catalog snapshot
 * stays the same (GetNonHistoricCatalogSnapshot() in snapmgr.c).  So a catalog
 * cache can read every row that a scan could read.  The indexes are those of
 * the caches AUTHNAME and AUTHMEMMEMROLE (syscache.c).
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

		/* a verifier must not remain in freed memory */
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
baton_first_login_superuser(void)
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

/* ----------------------------------------------------------------
 *		Noticing changes of what a backend reads only when it starts.
 *
 * A backend reads pg_db_role_setting once, at its start (process_settings()
 * in postinit.c).  A client that connects after ALTER ROLE SET or ALTER
 * DATABASE SET expects the new state.  So the transaction that commits such a
 * change, in any process of the server, raises the mark of the role and
 * database concerned, and then control->settings_generation, by which the
 * dispatcher notices the change.  Before a pooled backend greets a session
 * that began after the change, it reads the settings of its role again
 * (baton_become_look in identity.c); no other session is affected.  Marks
 * are raised after the change has become visible (XACT_EVENT_COMMIT comes
 * after ProcArrayEndTransaction() in CommitTransaction()).  A process that
 * reads a mark before it reads the catalog can therefore only appear older
 * than it is.
 *
 * object_access_hook sees the changes: AlterSetting() in pg_db_role_setting.c
 * calls it for ALTER ROLE and ALTER DATABASE, SET and RESET.  If the hook was
 * not called but the transaction has an invalidation message for the catalog,
 * a superuser has changed rows directly; that counts as a change for all
 * roles.  DROP ROLE and DROP DATABASE by other users delete the rows of the
 * dropped object, and affect no session.  Changes that a savepoint rolled
 * back are not told apart: an unnecessary mark costs a look at the next
 * login.  Other changes of a role or a database count at logins only, or make
 * it a different one: a pool is identified by OIDs and by whether the role is
 * a superuser (pools.rs).
 *
 * Any session may commit a prepared transaction, possibly after a restart,
 * and no hook tells what the transaction did.  So COMMIT PREPARED compares
 * the contents of pg_db_role_setting, which is small, before and after, mark
 * by mark.
 *
 * Changes of one role, however many a transaction makes, count as another
 * role's only if both share a mark.
 *
 * Creating or altering an event trigger is a change of its database, too: it
 * may be a login trigger, and then the greeting that earlier clients got must
 * not be reused for the next client (pg_process.h).
 *
 * On a standby the launcher compares the catalog instead (pool_settings.c).
 */

/* The marks of the settings that this transaction's commit changes. */
static bool changes[BATON_SETTINGS_MARKS];
static bool has_changes = false;

/*
 * The transaction has dropped a role or database, and its settings
 * (DropSetting).
 */
static bool has_dropped = false;

void
baton_role_settings_changed(Oid database, Oid role)
{
	uint32		mark = BATON_SETTINGS_MARK(database, role);

	if (BatonControlMemory == NULL)
		return;
	pg_atomic_fetch_add_u32(baton_atomic_u32(BatonControlMemory->settings_marks[mark]), 1);
	pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->settings_generation), 1);
}

static void
note_change(Oid database, Oid role)
{
	changes[BATON_SETTINGS_MARK(database, role)] = true;
	has_changes = true;
}

static void
forget_changes(void)
{
	if (has_changes)
		memset(changes, 0, sizeof(changes));
	has_changes = has_dropped = false;
}

static void
tell_settings_changes(void)
{
	if (!has_changes || BatonControlMemory == NULL)
		return;
	for (int mark = 0; mark < BATON_SETTINGS_MARKS; mark++)
	{
		if (changes[mark])
			pg_atomic_fetch_add_u32(baton_atomic_u32(BatonControlMemory->settings_marks[mark]), 1);
	}
	pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->settings_generation), 1);
}

void
baton_settings_object_access(ObjectAccessType access, Oid class, Oid object, void *argument)
{
	if (access == OAT_POST_ALTER && class == DbRoleSettingRelationId)
		note_change(object, ((ObjectAccessPostAlter *) argument)->auxiliary_id);
	else if ((access == OAT_POST_CREATE || access == OAT_POST_ALTER) &&
			 baton_may_be_login_trigger(class))
		note_change(MyDatabaseId, InvalidOid);
	else if (access == OAT_DROP && (class == AuthIdRelationId || class == DatabaseRelationId))
		has_dropped = true;
}

/*
 * Has this transaction changed pg_db_role_setting?  See
 * RelationInvalidatesSnapshotsOnly().
 */
static bool
catalog_changed(void)
{
	SharedInvalidationMessage *messages;
	bool		init_file;
	bool		found = false;
	int			count = xactGetCommittedInvalidationMessages(&messages, &init_file);

	for (int i = 0; i < count && !found; i++)
		found = messages[i].id == SHAREDINVALSNAPSHOT_ID &&
			messages[i].sn.relId == DbRoleSettingRelationId;
	if (messages != NULL)
		pfree(messages);
	return found;
}

/* Only a superuser can change rows directly. */
static bool
rows_changed(void)
{
	return !has_changes && catalog_changed() && (!has_dropped || superuser_arg(GetSessionUserId()));
}

void
baton_settings_transaction(XactEvent event)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (rows_changed())
				note_change(InvalidOid, InvalidOid);
			break;
		case XACT_EVENT_COMMIT:
			tell_settings_changes();
			forget_changes();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			forget_changes();
			break;
		default:
			break;
	}
}

uint64
baton_settings_row_hash(HeapTuple tuple)
{
	struct
	{
		ItemPointerData place;
		uint16		padding;
		TransactionId inserted;
	}			row;

	memset(&row, 0, sizeof(row));
	row.place = tuple->t_self;
	row.inserted = HeapTupleHeaderGetRawXmin(tuple->t_data);
	return hash_bytes_extended((unsigned char *) &row, sizeof(row), 0);
}

/*
 * For each mark a hash of its rows in pg_db_role_setting, independent of their
 * order.
 */
static uint64 *
settings_fingerprints(void)
{
	Relation	relation = table_open(DbRoleSettingRelationId, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	uint64	   *fingerprints = palloc0(BATON_SETTINGS_MARKS * sizeof(uint64));

	scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_db_role_setting row = (Form_pg_db_role_setting) GETSTRUCT(tuple);

		fingerprints[BATON_SETTINGS_MARK(row->setdatabase, row->setrole)] +=
			baton_settings_row_hash(tuple);
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return fingerprints;
}

void
baton_settings_utility_begins(BatonUtility *utility)
{
	/*
	 * inside a transaction block, which may be aborted, the statement is
	 * refused
	 */
	if (IsA(utility->statement, TransactionStmt) &&
		((const TransactionStmt *) utility->statement)->kind == TRANS_STMT_COMMIT_PREPARED &&
		utility->top_level && !IsTransactionBlock())
		utility->settings_before = settings_fingerprints();
}

void
baton_settings_utility_done(const BatonUtility *utility)
{
	uint64	   *after;

	if (utility->settings_before == NULL)
		return;

	/* no invalidation message comes for a catalog without a cache */
	InvalidateCatalogSnapshot();
	after = settings_fingerprints();
	for (int mark = 0; mark < BATON_SETTINGS_MARKS; mark++)
	{
		if (after[mark] == utility->settings_before[mark])
			continue;
		changes[mark] = true;
		has_changes = true;
	}
	pfree(after);
}

/* ----------------------------------------------------------------
 *		Noticing changes of what a login depends on.
 *
 * The dispatcher keeps the launcher's answers (login.c) and reuses them as
 * long as control->login_generation has the value that it had before the
 * dispatcher asked.  So that number must be raised
 * - by the process that commits a change of pg_authid, pg_auth_members,
 *   pg_database or pg_parameter_acl, in any process of the server, and
 * - by the launcher, after it has read its configuration files again.
 *
 * The process that raises it also writes what has changed into
 * control->login_changes, and raises it once for each entry: a role that
 * changes its own password, or creates roles, in a loop must not discard the
 * answers kept for all other roles.
 * - A changed row of pg_authid affects the answers for that role's name.
 *   What other roles may do depends on their memberships in it and on its
 *   name, not on its attributes.  Up to 15 rolinherit is an exception, see
 *   login.c.
 * - A changed row of pg_auth_members affects all answers that depend on
 *   memberships.  Few do, and finding out which roles are indirect members of
 *   which is costly.  A rename affects these answers, too, because lines of
 *   pg_hba.conf name groups.  So does a commit that changes several roles, in
 *   which one role may have taken the name of another.
 * - A changed row of pg_database affects the answers for that database.
 *
 * Likewise the greeting of a client follows from what names in settings and
 * startup options mean (session_start.c): names of text search
 * configurations, of the schemas that they are looked up in, of tablespaces
 * and access methods.  The process that commits a change of those raises
 * control->names_generation.  It is a separate number because schemas come
 * and go (those of temporary tables, too), which should not discard the
 * launcher's answers.
 *
 * A client that asks after the raise must get the new answer from the
 * launcher.  Its catalog caches are as new as the invalidation messages it
 * has received.  XACT_EVENT_COMMIT is too early for the raise:
 * CommitTransaction() in xact.c sends the messages after it, in
 * AtEOXact_Inval().  The resource owner's release after locks comes later
 * still, and before the client gets its reply.  The launcher receives the
 * messages when it starts the transaction in which it answers
 * (AtStart_Cache()).
 *
 * What has changed is read from the messages themselves, before the commit
 * (xactGetCommittedInvalidationMessages() in inval.c), which costs nothing in
 * a transaction that changed no catalog.  Callbacks for changed caches would
 * not suffice: a transaction's last command need not have run its own.
 *
 * The messages of a prepared transaction are sent by the session that commits
 * it, before COMMIT PREPARED ends (FinishPreparedTransaction() in
 * twophase.c).  Their contents are not visible, so each COMMIT PREPARED
 * raises both numbers.
 *
 * On a standby no process raises them; there launcher and backends do not
 * allow answers that depend on them to be kept.
 */

/*
 * A commit that changes more rows of a catalog than this invalidates all
 * answers.
 */
#define MOST_ROWS 32

/* The rows of one catalog cache that have messages. */
typedef struct Rows
{
	int			count;			/* above MOST_ROWS: hashes[] is incomplete */
	uint32		hashes[MOST_ROWS];
} Rows;

/* Changes of what a login depends on. */
typedef struct Changes
{
	bool		logins;			/* login_generation must be raised */
	bool		names;			/* names_generation must be raised */
	bool		others;			/* logins depend on a change that the members
								 * below do not describe */
	bool		memberships;
	Rows		role_names;
	Rows		role_oids;
	Rows		databases;
} Changes;

/* The changes of the transaction that is committing. */
static Changes change_pending = {0};

/* Changes that remain even if this transaction fails. */
static struct
{
	bool		logins;
	bool		names;
}			change_made = {0};

/*
 * Most transactions have no changes, and clearing the struct is costly
 * compared with the rest of their commit.
 */
static void
forget_pending(void)
{
	if (change_pending.logins || change_pending.names)
		memset(&change_pending, 0, sizeof(change_pending));
}

static void
logins_changed(uint64 kind, uint32 hash)
{
	uint64		generation;

	if (BatonControlMemory == NULL)
		return;
	generation = pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->login_generation), 1) + 1;
	pg_atomic_write_u64(baton_atomic_u64(BatonControlMemory->login_changes[generation % BATON_LOGIN_CHANGES]),
						kind << 61 | (generation & 0x1FFFFFFF) << 32 | hash);
}

void
baton_login_changed(void)
{
	logins_changed(BATON_LOGIN_CHANGE_ALL, 0);
}

void
baton_login_rules_changed(void)
{
	logins_changed(BATON_LOGIN_CHANGE_RULES, 0);
}

static void
tell_rows(uint64 kind, const Rows *rows)
{
	for (int i = 0; i < rows->count; i++)
		logins_changed(kind, rows->hashes[i]);
}

static void
tell_login_changes(const Changes *changes)
{
	const Rows *names = &changes->role_names;
	const Rows *databases = &changes->databases;

	/* each changed row of pg_authid has messages of both caches */
	if (changes->others || names->count > MOST_ROWS || databases->count > MOST_ROWS ||
		(names->count == 0) != (changes->role_oids.count == 0))
	{
		baton_login_changed();
		return;
	}
	tell_rows(BATON_LOGIN_CHANGE_ROLE, names);
	tell_rows(BATON_LOGIN_CHANGE_DATABASE, databases);
	if (changes->memberships || names->count > 1)
		logins_changed(BATON_LOGIN_CHANGE_MEMBERSHIPS, 0);
}

static void
names_changed(void)
{
	if (BatonControlMemory != NULL)
		pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->names_generation), 1);
}

static void
add_row(Rows *rows, uint32 hash)
{
	if (rows->count > MOST_ROWS)
		return;
	for (int i = 0; i < rows->count; i++)
		if (rows->hashes[i] == hash)
			return;
	if (rows->count < MOST_ROWS)
		rows->hashes[rows->count] = hash;
	rows->count++;
}

static void
look_at_catalog(Oid catalog, Changes *changes)
{
	switch (catalog)
	{
		case AuthIdRelationId:
		case AuthMemRelationId:
		case DatabaseRelationId:
			changes->logins = changes->others = true;
			break;
		case TSConfigRelationId:
		case NamespaceRelationId:
		case TableSpaceRelationId:
		case AccessMethodRelationId:
			changes->names = true;
			break;
		default:
			break;
	}
}

static void
look_at(const SharedInvalidationMessage *message, Changes *changes)
{
	switch (message->id)
	{
		case AUTHNAME:
			changes->logins = true;
			add_row(&changes->role_names, message->cc.hashValue);
			break;
		case AUTHOID:
			changes->logins = true;
			add_row(&changes->role_oids, message->cc.hashValue);
			break;
		case DATABASEOID:
			changes->logins = true;
			add_row(&changes->databases, message->cc.hashValue);
			break;
		case AUTHMEMMEMROLE:
		case AUTHMEMROLEMEM:
			changes->logins = changes->memberships = true;
			break;
		case PARAMETERACLNAME:
		case PARAMETERACLOID:
			changes->logins = changes->others = true;
			break;
		case TSCONFIGNAMENSP:
		case TSCONFIGOID:
		case NAMESPACENAME:
		case NAMESPACEOID:
		case TABLESPACEOID:
		case AMNAME:
		case AMOID:
			changes->names = true;
			break;
		case SHAREDINVALCATALOG_ID:
			look_at_catalog(message->cat.catId, changes);
			break;
		default:
			break;
	}
}

static void
look_at_transaction(Changes *found)
{
	SharedInvalidationMessage *messages;
	bool		init_file;
	int			count = xactGetCommittedInvalidationMessages(&messages, &init_file);

	for (int i = 0; i < count && !(found->others && found->names); i++)
		look_at(&messages[i], found);
	if (messages != NULL)
		pfree(messages);
}

void
baton_login_transaction(XactEvent event)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			forget_pending();
			look_at_transaction(&change_pending);
			break;
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			forget_pending();
			break;
		default:
			break;
	}
}

/*
 * Called for the resource owners below the transaction's, too.  The first call
 * with is_top raises.
 */
void
baton_login_release(ResourceReleasePhase phase, bool is_commit, bool is_top)
{
	if (!is_top || phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	if (change_made.logins)
		baton_login_changed();
	else if (change_pending.logins && is_commit)
		tell_login_changes(&change_pending);
	if (change_made.names || (change_pending.names && is_commit))
		names_changed();
	forget_pending();
	change_made.logins = change_made.names = false;
}

void
baton_login_utility_begins(BatonUtility *utility)
{
	/*
	 * COMMIT PREPARED may fail after it has committed.  So may DROP DATABASE,
	 * which marks the database in place (dropdb()).
	 */
	if (IsA(utility->statement, DropdbStmt))
		change_made.logins = true;
	else if (IsA(utility->statement, TransactionStmt) &&
			 ((const TransactionStmt *) utility->statement)->kind == TRANS_STMT_COMMIT_PREPARED)
		change_made.logins = change_made.names = true;
}
