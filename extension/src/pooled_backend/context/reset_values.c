/*-------------------------------------------------------------------------
 *
 * reset_values.c
 *		The values that RESET returns to: startup options and settings of role
 *		and database, as of the session's login.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "arena.h"
#include "context_params.h"
#include "pg_guc.h"
#include "pooled_state.h"
#include "reset_values.h"

/* ----------------------------------------------------------------
 *		One parameter whose reset value in the session differs from the
 *		backend's: putting it in force, and removing it.
 *
 * Invariants: an item that is `exchanged` owns the backend's own value in
 * `other`. All items are in BatonPlaced.resets and in reset_context.
 * ----------------------------------------------------------------
 */

/* Owns the items, which are in BatonPlaced.resets. */
static MemoryContext reset_context = NULL;

/* or-ed to the context in an entry's value: it is a placeholder's value */
#define PLACEHOLDER_MARK 0x80

static void
reset_make_context(void)
{
	if (reset_context == NULL)
		reset_context = AllocSetContextCreate(TopMemoryContext,
											  "pg_baton reset values",
											  ALLOCSET_DEFAULT_SIZES);
}

/*
 * Does its reset value come from a setting of role or database, or from an
 * option?
 */
static bool
reset_is_setting(const struct config_generic *record)
{
	return record->reset_source >= PGC_S_GLOBAL && record->reset_source <= PGC_S_CLIENT &&
		record->context != PGC_INTERNAL && !baton_guc_is_of_process(record) &&
		strcmp(record->name, "pg_baton.attach") != 0;
}

bool
baton_reset_is_carried(const struct config_generic *record)
{
	return reset_is_setting(record) || strcmp(record->name, "client_encoding") == 0;
}

/* ---- one item --------------------------------------------------------- */

BatonResetItem *
baton_reset_item_add(const char *name, Size name_length, const char *value,
					 Size value_length)
{
	MemoryContext old = MemoryContextSwitchTo(reset_context);
	BatonResetItem *item = palloc0(sizeof(BatonResetItem));

	item->name = pnstrdup(name, name_length);
	/* NUL-terminated, since the text is read in place */
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

/*
 * Gives the record a reset value, and its active value unless that is the
 * session's own (SET).
 */
static void
reset_give(struct config_generic *record, const BatonGucCell *cell)
{
	if (record->source <= PGC_S_OVERRIDE)
		baton_guc_activate(record, cell);
	baton_guc_set_reset(record, cell);
}

/*
 * A placeholder without a value exists only for its session. The predecessor
 * may have had it, too, so that it stayed in place (choose(),
 * context_params.c), or the files are read again.
 */
static void
reset_hide_if_empty(struct config_generic *record)
{
	if ((record->flags & GUC_CUSTOM_PLACEHOLDER) &&
		record->reset_source == PGC_S_DEFAULT &&
		record->source == PGC_S_DEFAULT &&
		!baton_param_exists(record->name))
		baton_placeholder_hide(record);
}

/*
 * A placeholder that the backend has through a setting of role or database,
 * and the session has not, is removed and restored as a whole.
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
		reset_give(record, &empty);
		reset_hide_if_empty(record);
		item->out = true;
		return;
	}

	record = baton_placeholder_create(item->name);
	item->out = false;
	if (record == NULL)
		return;
	if (record->flags & GUC_CUSTOM_PLACEHOLDER)
		reset_give(record, &item->other);
	else
	{
		/* a library was loaded; see reset_item_exchange() */
		BatonPlaced.resets.reload_again = true;
	}
}

/*
 * Exchanges the record's reset value and item->other. The active value changes
 * with it unless the session has one of its own.
 */
static void
reset_item_exchange(BatonResetItem *item)
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
		 * (define_custom_variable in guc.c). The backend's own value is then
		 * only the default, and the files have to be read.
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
	reset_give(record, &item->other);
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

/*
 * Exchanges all items: the backend's own values are put in force, or replaced
 * again.
 */
static void
reset_items_exchange(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.resets.items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (item->exchanged)
			reset_item_exchange(item);
	}
}

/* Puts the backend's own value in force again. */
void
baton_reset_item_undo(BatonResetItem *item)
{
	struct config_generic *record;

	if (!item->exchanged)
		return;
	reset_item_exchange(item);
	item->exchanged = false;
	record = baton_guc_find(item->name);
	if (record == NULL || item->absent)
		return;
	baton_guc_release(record, &item->other.value);
	reset_hide_if_empty(record);
}

/*
 * The item's value becomes the backend's own, whose previous value is dropped.
 */
