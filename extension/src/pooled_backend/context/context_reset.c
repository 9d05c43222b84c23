/*-------------------------------------------------------------------------
 *
 * context_reset.c
 *		What RESET goes back to in a session: startup options and the settings
 *		of its role and database as they were when it logged in.
 *
 * Problem: RESET, and every parameter that the session has not SET, go back to
 * a value that belongs to the session: its startup options (source "client"),
 * and what ALTER ROLE/DATABASE SET said when it logged in (sources "global" to
 * "database user").  The backend that serves it was started for nobody in
 * particular and perhaps under other settings.
 *
 * Decision: at greeting, every reset value whose source is one of those, and
 * client_encoding's whatever its source, is put into the session's context as
 * a RESET item.  When a session is installed, an item that the backend has by
 * itself costs nothing; for one that differs the record's reset value is
 * exchanged and the backend's own is kept beside it ("other").  A setting of
 * role or database that the backend has and the session has not is replaced by
 * what there was before such settings ("plain").
 *
 * The value of a RESET entry: u8 source, u8 context with a mark if it was a
 * placeholder's, text; for the parameter role follow NUL, u32 role, u8
 * superuser.
 *
 * Configuration files: ProcessConfigFile() does not touch a reset value of a
 * higher source, so an exchanged parameter would lose a new value in the file.
 * Hence a reload puts the backend's own values back for its duration; one that
 * PostgresMain has done meanwhile (PgReloadTime tells, ProcessConfigFileInternal
 * in guc-file.l sets it) is done again in that way.
 *
 * How one parameter is exchanged is reset_item.c's; what the files say,
 * reset_plain.c's; what a session begins with, reset_greet.c's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "arena.h"
#include "context_guc.h"
#include "context_placeholders.h"
#include "context_reset.h"
#include "guc_value.h"
#include "pooled_state.h"
#include "reset_item.h"
#include "reset_plain.h"

static BatonPlacedResets *const placed = &BatonPlaced.resets;

/* ---- attach ----------------------------------------------------------- */

const char *
baton_reset_attach(void)
{
	baton_reset_make_context();
	baton_files_seen();
	baton_placeholders_note_own(true);
	baton_plain_attach();
	return NULL;
}

/* ---- install ---------------------------------------------------------- */

static bool
same_as_last(const BatonEntryList *wanted)
{
	if (wanted->count != placed->count)
		return false;
	for (int i = 0; i < placed->count; i++)
	{
		if (placed->serials[i] != wanted->entries[i].serial)
			return false;
	}
	return true;
}

static void
remember_last(const BatonEntryList *wanted)
{
	if (wanted->count > placed->size)
	{
		if (placed->serials != NULL)
			pfree(placed->serials);
		placed->size = wanted->count + 16;
		placed->serials = MemoryContextAlloc(baton_reset_context,
											 placed->size * sizeof(*placed->serials));
	}
	placed->count = wanted->count;
	for (int i = 0; i < placed->count; i++)
		placed->serials[i] = wanted->entries[i].serial;
}

static bool
same_as_entry(const BatonResetItem *item, const BatonStored *entry)
{
	return entry->key_length == strlen(item->name) &&
		entry->value_length == item->value_length &&
		memcmp(entry->key, item->name, entry->key_length) == 0 &&
		memcmp(entry->value, item->value,
			   entry->value_length) == 0;
}

void
baton_reset_install(const BatonEntryList *wanted)
{
	dlist_mutable_iter iter;
	dlist_iter	search;
	bool	   *present;

	if (same_as_last(wanted))
		return;
	placed->count = -1;

	dlist_foreach(search, &placed->items)
		dlist_container(BatonResetItem, node, search.cur)->keep = false;
	present = palloc0(wanted->count + 1);
	for (int i = 0; i < wanted->count; i++)
	{
		const BatonStored *entry = &wanted->entries[i];

		dlist_foreach(search, &placed->items)
		{
			BatonResetItem *item = dlist_container(BatonResetItem, node,
												   search.cur);

			if (!item->keep && !item->plain &&
				(item->serial == entry->serial ||
				 (item->serial == 0 && same_as_entry(item, entry))))
			{
				item->serial = entry->serial;
				item->keep = present[i] = true;
				break;
			}
		}
	}

	dlist_foreach_modify(iter, &placed->items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (!item->keep)
		{
			baton_reset_item_undo(item);
			baton_reset_item_drop(item);
		}
	}
	for (int i = 0; i < wanted->count; i++)
	{
		const BatonStored *entry = &wanted->entries[i];
		BatonResetItem *item;

		if (present[i])
			continue;
		item = baton_reset_item_add(entry->key, entry->key_length,
									entry->value, entry->value_length);
		item->serial = entry->serial;
		item->refused = !baton_reset_item_try(item);
	}
	pfree(present);
	dlist_foreach(search, &placed->items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, search.cur);

		if (item->refused)
			baton_reset_item_apply(item);
		item->refused = false;
	}
	baton_plain_apply();
	if (placed->reload_again)
		baton_reset_reload();
	remember_last(wanted);
}

void
baton_reset_neutralise(void)
{
	dlist_mutable_iter iter;

	placed->count = -1;
	dlist_foreach_modify(iter, &placed->items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		baton_reset_item_undo(item);
		baton_reset_item_drop(item);
	}
	/* a reload that came to the items' values has not come to the backend's */
	if (placed->reload_again || baton_files_were_read())
		baton_reset_reload();
}

/* ---- reload ----------------------------------------------------------- */

void
baton_reset_reload(void)
{
	bool		plain = baton_plain_undo();
	dlist_iter	iter;

	baton_plain_read_files();
	/* what the backend had by itself may be something else now */
	dlist_foreach(iter, &placed->items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (!item->exchanged)
			baton_reset_item_apply(item);
	}
	if (plain)
		baton_plain_apply();
}

void
baton_reset_follow_reload(void)
{
	if (!baton_files_were_read())
		return;
	if (dlist_is_empty(&placed->items) && !baton_plain_any())
	{
		baton_files_seen();
		baton_guc_report_touched = true;
	}
	else
		baton_reset_reload();
}
