/*-------------------------------------------------------------------------
 *
 * settings_standby.c
 *		Noticing on a standby what a backend reads only when it starts.
 *
 * Problem: what settings_watch.c sees in the transaction that changes roles
 * or their settings happens on the primary.  Here the startup process replays
 * it, in which nothing of ours runs, and backends from before would go on to
 * serve new clients.
 *
 * Decision: on a standby the launcher is asked about each client that logs in
 * (login.c lets nothing be kept there), and looks before it answers.
 * pg_db_role_setting has no cache, and the launcher, which is connected to no
 * database, cannot open it: its relcache entry would have to be made from
 * pg_class.  But where it is stored is known without that, for it is a mapped
 * relation (relmapper.c).  So its pages are read directly, and the rows that a
 * new backend would see are compared with the last time's.
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
#include "access/xlog.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_tablespace.h"
#include "common/hashfn.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "majors.h"
#include "settings_standby.h"
#include "settings_watch.h"

/* Was this a standby when we last looked?  The look after still counts. */
static bool was_standby = false;

static uint64 last_fingerprint = 0;

static uint64
page_fingerprint(Buffer buffer, Snapshot snapshot)
{
	Page		page = BufferGetPage(buffer);
	uint64		fingerprint = 0;

	for (OffsetNumber i = FirstOffsetNumber; i <= PageGetMaxOffsetNumber(page); i++)
	{
		ItemId		item = PageGetItemId(page, i);
		HeapTupleData tuple;
		struct
		{
			ItemPointerData place;
			uint16		padding;
			TransactionId inserted;
		}			row;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = DbRoleSettingRelationId;
		ItemPointerSet(&tuple.t_self, BufferGetBlockNumber(buffer), i);
		if (!HeapTupleSatisfiesVisibility(&tuple, snapshot, buffer))
			continue;

		memset(&row, 0, sizeof(row));
		row.place = tuple.t_self;
		row.inserted = HeapTupleHeaderGetRawXmin(tuple.t_data);
		fingerprint += hash_bytes_extended((unsigned char *) &row, sizeof(row), 0);
	}
	return fingerprint;
}

/* One number for the rows of pg_db_role_setting, as settings_watch.c makes it. */
static uint64
settings_fingerprint(void)
{
	Snapshot	snapshot;
	BlockNumber blocks;
	uint64		fingerprint = 0;

	/* against truncation; receives invalidations of the map, too */
	LockRelationOid(DbRoleSettingRelationId, AccessShareLock);
	blocks = baton_shared_catalog_size(DbRoleSettingRelationId);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (BlockNumber i = 0; i < blocks; i++)
	{
		Buffer		buffer = baton_shared_catalog_read(DbRoleSettingRelationId, i);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		fingerprint += page_fingerprint(buffer, snapshot);
		UnlockReleaseBuffer(buffer);
	}
	UnregisterSnapshot(snapshot);
	UnlockRelationOid(DbRoleSettingRelationId, AccessShareLock);
	return fingerprint;
}

void
baton_settings_standby_look(void)
{
	bool		is_standby = RecoveryInProgress();
	uint64		fingerprint;

	if (!is_standby && !was_standby)
		return;
	fingerprint = settings_fingerprint();
	if (fingerprint != last_fingerprint || is_standby != was_standby)
		baton_role_settings_changed(InvalidOid, InvalidOid);
	last_fingerprint = fingerprint;
	was_standby = is_standby;
}