static void
reset_item_keep(BatonResetItem *item)
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
	/* the placeholder is taken out, and refers to neither */
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

/* The role after the text of a value, if there is one. */
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
 * Does the backend itself have the item's value? Never true for a role: the
 * same name may have meant another role when it was set.
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

static bool
reset_item_try(BatonResetItem *item)
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
		reset_item_exchange(item);
		return true;
	}

	memset(&cell, 0, sizeof(cell));
	if (item->plain && item->value[0] == PGC_S_DEFAULT)
	{
		/* also of a placeholder that a library's parameter has replaced */
		if (!baton_guc_make_boot(record, &cell))
			return false;
		item->record = record;
		item->other = cell;
		item->exchanged = true;
		reset_item_exchange(item);
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
		/* a placeholder's value that the loaded library refuses, too */
		return strchr(item->name, GUC_QUALIFIER_SEPARATOR) != NULL;
	}
	item->record = record;
	item->other = cell;
	item->exchanged = true;
	reset_item_exchange(item);
	return true;
}

void
baton_reset_item_apply(BatonResetItem *item)
{
	if (!reset_item_try(item))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not restore the reset value of parameter \"%s\" of the session",
						item->name)));
}

/* ----------------------------------------------------------------
 *		What the configuration files say about parameters for which the backend
 *		has a setting of role or database.
 *
 * These "plain" values are for a session that logged in before ALTER ROLE or
 * ALTER DATABASE gave the backend a setting that the session does not have.
 * Startup options are also applied over plain values.
 *
 * Decision: they are recorded before the backend knows its settings, as the
 * postmaster left them, and again at each reload: by then the files may
 * contain something that the server has not read.
 * ----------------------------------------------------------------
 */

/*
 * The value of a parameter without settings of role, database or client, as in
 * an entry.
 */
typedef struct PlainValue
{
	char	   *name;
	StringInfoData value;		/* empty: unknown */
} PlainValue;

/* The parameters for which the backend has such a setting. */
static PlainValue *own_settings = NULL;
static int	own_setting_count = 0;
static int	own_setting_size = 0;

/* Until attach: all parameters that differ from the compiled-in values. */
static PlainValue *recorded = NULL;
static int	recorded_count = 0;

static TimestampTz reload_seen = 0;

void
baton_files_read_by_server(void)
{
	MemoryContext old = MemoryContextSwitchTo(reset_context);

	ProcessConfigFile(PGC_SIGHUP);
	MemoryContextSwitchTo(old);
}

/*
 * Reads the configuration files. Changes neither the session's own values nor
 * reset values of a higher source; keeps the caller's memory context.
 */
static void
files_read(void)
{
	baton_files_read_by_server();
	baton_placeholders_note_own(false);
	reload_seen = PgReloadTime;
	BatonPlaced.resets.reload_again = false;
	baton_guc_report_touched = true;
}

/* Records that the server's last reading of the files is known. */
static void
files_seen(void)
{
	reload_seen = PgReloadTime;
}

/* Has the server read them since? */
static bool
files_were_read(void)
{
	return PgReloadTime != reload_seen;
}

