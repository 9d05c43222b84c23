/*-------------------------------------------------------------------------
 *
 * settings_watch.c
 *		Noticing what a backend reads only when it starts.
 *
 * A backend reads pg_db_role_setting once, at its start (process_settings()
 * in postinit.c).  A client that connects after ALTER ROLE or ALTER DATABASE
 * SET expects the new state, so pooled backends from before must not serve it:
 * the transaction that commits such a change raises the mark of the role and
 * the database that it is about, so that nobody else's backends need be
 * replaced, and then control->settings_generation, in whatever process of the
 * server it runs.
 * It is raised after the change has become visible (XACT_EVENT_COMMIT comes
 * after ProcArrayEndTransaction() in CommitTransaction()); who reads the
 * generation before the catalog can therefore only look older than he is.
 *
 * The changes are seen by object_access_hook: AlterSetting() in
 * pg_db_role_setting.c calls it for ALTER ROLE and ALTER DATABASE, SET and
 * RESET.  If nothing called it, but the transaction has an invalidation message
 * for the catalog, a superuser has changed rows himself, which is taken for a
 * change of everybody's.  A savepoint rolled back is not told apart: a
 * generation too many costs a few new backends, no more.  What else changes of
 * a role or a database counts at logins only (login_watch.c), or makes it
 * another one: a pool is one of OIDs, and of a superuser or not (pool.rs).
 *
 * A prepared transaction is committed by whoever likes, possibly after a
 * restart, and no hook tells what it did.  So COMMIT PREPARED compares
 * pg_db_role_setting, which is small, before and after.
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

/* What this transaction's commit changes of what a starting backend reads. */
#define CHANGES_KEPT 16

typedef struct Change
{
	Oid			database;
	Oid			role;
} Change;

static Change changes[CHANGES_KEPT];
static int	change_count = 0;

void
baton_role_settings_changed(Oid database, Oid role)
{
	uint32		mark = BATON_SETTINGS_MARK(database, role);

	if (BatonControlMemory == NULL)
		return;
	pg_atomic_fetch_add_u32(baton_atomic_u32(BatonControlMemory->settings_marks[mark]), 1);
	pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->settings_generation), 1);
}

/* More than can be kept count as a change of everybody's. */
static void
note_change(Oid database, Oid role)
{
	for (int i = 0; i < change_count; i++)
	{
		if (changes[i].database == database && changes[i].role == role)
			return;
	}
	if (change_count == CHANGES_KEPT)
	{
		change_count = 0;
		database = role = InvalidOid;
	}
	changes[change_count].database = database;
	changes[change_count].role = role;
	change_count++;
}

void
baton_settings_object_access(ObjectAccessType access, Oid class, Oid object, void *argument)
{
	if (access == OAT_POST_ALTER && class == DbRoleSettingRelationId)
		note_change(object, ((ObjectAccessPostAlter *) argument)->auxiliary_id);
	else if ((access == OAT_POST_CREATE || access == OAT_POST_ALTER) &&
			 baton_may_be_login_trigger(class))
		note_change(MyDatabaseId, InvalidOid);
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

void
baton_settings_transaction(XactEvent event)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (change_count == 0 && catalog_changed())
				note_change(InvalidOid, InvalidOid);
			break;
		case XACT_EVENT_COMMIT:
			for (int i = 0; i < change_count; i++)
				baton_role_settings_changed(changes[i].database, changes[i].role);
			change_count = 0;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			change_count = 0;
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

/* One number for what is in pg_db_role_setting, in any order. */
static uint64
settings_fingerprint(void)
{
	Relation	relation = table_open(DbRoleSettingRelationId, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	uint64		fingerprint = 0;

	scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		fingerprint += baton_settings_row_hash(tuple);
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return fingerprint;
}

void
baton_settings_utility_begins(BatonUtility *utility)
{
	/* inside a transaction block it will be refused, which may be aborted */
	if (IsA(utility->statement, TransactionStmt) &&
		((const TransactionStmt *) utility->statement)->kind == TRANS_STMT_COMMIT_PREPARED &&
		utility->top_level && !IsTransactionBlock())
	{
		utility->settings_before = settings_fingerprint();
		utility->compares_settings = true;
	}
}

void
baton_settings_utility_done(const BatonUtility *utility)
{
	if (!utility->compares_settings)
		return;

	/* no invalidation message comes for a catalog without a cache */
	InvalidateCatalogSnapshot();
	if (settings_fingerprint() != utility->settings_before)
		note_change(InvalidOid, InvalidOid);
}
