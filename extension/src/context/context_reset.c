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
 * a RESET item.  When a session is installed,
 * an item that the backend has by itself costs nothing; for one that differs
 * the record's reset value is exchanged and the backend's own is kept beside
 * it ("other").  A setting of role or database that the backend has and the
 * session has not is replaced by what there was before such settings ("plain").
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
 * reset_plain.c's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_db_role_setting.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "utils/acl.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "context_placeholders.h"
#include "context_reset.h"
#include "guc_value.h"
#include "reset_item.h"
#include "reset_plain.h"

/* The serials that the last install wanted, in order; -1: unknown. */
static uint64 *last_serials = NULL;
static int	last_count = -1;
static int	last_size = 0;

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
	if (wanted->count != last_count)
		return false;
	for (int i = 0; i < last_count; i++)
	{
		if (last_serials[i] != wanted->entries[i]->serial)
			return false;
	}
	return true;
}

static void
remember_last(const BatonEntryList *wanted)
{
	if (wanted->count > last_size)
	{
		if (last_serials != NULL)
			pfree(last_serials);
		last_size = wanted->count + 16;
		last_serials = MemoryContextAlloc(baton_reset_context,
										  last_size * sizeof(*last_serials));
	}
	last_count = wanted->count;
	for (int i = 0; i < last_count; i++)
		last_serials[i] = wanted->entries[i]->serial;
}

static bool
same_as_entry(const BatonResetItem *item, const BatonEntry *entry)
{
	return entry->key_length == strlen(item->name) &&
		entry->value_length == item->value_length &&
		memcmp(baton_entry_key(entry), item->name, entry->key_length) == 0 &&
		memcmp(baton_entry_value(entry), item->value,
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
	last_count = -1;

	dlist_foreach(search, &baton_reset_items)
		dlist_container(BatonResetItem, node, search.cur)->keep = false;
	present = palloc0(wanted->count + 1);
	for (int i = 0; i < wanted->count; i++)
	{
		const BatonEntry *entry = wanted->entries[i];

		dlist_foreach(search, &baton_reset_items)
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

	dlist_foreach_modify(iter, &baton_reset_items)
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
		const BatonEntry *entry = wanted->entries[i];
		BatonResetItem *item;

		if (present[i])
			continue;
		item = baton_reset_item_add(baton_entry_key(entry), entry->key_length,
									baton_entry_value(entry), entry->value_length);
		item->serial = entry->serial;
		item->refused = !baton_reset_item_try(item);
	}
	pfree(present);
	dlist_foreach(search, &baton_reset_items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, search.cur);

		if (item->refused)
			baton_reset_item_apply(item);
		item->refused = false;
	}
	baton_plain_apply();
	if (baton_reset_reload_again)
		baton_reset_reload();
	remember_last(wanted);
}

void
baton_reset_neutralise(void)
{
	dlist_mutable_iter iter;

	last_count = -1;
	dlist_foreach_modify(iter, &baton_reset_items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		baton_reset_item_undo(item);
		baton_reset_item_drop(item);
	}
	/* a reload that came to the items' values has not come to the backend's */
	if (baton_reset_reload_again || baton_files_were_read())
		baton_reset_reload();
}

/* ---- greeting --------------------------------------------------------- */

static void
apply_startup_option(const char *name, const char *text, GucContext context)
{
	struct config_generic *record;
	BatonGucIdentity identity = {InvalidOid, false};
	BatonGucCell cell;
	StringInfoData value;
	dlist_mutable_iter iter;
	char	   *own_name;
	bool		is_role;

	if (pg_strcasecmp(name, "pg_baton.attach") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM),
				 errmsg("parameter \"%s\" cannot be set by a client", name)));

	/* The server's own checks and words; nothing is changed. */
	(void) set_config_option(name, text, context, PGC_S_CLIENT,
							 GUC_ACTION_SET, false, 0, false);
	record = baton_guc_find(name);
	if (record == NULL)
	{
		/* one of map_old_guc_names (guc.c) */
		const char *now_called = NULL;

		(void) GetConfigOptionByName(name, &now_called, true);
		if (now_called != NULL)
			record = baton_guc_find(now_called);
		if (record == NULL)
			elog(ERROR, "could not find parameter \"%s\"", name);
	}
	if (record->reset_source > PGC_S_CLIENT)
		return;					/* as set_config_option would have done */

	is_role = strcmp(record->name, "role") == 0;
	if (is_role && strcmp(text, "none") != 0)
	{
		char	   *role = pstrdup(text);

		/* as set_config_option has done, which has told the client, too */
		truncate_identifier(role, strlen(role), false);
		identity.role = get_role_oid(role, false);
		pfree(role);
		identity.superuser = superuser_arg(identity.role);
	}
	memset(&cell, 0, sizeof(cell));
	cell.source = PGC_S_CLIENT;
	cell.scontext = context;
	if (!baton_guc_make(record, text, PGC_S_CLIENT, &identity, &cell.value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						record->name, text)));
	initStringInfo(&value);
	baton_reset_append_value(record, &cell, is_role ? &identity : NULL, &value);
	baton_guc_release(record, &cell.value);

	/*
	 * The last of several options of one name counts; the check hook has seen
	 * those before it.  Taking them away may hide the record again.
	 */
	own_name = pstrdup(record->name);
	dlist_foreach_modify(iter, &baton_reset_items)
	{
		BatonResetItem *item = dlist_container(BatonResetItem, node, iter.cur);

		if (baton_guc_compare_names(item->name, own_name) == 0)
		{
			baton_reset_item_undo(item);
			baton_reset_item_drop(item);
		}
	}
	baton_reset_item_apply(baton_reset_item_add(own_name, strlen(own_name), value.data, value.len));
	pfree(own_name);
	pfree(value.data);
}

