/*-------------------------------------------------------------------------
 *
 * shared_toast.c
 *		A toasted value of a shared catalog, for a process without a database.
 *
 * toast_fetch_datum() (detoast.c) opens the TOAST table, whose relcache entry is
 * made from pg_class: FATAL in the launcher.  But the TOAST tables of shared
 * catalogs and their indexes are mapped relations as the catalogs are
 * (relmapper.c), and so their pages can be read.  The index is descended by hand, as
 * _bt_search() (nbtsearch.c) does, or a role that fills the TOAST table would slow
 * down all logins.
 *
 * What this relies on, in 15 to 18: the layout of nbtree's pages and pivot tuples
 * (nbtree.h, version 4, that of all indexes initdb makes); that a TOAST index is on
 * (chunk_id oid, chunk_seq int4), neither of them NULL; that the chunks of a value
 * have chunk_seq 0, 1, ... and TOAST_MAX_CHUNK_SIZE bytes but for the last
 * (toast_save_datum() in toast_internals.c); and that a page is not recycled while a
 * snapshot is as old as the scan (nbtree/README).  What is not so is no value.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/nbtree.h"
#include "access/toast_internals.h"
#include "access/tupdesc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "majors.h"
#include "shared_toast.h"

/* chunk_id, chunk_seq, chunk_data */
#define CHUNK_COLUMNS 3

/* A value under way. */
typedef struct Fetch
{
	Oid			toast;
	Oid			value;
	TupleDesc	description;
	char	   *data;
	uint32		size;
	uint32		found;			/* bytes */
} Fetch;

static Buffer
read_page(Oid relation, BlockNumber block)
{
	Buffer		buffer = baton_shared_catalog_read(relation, block);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	return buffer;
}

/* chunk_id of an index tuple. */
static Oid
key_at(Page page, OffsetNumber offset)
{
	IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, offset));

	return *(Oid *) ((char *) tuple + IndexInfoFindDataOffset(tuple->t_info));
}

/* All of it is before this value. */
static bool
is_left_of(Page page, Oid value)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);

	return P_IGNORE(opaque) || (!P_RIGHTMOST(opaque) && key_at(page, P_HIKEY) < value);
}

/* The child with what is first of the value; the first item is less than all. */
static BlockNumber
child_for(Page page, Oid value)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	OffsetNumber child = P_FIRSTDATAKEY(BTPageGetOpaque(page));

	while (child < last && key_at(page, OffsetNumberNext(child)) < value)
		child = OffsetNumberNext(child);
	return BTreeTupleGetDownLink((IndexTuple) PageGetItem(page, PageGetItemId(page, child)));
}

/* A chunk is put where it belongs in the value. */
static void
add_chunk(Fetch *fetch, ItemPointer place)
{
	Buffer		buffer = read_page(fetch->toast, ItemPointerGetBlockNumber(place));
	Page		page = BufferGetPage(buffer);
	OffsetNumber offset = ItemPointerGetOffsetNumber(place);
	SnapshotData snapshot = {.snapshot_type = SNAPSHOT_TOAST};
	HeapTupleData tuple;
	ItemId		item;

	item = offset <= PageGetMaxOffsetNumber(page) ? PageGetItemId(page, offset) : NULL;
	if (item != NULL && ItemIdIsNormal(item))
	{
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = fetch->toast;
		tuple.t_self = *place;
		if (HeapTupleSatisfiesVisibility(&tuple, &snapshot, buffer))
		{
			bool		is_null[CHUNK_COLUMNS];
			Datum		values[CHUNK_COLUMNS];
			struct varlena *chunk;
			uint64		start;
			uint32		size;

			heap_deform_tuple(&tuple, fetch->description, values, is_null);
			chunk = (struct varlena *) DatumGetPointer(values[2]);
			start = (uint64) (uint32) DatumGetInt32(values[1]) * TOAST_MAX_CHUNK_SIZE;
			size = is_null[2] || VARATT_IS_EXTERNAL(chunk) ? 0 : VARSIZE_ANY_EXHDR(chunk);
			if (!is_null[0] && !is_null[1] && DatumGetInt32(values[0]) == (int32) fetch->value &&
				start + size <= fetch->size)
			{
				memcpy(fetch->data + start, VARDATA_ANY(chunk), size);
				fetch->found += size;
			}
		}
	}
	UnlockReleaseBuffer(buffer);
}

