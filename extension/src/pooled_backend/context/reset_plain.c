/*-------------------------------------------------------------------------
 *
 * reset_plain.c
 *		What the configuration files say of parameters that the backend has a
 *		setting of role or database for.
 *
 * context_reset.c says what these "plain" values are for: a session that
 * logged in before ALTER ROLE or ALTER DATABASE gave the backend a setting
 * does not have it.  And startup options are applied over plain values.
 *
 * Decision: they are taken down before the backend knows its settings, as the
 * postmaster left them, and again at each reload: the files may say something
 * else by now that the server has not read.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "context_guc.h"
#include "context_placeholders.h"
#include "guc_value.h"
#include "pooled_state.h"
#include "reset_item.h"
#include "reset_plain.h"

/* A parameter without settings of role, database or client: as in an entry. */
typedef struct PlainValue
{
	char	   *name;
	StringInfoData value;		/* empty: not known */
} PlainValue;

/* Those that the backend has such a setting for. */
static PlainValue *own_settings = NULL;
static int	own_setting_count = 0;
static int	own_setting_size = 0;

/* Until attach: all that are not as they were compiled in. */
static PlainValue *recorded = NULL;
static int	recorded_count = 0;

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
	BatonPlaced.resets.reload_again = false;
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
baton_plain_record(void)
{
	struct config_generic **variables;
	int			count;
	MemoryContext old;

	baton_reset_make_context();
	old = MemoryContextSwitchTo(baton_reset_context);
	variables = baton_guc_records(&count);
	recorded = palloc(count * sizeof(*recorded));
	recorded_count = 0;
	for (int i = 0; i < count; i++)
	{
		BatonGucCell cell = baton_guc_reset_cell(variables[i]);
		PlainValue *plain;

		/* the rest has what was compiled in */
		if (cell.source == PGC_S_DEFAULT)
			continue;

		/*
		 * The postmaster, which has no database, has SQL_ASCII here once a
		 * reload has taken a parameter out of the files: not a client's
		 * (ProcessConfigFileInternal in guc-file.l, make_default()).
		 */
		if (cell.source == PGC_S_DYNAMIC_DEFAULT &&
			strcmp(variables[i]->name, "client_encoding") == 0)
			continue;
		plain = &recorded[recorded_count++];
		plain->name = pstrdup(variables[i]->name);
		initStringInfo(&plain->value);
		baton_reset_append_value(variables[i], &cell, NULL, &plain->value);
	}
	MemoryContextSwitchTo(old);
}

/*
 * What the parameter is where neither a file nor anything else says anything:
 * what was compiled in; but client_encoding is the database's (CheckMyDatabase
 * in postinit.c).
 */
static bool
make_default(struct config_generic *record, BatonGucCell *cell)
{
	if (strcmp(record->name, "client_encoding") != 0)
		return baton_guc_make_boot(record, cell);
	memset(cell, 0, sizeof(*cell));
	cell->source = PGC_S_DYNAMIC_DEFAULT;
	cell->scontext = PGC_BACKEND;
	cell->srole = BOOTSTRAP_SUPERUSERID;
	return baton_guc_make(record, GetDatabaseEncodingName(), cell->source, NULL,
						  &cell->value);
}

/* What was recorded of the parameter, or what it is without that. */
static void
recorded_value(struct config_generic *record, StringInfo value)
{
	BatonGucCell cell;

	for (int i = 0; i < recorded_count; i++)
	{
		if (strcmp(recorded[i].name, record->name) == 0)
		{
			appendBinaryStringInfo(value, recorded[i].value.data,
								   recorded[i].value.len);
			return;
		}
	}
	if (!make_default(record, &cell))
		return;
	baton_reset_append_value(record, &cell, NULL, value);
	baton_guc_release(record, &cell.value);
}

