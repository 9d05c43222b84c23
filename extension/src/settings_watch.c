/*-------------------------------------------------------------------------
 *
 * settings_watch.c
 *		Noticing what a backend reads only when it starts.
 *
 * A backend reads pg_db_role_setting, and what its role may do, once, at its
 * start (process_settings() in postinit.c, InitializeSessionUserId() in
 * miscinit.c).  A client that connects after ALTER ROLE or ALTER DATABASE
 * expects the new state, so pooled backends from before must not serve it:
 * the transaction that commits such a change raises
 * control->settings_generation, in whatever process of the server it runs.
 * It is raised after the change has become visible (XACT_EVENT_COMMIT comes
 * after ProcArrayEndTransaction() in CommitTransaction()); who reads the
 * generation before the catalog can therefore only look older than he is.
 *
 * The changes are seen by object_access_hook: AlterSetting() in
 * pg_db_role_setting.c calls it for ALTER ROLE and ALTER DATABASE, SET and
 * RESET; AlterRole(), RenameRole() and DropRole() in user.c for the role
 * itself (a role made anew under an old name is another one).  A savepoint
 * rolled back is not told apart: a generation too many costs a few new
 * backends, no more.
 *
 * A prepared transaction is committed by whoever likes, possibly after a
 * restart, and no hook tells what it did.  So COMMIT PREPARED compares
 * pg_db_role_setting, which is small, before and after; what it did to the
 * roles themselves is not noticed.
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
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "control.h"
#include "settings_watch.h"

/* Will this transaction's commit change what a starting backend reads? */
static bool change_pending = false;

static object_access_hook_type previous_object_access = NULL;

static void
raise_generation(void)
{
	if (BatonControlMemory != NULL)
		pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->settings_generation), 1);
}

static void
settings_object_access(ObjectAccessType access, Oid class, Oid object,
					   int sub, void *argument)
{
	if (previous_object_access)
		previous_object_access(access, class, object, sub, argument);

	if (access == OAT_POST_ALTER)
	{
		if (class == DbRoleSettingRelationId || class == AuthIdRelationId)
			change_pending = true;
	}
	else if (access == OAT_DROP)
	{
		if (class == AuthIdRelationId || class == DatabaseRelationId)
			change_pending = true;
	}
}

static void
settings_transaction(XactEvent event, void *argument)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			if (change_pending)
				raise_generation();
			change_pending = false;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			change_pending = false;
			break;
		default:
			break;
	}
}

/*
 * One number for what is in pg_db_role_setting: of each row, where it stands
 * and which transaction put it there, in any order.
 */
static uint64
settings_fingerprint(void)
{
	Relation	relation = table_open(DbRoleSettingRelationId, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	uint64		fingerprint = 0;

	scan = systable_beginscan(relation, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
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
		fingerprint += hash_bytes_extended((unsigned char *) &row, sizeof(row), 0);
	}
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
		change_pending = true;
}

void
baton_settings_watch_init(void)
{
	previous_object_access = object_access_hook;
	object_access_hook = settings_object_access;
	RegisterXactCallback(settings_transaction, NULL);
}
