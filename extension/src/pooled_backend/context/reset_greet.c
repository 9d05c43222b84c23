/*-------------------------------------------------------------------------
 *
 * reset_greet.c
 *		What a new session begins with: its startup options, and the settings of
 *		its role and database.
 *
 * Startup options are applied by the server's own checks, over what there is
 * without settings ("plain", see context_reset.c), as InitPostgres
 * (postinit.c) does.  Settings the backend has from its start, or has read again
 * since they changed (baton_settings_suit in become.c), and with most of them that is
 * all.
 *
 * Problem: the value of some is a name in catalogs, looked up by the check
 * hook.  A backend that started when the role had another name, or a
 * configuration did not exist, has another value than a client that logs in
 * now, or none, and no change of a setting tells.
 *
 * Decision: those are read again from pg_db_role_setting at each greeting, in
 * the order of process_settings (postinit.c), and checked as there, with its
 * WARNING if they are refused.  So is the search path, by which some are
 * looked up.  Others of the same kind are told the same without a look while
 * login_generation stays, or no role or membership changes, if it was a role that was
 * looked up, or else names_generation (login_watch.c raises them when what a check hook
 * has looked at changes).  A startup option that a role may set by a privilege is told
 * the same while no membership changes.  On a standby nobody raises them, and each greeting counts for one
 * session only.  So does one with a setting that is refused: each login has its
 * WARNING in the server's log.
 *
 * What the check hooks look at, as of 15 to 18: check_role and
 * check_session_authorization (variable.c) at roles and memberships;
 * check_default_text_search_config (ts_cache.c) at configurations and, by the
 * search path, at schemas and the role's privileges there;
 * check_default_tablespace (tablespace.c) and check_default_table_access_method
 * (tableamapi.c) at whether there is one of that name.  check_temp_tablespaces
 * (tablespace.c) refuses nothing of such a source, nor changes the text: what
 * it looks up it hands to fd.c, for one transaction.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "arena.h"
#include "context_guc.h"
#include "context_reset.h"
#include "delta.h"
#include "guc_value.h"
#include "majors.h"
#include "reset_item.h"
#include "reset_plain.h"
#include "role_settings.h"

/* The one that is being made. */
static struct
{
	bool		on_standby;		/* as it begins */
	uint32		lasts;			/* BATON_GREETING_* */
	uint32		flags;			/* BATON_GREETING_OF_ROLES, _BY_PRIVILEGES */
}			greeting;

static void
greeting_lasts(uint32 most)
{
	if (most == BATON_GREETING_NEVER || greeting.lasts == BATON_GREETING_ALWAYS)
		greeting.lasts = most;
}

/* It has been checked with this text; has its check hook looked something up? */
static void
note_checked(const struct config_generic *record, const char *text)
{
	bool		is_identity = baton_guc_is_identity(record);

	/*
	 * cut, and the client has a NOTICE of it (parse_and_validate_value in
	 * guc.c)
	 */
	if ((record->flags & GUC_IS_NAME) != 0 && strlen(text) >= NAMEDATALEN)
		greeting_lasts(BATON_GREETING_NEVER);
	if (!is_identity &&
		strcmp(record->name, "default_text_search_config") != 0 &&
		strcmp(record->name, "default_tablespace") != 0 &&
		strcmp(record->name, "default_table_access_method") != 0)
		return;
	if (is_identity)
		greeting.flags |= BATON_GREETING_OF_ROLES;
	if (greeting.on_standby)
		greeting_lasts(BATON_GREETING_NEVER);
	else if (!is_identity)
		greeting_lasts(BATON_GREETING_NAMES);
}

/*
 * Makes an item of a value that the server has found good.  A role is who bears
 * the name now.
 */