void
baton_plain_attach(void)
{
	struct config_generic **variables;
	int			count;
	MemoryContext old = MemoryContextSwitchTo(baton_reset_context);

	variables = baton_guc_records(&count);
	own_settings = palloc(count * sizeof(*own_settings));
	own_setting_size = count;
	own_setting_count = 0;
	for (int i = 0; i < count; i++)
	{
		PlainValue *plain = &own_settings[own_setting_count];

		if (!baton_reset_is_setting(variables[i]))
			continue;
		plain->name = pstrdup(variables[i]->name);
		initStringInfo(&plain->value);
		recorded_value(variables[i], &plain->value);
		own_setting_count++;
	}
	MemoryContextSwitchTo(old);

	for (int i = 0; i < recorded_count; i++)
	{
		pfree(recorded[i].name);
		pfree(recorded[i].value.data);
	}
	if (recorded != NULL)
		pfree(recorded);
	recorded = NULL;
	recorded_count = 0;
}

/* ---- another role's settings -------------------------------------------- */

static void
forget_one(PlainValue *plain)
{
	pfree(plain->name);
	pfree(plain->value.data);
}

bool
baton_plain_can_be_forgotten(void)
{
	for (int i = 0; i < own_setting_count; i++)
	{
		/* it would stay in force for another role */
		if (own_settings[i].value.len == 0)
			return false;
	}
	return true;
}

void
baton_plain_forget_settings(void)
{
	dlist_mutable_iter iter;

	Assert(dlist_is_empty(&BatonPlaced.resets.items));
	Assert(baton_plain_can_be_forgotten());
	baton_plain_apply();
	dlist_foreach_modify(iter, &BatonPlaced.resets.items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		baton_reset_item_keep(item);
		baton_reset_item_drop(item);
	}
	for (int i = 0; i < own_setting_count; i++)
		forget_one(&own_settings[i]);
	own_setting_count = 0;
}

void
baton_plain_expect(const char *name)
{
	struct config_generic *record = baton_guc_find(name);
	MemoryContext old;
	PlainValue *plain;

	for (int i = 0; i < own_setting_count; i++)
	{
		if (baton_guc_compare_names(own_settings[i].name, name) == 0)
			return;
	}
	/* one that was taken out for sessions without it is the same placeholder */
	if (record == NULL && strchr(name, GUC_QUALIFIER_SEPARATOR) != NULL)
		record = baton_placeholder_create(name);
	if (record == NULL)
		return;

	old = MemoryContextSwitchTo(baton_reset_context);
	if (own_setting_count == own_setting_size)
	{
		own_settings = repalloc(own_settings, 2 * own_setting_size * sizeof(*own_settings));
		own_setting_size *= 2;
	}
	plain = &own_settings[own_setting_count];
	plain->name = pstrdup(record->name);
	initStringInfo(&plain->value);
	if (record->reset_source == PGC_S_DEFAULT)
		recorded_value(record, &plain->value);
	else
	{
		BatonGucCell cell = baton_guc_reset_cell(record);

		baton_reset_append_value(record, &cell, NULL, &plain->value);
	}
	own_setting_count++;
	MemoryContextSwitchTo(old);
}

void
baton_plain_expect_no_more(void)
{
	int			kept = 0;

	for (int i = 0; i < own_setting_count; i++)
	{
		struct config_generic *record = baton_guc_find(own_settings[i].name);

		if (record != NULL && baton_reset_is_setting(record))
		{
			own_settings[kept++] = own_settings[i];
			continue;
		}
		if (record != NULL)
			baton_reset_hide_if_empty(record);
		forget_one(&own_settings[i]);
	}
	own_setting_count = kept;
}

bool
baton_plain_any(void)
{
	return own_setting_count > 0;
}

/*
 * What the parameter is where no file says anything: what was compiled in, or
 * what the environment or the command line said, which no reload changes.
 */
