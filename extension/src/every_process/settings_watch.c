/*-------------------------------------------------------------------------
 *
 * settings_watch.c
 *		Noticing what a backend reads only when it starts.
 *
 * A backend reads pg_db_role_setting once, at its start (process_settings()
 * in postinit.c).  A client that connects after ALTER ROLE or ALTER DATABASE
 * SET expects the new state.  So the transaction that commits such a change raises
 * the mark of the role and the database that it is about, and then
 * control->settings_generation, by which the dispatcher sees that there is one, in
 * whatever process of the server it runs.  A pooled backend that is to greet a
 * session which began after that reads the settings of its role again first
 * (baton_settings_suit in become.c); nobody else is concerned.
 * Marks are raised after the change has become visible (XACT_EVENT_COMMIT comes
 * after ProcArrayEndTransaction() in CommitTransaction()); who reads a
 * mark before the catalog can therefore only look older than he is.
 *
 * The changes are seen by object_access_hook: AlterSetting() in
 * pg_db_role_setting.c calls it for ALTER ROLE and ALTER DATABASE, SET and
 * RESET.  If nothing called it, but the transaction has an invalidation message
 * for the catalog, a superuser has changed rows himself, which is taken for a
 * change of everybody's; DROP ROLE and DROP DATABASE by others delete the rows of what
 * is gone, and concern nobody.  A savepoint rolled back is not told apart: a
 * mark too many costs a look at the next login, no more.  What else changes of
 * a role or a database counts at logins only (login_watch.c), or makes it
 * another one: a pool is one of OIDs, and of a superuser or not (pool.rs).
 *
 * A prepared transaction is committed by whoever likes, possibly after a
 * restart, and no hook tells what it did.  So COMMIT PREPARED compares
 * pg_db_role_setting, which is small, before and after, mark by mark.
 *
 * No role's changes, however many in a transaction, count as another's but by a mark
 * that they share.
 *
 * An event trigger that comes or changes is a change of its database, too: it
 * may be one on login, and what clients were greeted with before must not be
 * told to the next (login_trigger.h).
 *
 * On a standby the launcher looks instead (settings_standby.c).
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
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "common/hashfn.h"
#include "nodes/parsenodes.h"
#include "miscadmin.h"
#include "storage/sinval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "control.h"
#include "login_trigger.h"
#include "settings_watch.h"

/* What this transaction's commit changes of what a starting backend reads: by mark. */
static bool changes[BATON_SETTINGS_MARKS];
static bool has_changes = false;

/* It has dropped a role or database, and settings with it (DropSetting). */
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
tell_changes(void)
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

/* Has this transaction changed the catalog?  See RelationInvalidatesSnapshotsOnly(). */
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

/* Only a superuser changes rows himself. */
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
			tell_changes();
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

/* For each mark one number for what is in pg_db_role_setting, in any order. */
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
	/* inside a transaction block it will be refused, which may be aborted */
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