/* The chunks on a leaf; true if there may be more on the next. */
static bool
add_chunks(Fetch *fetch, Page page)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);

	for (OffsetNumber i = P_FIRSTDATAKEY(opaque); i <= PageGetMaxOffsetNumber(page); i++)
	{
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, PageGetItemId(page, i));
		Oid			key = key_at(page, i);

		if (key > fetch->value)
			return false;
		if (key < fetch->value)
			continue;
		for (int n = 0; n < (BTreeTupleIsPosting(tuple) ? BTreeTupleGetNPosting(tuple) : 1); n++)
			add_chunk(fetch, BTreeTupleIsPosting(tuple) ?
					  BTreeTupleGetPostingN(tuple, n) : &tuple->t_tid);
	}
	return !P_RIGHTMOST(opaque);
}

/* As _bt_getroot(); P_NONE: it is empty, or not as we know it. */
static BlockNumber
root_of(Oid index)
{
	Buffer		buffer = read_page(index, BTREE_METAPAGE);
	BTMetaPageData *meta = BTPageGetMeta(BufferGetPage(buffer));
	BlockNumber root = P_NONE;

	if (meta->btm_magic == BTREE_MAGIC && meta->btm_version == BTREE_VERSION)
		root = meta->btm_fastroot;
	UnlockReleaseBuffer(buffer);
	return root;
}

static void
fetch_chunks(Fetch *fetch, Oid index)
{
	BlockNumber next = root_of(index);

	while (next != P_NONE)
	{
		Buffer		buffer = read_page(index, next);
		Page		page = BufferGetPage(buffer);
		BTPageOpaque opaque = BTPageGetOpaque(page);

		if (is_left_of(page, fetch->value))
			next = opaque->btpo_next;
		else if (!P_ISLEAF(opaque))
			next = child_for(page, fetch->value);
		else
			next = add_chunks(fetch, page) ? opaque->btpo_next : P_NONE;
		UnlockReleaseBuffer(buffer);
		CHECK_FOR_INTERRUPTS();
	}
}

struct varlena *
baton_shared_toast_fetch(const struct varlena *external, Oid toast, Oid index)
{
	Fetch		fetch = {.toast = toast};
	struct varatt_external pointer;
	struct varlena *result;

	if (!VARATT_IS_EXTERNAL_ONDISK(external))
		return NULL;
	VARATT_EXTERNAL_GET_POINTER(pointer, external);
	fetch.value = pointer.va_valueid;
	fetch.size = VARATT_EXTERNAL_GET_EXTSIZE(pointer);
	result = palloc0(fetch.size + VARHDRSZ);
	/* VARATT_EXTERNAL_IS_COMPRESSED */
	if ((int32) fetch.size < pointer.va_rawsize - (int32) VARHDRSZ)
		SET_VARSIZE_COMPRESSED(result, fetch.size + VARHDRSZ);
	else
		SET_VARSIZE(result, fetch.size + VARHDRSZ);
	fetch.data = VARDATA(result);

	/* types of the same layout, which are among the built-in entries */
	fetch.description = CreateTemplateTupleDesc(CHUNK_COLUMNS);
	TupleDescInitBuiltinEntry(fetch.description, 1, "chunk_id", INT4OID, -1, 0);
	TupleDescInitBuiltinEntry(fetch.description, 2, "chunk_seq", INT4OID, -1, 0);
	TupleDescInitBuiltinEntry(fetch.description, 3, "chunk_data", TEXTOID, -1, 0);

	/* receives invalidations of the map, too */
	LockRelationOid(toast, AccessShareLock);
	LockRelationOid(index, AccessShareLock);
	fetch_chunks(&fetch, index);
	UnlockRelationOid(index, AccessShareLock);
	UnlockRelationOid(toast, AccessShareLock);
	FreeTupleDesc(fetch.description);
	if (fetch.found == fetch.size)
		return result;
	pfree(result);
	return NULL;
}