void
baton_plain_record(void)
{
	struct config_generic **variables;
	int			count;
	MemoryContext old;

	reset_make_context();
	old = MemoryContextSwitchTo(reset_context);
	variables = baton_guc_records(&count);
	recorded = palloc(count * sizeof(*recorded));
	recorded_count = 0;
	for (int i = 0; i < count; i++)
	{
		BatonGucCell cell = baton_guc_reset_cell(variables[i]);
		PlainValue *plain;

		/* the others have the compiled-in value */
		if (cell.source == PGC_S_DEFAULT)
			continue;

		/*
		 * In the postmaster, which has no database, this is SQL_ASCII once a
		 * reload has taken the parameter out of the files: no value for a
		 * client (ProcessConfigFileInternal in guc-file.l, make_default()).
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
 * The value of the parameter if no file or other source sets it: the
 * compiled-in one; for client_encoding the database's (CheckMyDatabase in
 * postinit.c).
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

/* The recorded value of the parameter, or else its default. */
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

static void
plain_attach(void)
{
	struct config_generic **variables;
	int			count;
	MemoryContext old = MemoryContextSwitchTo(reset_context);

	variables = baton_guc_records(&count);
	own_settings = palloc(count * sizeof(*own_settings));
	own_setting_size = count;
	own_setting_count = 0;
	for (int i = 0; i < count; i++)
	{
		PlainValue *plain = &own_settings[own_setting_count];

		if (!reset_is_setting(variables[i]))
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

		reset_item_keep(item);
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

	/*
	 * a placeholder that was taken out for sessions without it is the same
	 * one
	 */
	if (record == NULL && strchr(name, GUC_QUALIFIER_SEPARATOR) != NULL)
		record = baton_placeholder_create(name);
	if (record == NULL)
		return;

	old = MemoryContextSwitchTo(reset_context);
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

		if (record != NULL && reset_is_setting(record))
		{
			own_settings[kept++] = own_settings[i];
			continue;
		}
		if (record != NULL)
			reset_hide_if_empty(record);
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
 * The value of the parameter if no file sets it: the compiled-in one, or that
 * of the environment or the command line, which no reload changes.
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
 * Do the files set it to a value that counts? Files with a mistake are not
 * applied at all, or without the refused values, which leaves a parameter as
 * it was (ProcessConfigFileInternal in guc-file.l): the result is then the
 * last known value, not the base.
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
 * Reads the files as the backend itself must see them, and records what they
 * say about those parameters. There must be no plain items.
 *
 * Finds out what each of own_settings would be without the settings of role
 * and database: gives it its base, reads the files, looks, and puts the
 * backend's own value back.
 */
static void
plain_read_files(void)
{
	BatonGucCell *own = palloc0(own_setting_count * sizeof(*own) + 1);
	bool	   *done = palloc0(own_setting_count * sizeof(*done) + 1);
	TimestampTz applied_before = PgReloadTime;
	bool		were_applied;

	reset_items_exchange();
	for (int i = 0; i < own_setting_count; i++)
	{
		struct config_generic *record = baton_guc_find(own_settings[i].name);
		BatonGucCell base;

		/* parameters that only a starting backend reads are unchanged */
		if (record == NULL || record->context == PGC_BACKEND ||
			record->context == PGC_SU_BACKEND ||
			!make_base(record, &own_settings[i], &base))
			continue;
		own[i] = baton_guc_reset_cell(record);
		done[i] = true;
		reset_give(record, &base);
	}
	files_read();
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
		reset_give(record, &own[i]);
		baton_guc_release(record, &plain.value);
	}
	reset_items_exchange();
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

/*
 * Applies plain values for settings that the backend has and the session has
 * not.
 */
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

/* ----------------------------------------------------------------
 *		The values that RESET returns to in a session: startup options and the
 *		settings of its role and database as of its login.
 *
 * Problem: RESET, and every parameter that the session has not SET, use a
 * value that belongs to the session: its startup options (source "client"),
 * and the values that ALTER ROLE/DATABASE SET had when it logged in (sources
 * "global" to "database user"). The backend that serves the session was not
 * started for it, and perhaps under other settings.
 *
 * Decision: at greeting, every reset value whose source is one of those, and
 * client_encoding's whatever its source, is put into the session's context as
 * a RESET item. When a session is installed, an item whose value the backend
 * has itself costs nothing. For one that differs, the record's reset value is
 * exchanged and the backend's own is kept beside it ("other"). A setting of
 * role or database that the backend has and the session has not is replaced by
 * the value without such settings ("plain").
 *
 * The value of a RESET entry: u8 source, u8 context with a mark if it was a
 * placeholder's, text; for the parameter role also NUL, u32 role, u8
 * superuser.
 *
 * Configuration files: ProcessConfigFile() does not touch a reset value of a
 * higher source, so an exchanged parameter would miss a new value in the file.
 * Hence a reload puts the backend's own values back for its duration. A reload
 * that PostgresMain has done meanwhile (PgReloadTime tells,
 * ProcessConfigFileInternal in guc-file.l sets it) is done again in that way.
 *
 * session_start.c has what a session begins with.
 * ----------------------------------------------------------------
 */

static BatonPlacedResets *const placed = &BatonPlaced.resets;

/* ---- attach ----------------------------------------------------------- */

const char *
baton_reset_attach(void)
{
	reset_make_context();
	files_seen();
	baton_placeholders_note_own(true);
	plain_attach();
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
		placed->serials = MemoryContextAlloc(reset_context,
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
		item->refused = !reset_item_try(item);
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

	/*
	 * a reload that has reached the items' values has not reached the
	 * backend's
	 */
	if (placed->reload_again || files_were_read())
		baton_reset_reload();
}

/* ---- reload ----------------------------------------------------------- */

void
baton_reset_reload(void)
{
	bool		plain = baton_plain_undo();
	dlist_iter	iter;

	plain_read_files();
	/* the backend's own values may have changed */
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
	if (!files_were_read())
		return;
	if (dlist_is_empty(&placed->items) && !baton_plain_any())
	{
		files_seen();
		baton_guc_report_touched = true;
	}
	else
		baton_reset_reload();
}