static bool
make_base(struct config_generic *record, const PlainValue *plain,
		  BatonGucCell *base)
{
	GucSource	source = plain->value.len > 0 ?
	(GucSource) (uint8) plain->value.data[0] : PGC_S_DEFAULT;

	if (source != PGC_S_DEFAULT && source != PGC_S_FILE)
	{
		memset(base, 0, sizeof(*base));
		base->source = source;
		base->scontext = PGC_POSTMASTER;
		base->srole = BOOTSTRAP_SUPERUSERID;
		if (baton_guc_make(record, plain->value.data + 2, source, NULL,
						   &base->value))
			return true;
	}
	return make_default(record, base);
}

/*
 * Have the files said anything of it, or nothing that counts?  Files with a
 * mistake are not applied at all, or without the values that are refused, which
 * leaves a parameter as it was (ProcessConfigFileInternal in guc-file.l): that
 * is what was known of it, not the base.
 */
static bool
files_left_it(struct config_generic *record, const PlainValue *plain, bool were_applied)
{
	if (!were_applied)
		return true;
	return record->reset_source != PGC_S_FILE &&
		(record->status & GUC_IS_IN_FILE) != 0 &&
		plain->value.len > 0 && (GucSource) (uint8) plain->value.data[0] == PGC_S_FILE;
}

/*
 * Finds out what each of own_settings would be without the settings of role
 * and database: gives it its base, reads the files, looks, and puts the
 * backend's own back.
 */
void
baton_plain_read_files(void)
{
	BatonGucCell *own = palloc0(own_setting_count * sizeof(*own) + 1);
	bool	   *done = palloc0(own_setting_count * sizeof(*done) + 1);
	TimestampTz applied_before = PgReloadTime;
	bool		were_applied;

	baton_reset_items_exchange();
	for (int i = 0; i < own_setting_count; i++)
	{
		struct config_generic *record = baton_guc_find(own_settings[i].name);
		BatonGucCell base;

		/* what a starting backend alone takes is as it was */
		if (record == NULL || record->context == PGC_BACKEND ||
			record->context == PGC_SU_BACKEND ||
			!make_base(record, &own_settings[i], &base))
			continue;
		own[i] = baton_guc_reset_cell(record);
		done[i] = true;
		baton_reset_give(record, &base);
	}
	baton_files_read();
	were_applied = PgReloadTime != applied_before;
	for (int i = 0; i < own_setting_count; i++)
	{
		struct config_generic *record = baton_guc_find(own_settings[i].name);
		BatonGucCell plain;

		if (!done[i] || record == NULL)
			continue;
		plain = baton_guc_reset_cell(record);
		if (!files_left_it(record, &own_settings[i], were_applied))
		{
			resetStringInfo(&own_settings[i].value);
			baton_reset_append_value(record, &plain, NULL, &own_settings[i].value);
		}
		baton_reset_give(record, &own[i]);
		baton_guc_release(record, &plain.value);
	}
	baton_reset_items_exchange();
	pfree(own);
	pfree(done);
}

static void
apply_one(const PlainValue *plain)
{
	BatonResetItem *item;

	if (plain->value.len == 0 || baton_reset_item_find(plain->name) != NULL)
		return;
	item = baton_reset_item_add(plain->name, strlen(plain->name),
								plain->value.data, plain->value.len);
	item->plain = true;
	baton_reset_item_apply(item);
}

/* Settings the backend has and the session has not. */
void
baton_plain_apply(void)
{
	for (int i = 0; i < own_setting_count; i++)
		apply_one(&own_settings[i]);
}

void
baton_plain_apply_to(const char *name)
{
	for (int i = 0; i < own_setting_count; i++)
	{
		if (baton_guc_compare_names(own_settings[i].name, name) == 0)
			apply_one(&own_settings[i]);
	}
}

bool
baton_plain_undo(void)
{
	dlist_mutable_iter iter;
	bool		any = false;

	dlist_foreach_modify(iter, &BatonPlaced.resets.items)
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