static void
give_value(struct config_generic *record, const char *text, GucSource source,
		   GucContext context)
{
	BatonGucIdentity identity = {InvalidOid, false};
	BatonGucCell cell;
	StringInfoData value;
	BatonResetItem *earlier;
	char	   *own_name;
	bool		is_role = strcmp(record->name, "role") == 0;

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
	cell.source = source;
	cell.scontext = context;
	if (!baton_guc_make(record, text, source, &identity, &cell.value))
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
	earlier = baton_reset_item_find(own_name);
	if (earlier != NULL)
	{
		baton_reset_item_undo(earlier);
		baton_reset_item_drop(earlier);
	}
	baton_reset_item_apply(baton_reset_item_add(own_name, strlen(own_name), value.data, value.len));
	pfree(own_name);
	pfree(value.data);
}

static void
apply_startup_option(const char *name, const char *text, GucContext context)
{
	struct config_generic *record;

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
	note_checked(record, text);
	/* by GRANT ... ON PARAMETER, to it or to a role that it is a member of */
	if (record->context == PGC_SUSET || record->context == PGC_SU_BACKEND)
		greeting.flags |= BATON_GREETING_BY_PRIVILEGES;
	/* else as set_config_option would have done: nothing */
	if (record->reset_source <= PGC_S_CLIENT)
		give_value(record, text, PGC_S_CLIENT, context);
}

/* ---- settings of role and database ------------------------------------- */

/* Those that are looked up in catalogs, and the path by which. */
static const char *const looked_up[] = {
	"search_path", "role", "default_text_search_config", "default_tablespace",
	"temp_tablespaces", "default_table_access_method"
};

static bool
is_looked_up(const struct config_generic *record)
{
	for (int i = 0; i < (int) lengthof(looked_up); i++)
	{
		if (strcmp(record->name, looked_up[i]) == 0)
			return true;
	}
	return false;
}

static bool
has_item(const struct config_generic *record)
{
	const BatonResetItem *item = baton_reset_item_find(record->name);

	return item != NULL && !item->plain;
}

/* One of process_settings()'s.  Whoever came first, has it. */
static void
look_at_setting(const char *name, const char *text, GucSource source)
{
	struct config_generic *record = baton_guc_find(name);
	bool		good;

	/* only such hooks look at catalogs; and see opening_notices.c */
	if (record == NULL || record->vartype != PGC_STRING ||
		((struct config_string *) record)->check_hook == NULL)
		return;

	/* The server's own check and WARNING; nothing is changed. */
	good = set_config_option(name, text, PGC_SUSET, source, GUC_ACTION_SET,
							 false, 0, false) != 0;
	if (good)
		note_checked(record, text);
	else
		greeting_lasts(BATON_GREETING_NEVER);
	if (good && is_looked_up(record) && !has_item(record))
		give_value(record, text, source, PGC_SUSET);
}

/* ---- greeting ----------------------------------------------------------- */

/* Every reset value that is the session's becomes an item, and is sent. */
static void
put_items(void)
{
	struct config_generic **variables;
	int			count;

	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];
		BatonResetItem *found;

		if (!baton_reset_is_carried(record))
			continue;
		found = baton_reset_item_find(record->name);
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
						found->value, found->value_length, NULL, 0);
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

void
baton_reset_prepare_greeting(void)
{
	/* before the transaction has got its invalidation messages */
	greeting.on_standby = RecoveryInProgress();
	greeting.lasts = BATON_GREETING_ALWAYS;
	greeting.flags = 0;
	baton_reset_neutralise();
	baton_plain_apply();
}

uint32
baton_reset_greet(const BatonEntryList *startup)
{
	GucContext	context = PGC_BACKEND;
	int			unsupported = -1;

	if (baton_authenticated_is_superuser())
		context = PGC_SU_BACKEND;
	for (int i = 0; i < startup->count; i++)
	{
		const BatonStored *entry = &startup->entries[i];
		char	   *name = pnstrdup(entry->key, entry->key_length);
		char	   *text = pnstrdup(entry->value,
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
	baton_role_settings_each(GetAuthenticatedUserId(), look_at_setting);

	/* the backend's own count but for those that this session had looked up */
	(void) baton_plain_undo();
	for (int i = 0; i < (int) lengthof(looked_up); i++)
		baton_plain_apply_to(looked_up[i]);
	put_items();
	return greeting.lasts | greeting.flags;
}
