/*-------------------------------------------------------------------------
 *
 * reset_item.c
 *		One parameter whose reset value the session has otherwise than the
 *		backend: putting it in force, and taking it back.
 *
 * context_reset.c says why there are such, and decides which.
 *
 * Invariants: an item that is `exchanged` owns the backend's own value in
 * `other`.  All items are in BatonPlaced.resets and in baton_reset_context.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "context_placeholders.h"
#include "guc_memory.h"
#include "guc_value.h"
#include "param_records.h"
#include "pooled_state.h"
#include "reset_item.h"

MemoryContext baton_reset_context = NULL;

/* beside the context in an entry's value: it was a placeholder's */
#define PLACEHOLDER_MARK 0x80

void
baton_reset_make_context(void)
{
	if (baton_reset_context == NULL)
		baton_reset_context = AllocSetContextCreate(TopMemoryContext,
													"pg_baton reset values",
													ALLOCSET_DEFAULT_SIZES);
}

bool
baton_reset_is_setting(const struct config_generic *record)
{
	return record->reset_source >= PGC_S_GLOBAL && record->reset_source <= PGC_S_CLIENT &&
		record->context != PGC_INTERNAL && !baton_guc_is_of_process(record) &&
		strcmp(record->name, "pg_baton.attach") != 0;
}

bool
baton_reset_is_carried(const struct config_generic *record)
{
	return baton_reset_is_setting(record) || strcmp(record->name, "client_encoding") == 0;
}

/* ---- one item --------------------------------------------------------- */

BatonResetItem *
baton_reset_item_add(const char *name, Size name_length, const char *value,
					 Size value_length)
{
	MemoryContext old = MemoryContextSwitchTo(baton_reset_context);
	BatonResetItem *item = palloc0(sizeof(BatonResetItem));

	item->name = pnstrdup(name, name_length);
	/* with an end, for the text is read in place */
	item->value = palloc0(value_length + 1);
	memcpy(item->value, value, value_length);
	item->value_length = value_length;
	MemoryContextSwitchTo(old);
	dlist_push_tail(&BatonPlaced.resets.items, &item->node);
	return item;
}

void
baton_reset_item_drop(BatonResetItem *item)
{
	dlist_delete(&item->node);
	pfree(item->name);
	pfree(item->value);
	pfree(item);
}

BatonResetItem *
baton_reset_item_find(const char *name)
{
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.resets.items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (baton_guc_compare_names(item->name, name) == 0)
			return item;
	}
	return NULL;
}

/* The record's reset value, and its active one unless that is the session's. */
void
baton_reset_give(struct config_generic *record, const BatonGucCell *cell)
{
	if (record->source <= PGC_S_OVERRIDE)
		baton_guc_activate(record, cell);
	baton_guc_set_reset(record, cell);
}

/*
 * A placeholder without any value is there for the session that has it: as one
 * that its predecessor had, too, it may have stayed in place (choose(),
 * param_install.c), or the files are read again.
 */
void
baton_reset_hide_if_empty(struct config_generic *record)
{
	if ((record->flags & GUC_CUSTOM_PLACEHOLDER) &&
		record->reset_source == PGC_S_DEFAULT &&
		record->source == PGC_S_DEFAULT &&
		!baton_param_exists(record->name))
		baton_placeholder_hide(record);
}

/*
 * A placeholder that the backend has through a setting of role or database,
 * and the session has not, goes and comes as a whole.
 */
static void
exchange_absent(BatonResetItem *item)
{
	struct config_generic *record;

	if (!item->out)
	{
		BatonGucCell empty;

		record = baton_guc_find(item->name);
		if (record == NULL || !(record->flags & GUC_CUSTOM_PLACEHOLDER) ||
			!baton_guc_make_boot(record, &empty))
		{
			item->exchanged = false;
			return;
		}
		item->other = baton_guc_reset_cell(record);
		baton_reset_give(record, &empty);
		baton_reset_hide_if_empty(record);
		item->out = true;
		return;
	}

	record = baton_placeholder_create(item->name);
	item->out = false;
	if (record == NULL)
		return;
	if (record->flags & GUC_CUSTOM_PLACEHOLDER)
		baton_reset_give(record, &item->other);
	else
	{
		/* a library has come; see baton_reset_item_exchange() */
		BatonPlaced.resets.reload_again = true;
	}
}

/*
 * The record's reset value against item->other; the active value goes with it
 * unless the session has one of its own.
 */
void
baton_reset_item_exchange(BatonResetItem *item)
{
	struct config_generic *record;
	BatonGucCell current;

	if (item->absent)
	{
		exchange_absent(item);
		return;
	}
	record = baton_guc_find(item->name);
	if (record == NULL)
	{
		item->exchanged = false;
		return;
	}
	if (record != item->record)
	{
		/*
		 * A library was loaded and made a real variable of the placeholder
		 * (define_custom_variable in guc.c).  Then there is no value of the
		 * backend's own yet but the default, and the files have to be read.
		 */
		item->record = record;
		if (!baton_guc_make_boot(record, &item->other))
		{
			item->exchanged = false;
			return;
		}
		BatonPlaced.resets.reload_again = true;
	}

	current = baton_guc_reset_cell(record);
	baton_reset_give(record, &item->other);
	item->other = current;
}

bool
baton_reset_items_may_stay(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.resets.items)
	{
		const BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (strchr(item->name, GUC_QUALIFIER_SEPARATOR) != NULL)
			return false;
	}
	return true;
}