/* Every reset value that is the session's becomes an item, and is sent. */
static void
put_items(void)
{
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();

	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];
		BatonResetItem *found = NULL;
		dlist_iter	iter;

		if (!baton_reset_is_carried(record))
			continue;
		dlist_foreach(iter, &baton_reset_items)
		{
			BatonResetItem *item = dlist_container(BatonResetItem, node,
												   iter.cur);

			if (strcmp(item->name, record->name) == 0)
			{
				found = item;
				break;
			}
		}
		if (found == NULL)
		{
			BatonGucCell cell = baton_guc_reset_cell(record);
			BatonGucIdentity identity = {InvalidOid, false};
			bool		is_role = strcmp(record->name, "role") == 0;
			StringInfoData value;

			/* nobody has SET it yet, so the reset value is active */
			if (is_role)
				identity = baton_guc_identity(record);
			initStringInfo(&value);
			baton_reset_append_value(record, &cell, is_role ? &identity : NULL, &value);
			found = baton_reset_item_add(record->name, strlen(record->name), value.data,
										 value.len);
			pfree(value.data);
		}
		baton_delta_put(BATON_KIND_RESET, found->name, strlen(found->name),
						found->value, found->value_length, false, 0);
	}
}

/*
 * An encoding that there is, but no way to it from the database's; else -1.
 * Stock learns that when it has taken all options (InitializeClientEncoding in
 * mbutils.c), for until then it cannot look up conversions.
 */
static int
inconvertible_encoding(const char *name)
{
	int			encoding = pg_valid_client_encoding(name);

	return encoding >= 0 && PrepareClientEncoding(encoding) < 0 ? encoding : -1;
}

/*
 * The setting of role or database for the parameter role was good when this
 * backend started; for this session it may be no more.  As check_role in
 * variable.c, whose refusal is a WARNING for such a source.
 */
static void
check_role_setting(void)
{
	struct config_generic *record = baton_guc_find("role");
	BatonGucIdentity none = {InvalidOid, false};
	BatonGucIdentity identity = baton_guc_identity(record);
	BatonGucCell cell;
	StringInfoData value;

	if (!baton_reset_is_setting(record) || record->reset_source >= PGC_S_CLIENT ||
		!OidIsValid(identity.role) ||
		is_member_of_role(GetAuthenticatedUserId(), identity.role))
		return;

	ereport(WARNING,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to set role \"%s\"",
					GetUserNameFromId(identity.role, true))));
	memset(&cell, 0, sizeof(cell));
	cell.source = PGC_S_DEFAULT;
	cell.scontext = PGC_INTERNAL;
	if (!baton_guc_make(record, "none", PGC_S_DEFAULT, &none, &cell.value))
		elog(ERROR, "could not reset parameter \"%s\"", record->name);
	initStringInfo(&value);
	baton_reset_append_value(record, &cell, &none, &value);
	baton_guc_release(record, &cell.value);
	baton_reset_item_apply(baton_reset_item_add(record->name, strlen(record->name),
												value.data, value.len));
	pfree(value.data);
}

void
baton_reset_prepare_greeting(void)
{
	baton_reset_neutralise();
	baton_plain_apply();
}

void
baton_reset_greet(const BatonEntryList *startup)
{
	GucContext	context = PGC_BACKEND;
	int			unsupported = -1;

	if (GetAuthenticatedUserIsSuperuser())
		context = PGC_SU_BACKEND;
	for (int i = 0; i < startup->count; i++)
	{
		const BatonEntry *entry = startup->entries[i];
		char	   *name = pnstrdup(baton_entry_key(entry), entry->key_length);
		char	   *text = pnstrdup(baton_entry_value(entry),
									entry->value_length);

		if (pg_strcasecmp(name, "client_encoding") != 0)
			apply_startup_option(name, text, context);
		else if ((unsupported = inconvertible_encoding(text)) < 0)
			apply_startup_option(name, text, context);
		pfree(name);
		pfree(text);
	}
	if (unsupported >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("conversion between %s and %s is not supported",
						pg_encoding_to_char(unsupported), GetDatabaseEncodingName())));
	(void) baton_plain_undo();
	check_role_setting();
	put_items();
}

/* ---- reload ----------------------------------------------------------- */

void
baton_reset_reload(void)
{
	bool		plain = baton_plain_undo();
	dlist_iter	iter;

	baton_plain_read_files();
	/* what the backend had by itself may be something else now */
	dlist_foreach(iter, &baton_reset_items)
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
	if (dlist_is_empty(&baton_reset_items) && !baton_plain_any())
	{
		baton_files_seen();
		baton_guc_report_touched = true;
	}
	else
		baton_reset_reload();
}
