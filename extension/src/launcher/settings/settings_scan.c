/*-------------------------------------------------------------------------
 *
 * settings_scan.c
 *		The rows of pg_db_role_setting, for a process without a database.
 *
 * The catalog has no cache, and the launcher, which is connected to no
 * database, cannot open it: its relcache entry would have to be made from
 * pg_class.  But where it is stored is known without that, for it is a mapped
 * relation (relmapper.c).  So its pages are read directly.
 *
 * The table is small: a row for each role and database that has settings.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "catalog/pg_db_role_setting.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "majors.h"
#include "settings_scan.h"

static void
scan_page(Buffer buffer, Snapshot snapshot,
		  void (*visit) (HeapTuple row, void *argument), void *argument)
{
	Page		page = BufferGetPage(buffer);

	for (OffsetNumber i = FirstOffsetNumber; i <= PageGetMaxOffsetNumber(page); i++)
	{
		ItemId		item = PageGetItemId(page, i);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = DbRoleSettingRelationId;
		ItemPointerSet(&tuple.t_self, BufferGetBlockNumber(buffer), i);
		if (HeapTupleSatisfiesVisibility(&tuple, snapshot, buffer))
			visit(&tuple, argument);
	}
}

void
baton_settings_scan(void (*visit) (HeapTuple row, void *argument), void *argument)
{
	Snapshot	snapshot;
	BlockNumber blocks;

	/* against truncation; receives invalidations of the map, too */
	LockRelationOid(DbRoleSettingRelationId, AccessShareLock);
	blocks = baton_shared_catalog_size(DbRoleSettingRelationId);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (BlockNumber i = 0; i < blocks; i++)
	{
		Buffer		buffer = baton_shared_catalog_read(DbRoleSettingRelationId, i);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		scan_page(buffer, snapshot, visit, argument);
		UnlockReleaseBuffer(buffer);
	}
	UnregisterSnapshot(snapshot);
	UnlockRelationOid(DbRoleSettingRelationId, AccessShareLock);
}