void
baton_reset_items_follow_role(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.resets.items)
	{
		const BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (item->exchanged)
			baton_guc_set_client_role(item->record, GetAuthenticatedUserId());
	}
}

void
baton_reset_items_exchange(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.resets.items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (item->exchanged)
			baton_reset_item_exchange(item);
	}
}

/* The backend's own value is in force again. */
void
baton_reset_item_undo(BatonResetItem *item)
{
	struct config_generic *record;

	if (!item->exchanged)
		return;
	baton_reset_item_exchange(item);
	item->exchanged = false;
	record = baton_guc_find(item->name);
	if (record == NULL || item->absent)
		return;
	baton_guc_release(record, &item->other.value);
	baton_reset_hide_if_empty(record);
}

void
baton_reset_item_keep(BatonResetItem *item)
{
	struct config_generic *record;

	if (!item->exchanged)
		return;
	item->exchanged = false;
	if (!item->absent)
	{
		record = baton_guc_find(item->name);
		if (record != NULL)
			baton_guc_release(record, &item->other.value);
		return;
	}
	/* the placeholder is out, and refers to neither */
	baton_guc_free(item->other.value.val.stringval);
	baton_guc_free(item->other.value.extra);
}

void
baton_reset_append_value(struct config_generic *record, const BatonGucCell *cell,
						 const BatonGucIdentity *identity, StringInfo value)
{
	appendStringInfoChar(value, (char) cell->source);
	appendStringInfoChar(value, (char) (cell->scontext |
										((record->flags & GUC_CUSTOM_PLACEHOLDER) ?
										 PLACEHOLDER_MARK : 0)));
	baton_guc_append_text(record, &cell->value, value);
	if (identity != NULL)
	{
		uint32		role = identity->role;

		appendStringInfoChar(value, '\0');
		appendBinaryStringInfo(value, (char *) &role, sizeof(role));
		appendStringInfoChar(value, identity->superuser ? 1 : 0);
	}
}

/* What is behind the text of a value, if anything. */
static bool
value_identity(const BatonResetItem *item, BatonGucIdentity *identity)
{
	const char *text = item->value + 2;
	Size		used = 2 + strlen(text) + 1;
	uint32		role;

	if (item->value_length != used + sizeof(role) + 1)
		return false;
	memcpy(&role, item->value + used, sizeof(role));
	identity->role = role;
	identity->superuser = item->value[used + sizeof(role)] != 0;
	return true;
}

/*
 * Does the backend have the item's value by itself?  Never a role's: the same
 * name may have been another's when either was told it.
 */
static bool
same_as_own(const BatonResetItem *item, struct config_generic *record)
{
	BatonGucIdentity identity;
	BatonGucCell own = baton_guc_reset_cell(record);
	StringInfoData text;
	bool		same;

	if (own.source != (GucSource) (uint8) item->value[0])
		return false;
	if (value_identity(item, &identity) && OidIsValid(identity.role))
		return false;
	initStringInfo(&text);
	baton_guc_append_text(record, &own.value, &text);
	same = strcmp(text.data, item->value + 2) == 0;
	pfree(text.data);
	return same;
}

bool
baton_reset_item_try(BatonResetItem *item)
{
	struct config_generic *record = baton_guc_find(item->name);
	BatonGucIdentity identity;
	BatonGucCell cell;

	if (item->value_length < 2)
		elog(ERROR, "stored reset value of parameter \"%s\" is too short",
			 item->name);
	if (record == NULL)
		record = baton_placeholder_create(item->name);
	if (record == NULL || same_as_own(item, record))
		return true;
	if (item->plain && item->value[0] == PGC_S_DEFAULT &&
		(record->flags & GUC_CUSTOM_PLACEHOLDER))
	{
		item->absent = item->exchanged = true;
		baton_reset_item_exchange(item);
		return true;
	}

	memset(&cell, 0, sizeof(cell));
	if (item->plain && item->value[0] == PGC_S_DEFAULT)
	{
		/* of a placeholder's in whose place a library's has come, too */
		if (!baton_guc_make_boot(record, &cell))
			return false;
		item->record = record;
		item->other = cell;
		item->exchanged = true;
		baton_reset_item_exchange(item);
		return true;
	}
	cell.source = (uint8) item->value[0];
	cell.scontext = (uint8) item->value[1] & ~PLACEHOLDER_MARK;
	cell.srole = cell.source == PGC_S_CLIENT ?
		GetAuthenticatedUserId() : BOOTSTRAP_SUPERUSERID;
	if (record->reset_source > PGC_S_CLIENT)
		return true;			/* session_authorization: never overridden */
	if (((uint8) item->value[1] & PLACEHOLDER_MARK) &&
		!(record->flags & GUC_CUSTOM_PLACEHOLDER) &&
		!baton_guc_placeholder_fits(item->name, item->value + 2, cell.scontext,
									cell.source, cell.srole))
		return true;			/* loading the library would have dropped it */
	if (!baton_guc_make(record, item->value + 2, cell.source,
						value_identity(item, &identity) ? &identity : NULL,
						&cell.value))
	{
		/* a placeholder's value that the library loaded here refuses, too */
		return strchr(item->name, GUC_QUALIFIER_SEPARATOR) != NULL;
	}
	item->record = record;
	item->other = cell;
	item->exchanged = true;
	baton_reset_item_exchange(item);
	return true;
}

void
baton_reset_item_apply(BatonResetItem *item)
{
	if (!baton_reset_item_try(item))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not restore the reset value of parameter \"%s\" of the session",
						item->name)));
}
