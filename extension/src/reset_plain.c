/*-------------------------------------------------------------------------
 *
 * reset_plain.c
 *		What the configuration files say of parameters that the backend has a
 *		setting of role or database for.
 *
 * context_reset.c says what these "plain" values are for: a session that
 * logged in before ALTER ROLE or ALTER DATABASE gave the backend a setting
 * does not have it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "context_guc.h"
#include "context_placeholders.h"
#include "guc_value.h"
#include "reset_item.h"
#include "reset_plain.h"

/* Parameters the backend has a setting of role, database or client for. */
static char **own_settings = NULL;
static int	own_setting_count = 0;

/* For each of them what the files say: as in an entry.  NULL: not known. */
static StringInfoData *plain_values = NULL;

static TimestampTz reload_seen = 0;

void
baton_files_read_by_server(void)
{
	MemoryContext old = MemoryContextSwitchTo(baton_reset_context);

	ProcessConfigFile(PGC_SIGHUP);
	MemoryContextSwitchTo(old);
}

void
baton_files_read(void)
{
	baton_files_read_by_server();
	baton_placeholders_note_own(false);
	reload_seen = PgReloadTime;
	baton_reset_reload_again = false;
	baton_guc_report_touched = true;
}

void
baton_files_seen(void)
{
	reload_seen = PgReloadTime;
}

bool
baton_files_were_read(void)
{
	return PgReloadTime != reload_seen;
}

void
baton_plain_attach(void)
{
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();

	own_setting_count = 0;
	for (int i = 0; i < count; i++)
	{
		if (baton_reset_is_carried(variables[i]))
			own_setting_count++;
	}
	own_settings = MemoryContextAlloc(baton_reset_context, (own_setting_count + 1) *
									  sizeof(*own_settings));
	own_setting_count = 0;
	for (int i = 0; i < count; i++)
	{
		if (baton_reset_is_carried(variables[i]))
			own_settings[own_setting_count++] =
				MemoryContextStrdup(baton_reset_context, variables[i]->name);
	}
}

bool
baton_plain_known(void)
{
	return plain_values != NULL;
}

void
baton_plain_forget(void)
{
	if (plain_values == NULL)
		return;
	for (int i = 0; i < own_setting_count; i++)
		if (plain_values[i].data != NULL)
			pfree(plain_values[i].data);
	pfree(plain_values);
	plain_values = NULL;
}

/*
 * Finds out what each of own_settings would be without the settings of role
 * and database: gives it its default, reads the files, looks, and puts the
 * backend's own back.  Once a backend, if ever, and after a reload.
 */
static void
find_plain_values(void)
{
	BatonGucCell *own;
	bool	   *done;

	if (plain_values != NULL)
		return;

	baton_reset_items_exchange();

	own = palloc0(own_setting_count * sizeof(*own));
	done = palloc0(own_setting_count * sizeof(*done));
	plain_values = MemoryContextAllocZero(baton_reset_context, own_setting_count *
										  sizeof(*plain_values));
	for (int i = 0; i < own_setting_count; i++)
	{
		struct config_generic *record = baton_guc_find(own_settings[i]);
		MemoryContext old = MemoryContextSwitchTo(baton_reset_context);
		BatonGucCell boot;

		initStringInfo(&plain_values[i]);
		MemoryContextSwitchTo(old);
		if (record == NULL || !baton_guc_make_boot(record, &boot))
			continue;
		own[i] = baton_guc_reset_cell(record);
		done[i] = true;
		baton_reset_give(record, &boot);
	}
	baton_files_read();
	for (int i = 0; i < own_setting_count; i++)
	{
		struct config_generic *record = baton_guc_find(own_settings[i]);
		BatonGucCell plain;

		if (!done[i] || record == NULL)
			continue;
		plain = baton_guc_reset_cell(record);
		baton_reset_append_value(record, &plain, NULL, &plain_values[i]);
		baton_reset_give(record, &own[i]);
		baton_guc_release(record, &plain.value);
	}
	pfree(own);
	pfree(done);

	baton_reset_items_exchange();
}

/* Settings the backend has and the session has not. */
void
baton_plain_apply(void)
{
	for (int i = 0; i < own_setting_count; i++)
	{
		dlist_iter	iter;
		bool		listed = false;
		BatonResetItem *item;

		dlist_foreach(iter, &baton_reset_items)
		{
			item = dlist_container(BatonResetItem, node, iter.cur);
			if (baton_guc_compare_names(item->name, own_settings[i]) == 0)
			{
				listed = true;
				break;
			}
		}
		if (listed)
			continue;
		find_plain_values();
		if (plain_values[i].len == 0)
			continue;
		item = baton_reset_item_add(own_settings[i], strlen(own_settings[i]),
									plain_values[i].data, plain_values[i].len);
		item->plain = true;
		baton_reset_item_apply(item);
	}
}

bool
baton_plain_undo(void)
{
	dlist_mutable_iter iter;
	bool		any = false;

	dlist_foreach_modify(iter, &baton_reset_items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (item->plain)
		{
			baton_reset_item_undo(item);
			baton_reset_item_drop(item);
			any = true;
		}
	}
	return any;
}
