/*-------------------------------------------------------------------------
 *
 * session_start.c
 *		The start of a session: settings of its role and database, startup
 *		options, warnings.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "port/pg_bswap.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "arena.h"
#include "delta.h"
#include "dispatcher_link.h"
#include "majors.h"
#include "parameters.h"
#include "pg_guc.h"
#include "pooled_state.h"
#include "reset_values.h"
#include "session_start.h"

/* ----------------------------------------------------------------
 *		The warnings that a backend got while it started.
 *
 * In stock each client is told at its login that its database's collations
 * have another version (CheckMyDatabase in postinit.c), or that a setting of
 * its role is not valid. A pool's backend gets these warnings once, before it
 * serves a session. So it keeps them and sends them to each session that it
 * greets; the dispatcher repeats what it has received from the backend.
 *
 * If a backend was warned about its database, and the database's row in
 * pg_database has changed since, it greets no session: it ends, and a new
 * backend gets the warning or does not.
 *
 * What a parameter's check hook refused of a string is not kept: it may have
 * become valid, or invalid. Each greeting checks these again, and warns.
 *
 * Warnings are noticed on their way to the log, so only what log_min_messages
 * lets through is kept, which by default includes them.
 * ----------------------------------------------------------------
 */

/* Further warnings are not kept. */
#define MOST_NOTICES 16

static bool starting = true;
static bool becoming = false;	/* settings are being applied: another role's,
								 * or its own again */
static List *notices = NIL;
static bool database_changed = false;	/* since the login of the backend */

static char *
copy_of(const char *text)
{
	return text !=NULL ? MemoryContextStrdup(TopMemoryContext, text) : NULL;
}

static void
keep(const ErrorData *edata)
{
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);
	ErrorData  *copy = palloc0(sizeof(ErrorData));

	copy->sqlerrcode = edata->sqlerrcode;
	copy->message = copy_of(edata->message);
	copy->detail = copy_of(edata->detail);
	copy->hint = copy_of(edata->hint);
	copy->context = copy_of(edata->context);
	copy->filename = edata->filename;	/* points into the program's text */
	copy->lineno = edata->lineno;
	copy->funcname = edata->funcname;
	notices = lappend(notices, copy);
	MemoryContextSwitchTo(caller);
}

/*
 * A warning of set_config_option about a string, which guc.c raises in one
 * place.
 */
static bool
is_checked_anew(const ErrorData *edata)
{
	return edata->funcname != NULL &&
		strcmp(edata->funcname, "call_string_check_hook") == 0;
}

void
baton_opening_notices_log(ErrorData *edata)
{
	if (((starting && edata->output_to_client) || becoming) && edata->elevel == WARNING &&
		MyProcPort != NULL && debug_query_string == NULL &&
		list_length(notices) < MOST_NOTICES && !is_checked_anew(edata))
		keep(edata);
}

static bool
is_of_database(const ErrorData *edata)
{
	return edata->funcname != NULL && strcmp(edata->funcname, "CheckMyDatabase") == 0;
}

static bool
any_of_database(void)
{
	ListCell   *cell;

	foreach(cell, notices)
	{
		if (is_of_database(lfirst(cell)))
			return true;
	}
	return false;
}

/* A row of pg_database has changed. */
static void
note_change(Datum argument, int cache, uint32 hash)
{
	database_changed = true;
}

void
baton_opening_notices_begin(void)
{
	/* now: afterwards, a change between the warning and then would be missed */
	CacheRegisterSyscacheCallback(DATABASEOID, note_change, (Datum) 0);
}

void
baton_opening_notices_end(void)
{
	starting = false;
}

bool
baton_opening_notices_may_be_past(void)
{
	MemoryContext caller = CurrentMemoryContext;

	if (likely(notices == NIL) || !any_of_database())
		return false;
	if (!database_changed)
	{
		baton_own_transaction_start();
		AcceptInvalidationMessages();
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
	}
	return database_changed;
}

/*
 * While the backend takes another role's settings, the new warnings replace
 * those about the old settings. An error in between must end the backend.
 *
 * CheckMyDatabase's warnings concern the database and stay; the others concern
 * the settings that go. Warnings go to the log and to the sessions that are
 * greeted, and to no client now.
 */
static void
opening_notices_begin_role(void)
{
	ListCell   *cell;

	foreach(cell, notices)
	{
		ErrorData  *edata = lfirst(cell);

		if (!is_of_database(edata))
		{
			FreeErrorData(edata);
			notices = foreach_delete_current(notices, cell);
		}
	}
	becoming = true;
	whereToSendOutput = DestNone;
}

static void
opening_notices_end_role(void)
{
	becoming = false;
	whereToSendOutput = DestRemote;
}

/* Appends one field, if it has a text. */
static void
error_field(StringInfo message, char field, const char *text)
{
	if (text == NULL)
		return;
	pq_sendbyte(message, field);
	pq_sendstring(message, text);
}

void
baton_error_body(StringInfo message, const ErrorData *edata, const char *severity)
{
	error_field(message, PG_DIAG_SEVERITY, _(severity));
	error_field(message, PG_DIAG_SEVERITY_NONLOCALIZED, severity);
	error_field(message, PG_DIAG_SQLSTATE, unpack_sql_state(edata->sqlerrcode));
	error_field(message, PG_DIAG_MESSAGE_PRIMARY, edata->message);
	error_field(message, PG_DIAG_MESSAGE_DETAIL, edata->detail);
	error_field(message, PG_DIAG_MESSAGE_HINT, edata->hint);
	error_field(message, PG_DIAG_CONTEXT, edata->context);
	error_field(message, PG_DIAG_SOURCE_FILE, edata->filename);
	if (edata->lineno > 0)
		error_field(message, PG_DIAG_SOURCE_LINE, psprintf("%d", edata->lineno));
	error_field(message, PG_DIAG_SOURCE_FUNCTION, edata->funcname);
	pq_sendbyte(message, '\0');
}

void
baton_opening_notices_send(StringInfo sent)
{
	ListCell   *cell;

	foreach(cell, notices)
	{
		StringInfoData body;
		uint32		length;

		initStringInfo(&body);
		baton_error_body(&body, lfirst(cell), "WARNING");
		(void) pq_putmessage('N', body.data, body.len);
		length = pg_hton32(body.len + sizeof(length));
		appendStringInfoChar(sent, 'N');
		appendBinaryStringInfo(sent, (char *) &length, sizeof(length));
		appendBinaryStringInfo(sent, body.data, body.len);
		pfree(body.data);
	}
}

/* ----------------------------------------------------------------
 *		The settings of ALTER ROLE SET and ALTER DATABASE SET for a role.
 *
 * process_settings() (postinit.c, 15 to 18) reads them once, when a backend
 * starts. Here they are read again: for a new session those that are names in
 * catalogs, or all if they have changed since the backend read them; and all
 * for a backend that becomes another role's (identity.c).
 * ----------------------------------------------------------------
 */

/* The setting's text when the backend started; NULL: it had none. */
static char *own_start_only[BATON_START_ONLY_COUNT];

/* A startup option of all its sessions takes precedence over any setting. */
static bool is_startup_option[BATON_START_ONLY_COUNT];

/* control's marks before the backend read its settings. */
static uint32 marks_read[BATON_SETTINGS_MARKS];

/* As ApplySetting (pg_db_role_setting.c) does. */
static void
each_of(Relation relation, Snapshot snapshot, Oid database, Oid role, GucSource source,
		void (*each) (const char *name, const char *text, GucSource source))
{
	SysScanDesc scan;
	ScanKeyData keys[2];
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_db_role_setting_setdatabase,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(database));
	ScanKeyInit(&keys[1], Anum_pg_db_role_setting_setrole,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(role));
	scan = systable_beginscan(relation, DbRoleSettingDatidRolidIndexId, true,
							  snapshot, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		is_null;
		Datum		array = heap_getattr(tuple, Anum_pg_db_role_setting_setconfig,
										 RelationGetDescr(relation), &is_null);
		Datum	   *texts;
		bool	   *nulls;
		int			count;

		if (is_null)
			continue;
		deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false,
						  TYPALIGN_INT, &texts, &nulls, &count);
		for (int i = 0; i < count; i++)
		{
			char	   *name = nulls[i] ? "" : TextDatumGetCString(texts[i]);
			char	   *equals = strchr(name, '=');

			if (equals == NULL)
				continue;
			*equals = '\0';
			each(name, equals + 1, source);
		}
	}
	systable_endscan(scan);
}

/*
 * The settings of a role in this database, in the order of process_settings()
 * (postinit.c): of several with one name the first valid one counts. Must be
 * called in a transaction.
 */
static void
role_settings_each(Oid role, void (*each) (const char *name, const char *text,
										   GucSource source))
{
	Relation	relation = table_open(DbRoleSettingRelationId, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetCatalogSnapshot(DbRoleSettingRelationId));

	each_of(relation, snapshot, MyDatabaseId, role, PGC_S_DATABASE_USER, each);
	each_of(relation, snapshot, InvalidOid, role, PGC_S_USER, each);
	each_of(relation, snapshot, MyDatabaseId, InvalidOid, PGC_S_DATABASE, each);
	each_of(relation, snapshot, InvalidOid, InvalidOid, PGC_S_GLOBAL, each);
	UnregisterSnapshot(snapshot);
	table_close(relation, AccessShareLock);
}

typedef struct Setting
{
	char	   *name;
	char	   *text;
	GucSource	source;
} Setting;

/* The list that is being read. */
static List *found;

static void
add_found(const char *name, const char *text, GucSource source)
{
	Setting    *setting = palloc(sizeof(Setting));

	setting->name = pstrdup(name);
	setting->text = pstrdup(text);
	setting->source = source;
	found = lappend(found, setting);
}

List *
baton_role_settings_read(Oid role)
{
	found = NIL;
	role_settings_each(role, add_found);
	return found;
}

/*
 * ---- parameters that only a start reads ----------------------------------
 */

/*
 * Does a setting of this source count among the parameters that only a start
 * reads? A role that has any of its own does not share backends with others
 * (is_apart, in pool_settings.c): a later setting counts for its next logins.
 */
static bool
counts_at_start(GucSource source)
{
	return BatonSelf.is_apart || source == PGC_S_GLOBAL || source == PGC_S_DATABASE;
}

/* The text of the setting that counts; NULL: there is none. */
static const char *
text_of(const List *settings, const char *name)
{
	ListCell   *cell;

	foreach(cell, settings)
	{
		const Setting *setting = lfirst(cell);

		if (counts_at_start(setting->source) &&
			baton_guc_compare_names(setting->name, name) == 0)
			return setting->text;
	}
	return NULL;
}

/*
 * The value as it is shown, so that texts with the same meaning become equal.
 */
static const char *
canonical(const char *name, const char *text)
{
	int			blocks;

	if (text !=NULL && strcmp(name, "temp_buffers") == 0 &&
		parse_int(text, &blocks, GUC_UNIT_BLOCKS, NULL))
		return psprintf("%d", blocks);
	return text;
}

/* The parameter's value from its role's or database's settings. */
static const char *
setting_of(struct config_generic *record)
{
	if (record->reset_source < PGC_S_GLOBAL || record->reset_source > PGC_S_DATABASE_USER)
		return NULL;
	if (record->vartype == PGC_INT)
		return psprintf("%d", ((struct config_int *) record)->reset_val);
	return ((struct config_string *) record)->reset_val;
}

/* As of the start: the catalog may have changed since. */
const char *
baton_role_settings_attach(void)
{
	BatonSelf.start_settings = 0;
	for (int i = 0; i < BATON_START_ONLY_COUNT; i++)
	{
		struct config_generic *record = baton_guc_find(baton_start_only[i]);
		const char *text = record != NULL ? setting_of(record) : NULL;

		is_startup_option[i] = record != NULL && record->reset_source > PGC_S_DATABASE_USER;
		if (text == NULL)
			continue;
		if (!counts_at_start(record->reset_source))
			return psprintf("role \"%s\", as which it was started, has a setting of \"%s\" of its own",
							MyProcPort->user_name, baton_start_only[i]);
		own_start_only[i] = MemoryContextStrdup(TopMemoryContext, text);
		BatonSelf.start_settings =
			hash_combine64(BatonSelf.start_settings,
						   hash_bytes_extended((const unsigned char *) text, strlen(text), i + 1));
	}
	return NULL;
}

bool
baton_role_settings_need_start(const List *settings)
{
	for (int i = 0; i < BATON_START_ONLY_COUNT; i++)
	{
		const char *text = canonical(baton_start_only[i], text_of(settings, baton_start_only[i]));
		const char *own = own_start_only[i];

		if (is_startup_option[i])
			continue;
		if (text == NULL || own == NULL ? text !=own : strcmp(text, own) != 0)
			return true;
	}
	return false;
}

/*
 * ---- their age -----------------------------------------------------------
 */

void
baton_role_settings_note(void)
{
	/* before the login it is unknown which of them are relevant */
	for (int i = 0; i < BATON_SETTINGS_MARKS; i++)
		marks_read[i] = pg_atomic_read_u32(baton_atomic_u32(BatonControlMemory->settings_marks[i]));
	pg_memory_barrier();
}

bool
baton_role_settings_are_of(Oid role, const uint32 *marks)
{
	const uint32 concern[BATON_SETTINGS_MARKS_OF] = {
		BATON_SETTINGS_MARK(InvalidOid, InvalidOid),
		BATON_SETTINGS_MARK(MyDatabaseId, InvalidOid),
		BATON_SETTINGS_MARK(InvalidOid, role),
		BATON_SETTINGS_MARK(MyDatabaseId, role)
	};

	for (int i = 0; i < BATON_SETTINGS_MARKS_OF; i++)
	{
		if ((int32) (marks_read[concern[i]] - marks[i]) < 0)
			return false;
	}
	return true;
}

static bool
is_start_only(const char *name)
{
	for (int i = 0; i < BATON_START_ONLY_COUNT; i++)
	{
		if (baton_guc_compare_names(name, baton_start_only[i]) == 0)
			return true;
	}
	return false;
}

/*
 * ---- replacing the backend's own -----------------------------------------
 */

void
baton_role_settings_apply(const List *settings)
{
	ListCell   *cell;

	opening_notices_begin_role();
	foreach(cell, settings)
	{
		const Setting *setting = lfirst(cell);

		/* the value in force is correct, and cannot be set twice */
		if (is_start_only(setting->name))
			continue;
		/* as ProcessGUCArray (guc.c) */
		baton_plain_expect(setting->name);
		(void) set_config_option(setting->name, setting->text, PGC_SUSET, setting->source,
								 GUC_ACTION_SET, true, 0, false);
	}
	opening_notices_end_role();
	baton_plain_expect_no_more();
	baton_guc_report_touched = true;
}

/* ----------------------------------------------------------------
 *		What a new session begins with: its startup options, and the settings of
 *		its role and database.
 *
 * Startup options are applied with the server's own checks, over the values
 * without settings ("plain", see reset_values.c), as InitPostgres (postinit.c)
 * does. The backend has the settings from its start, or has read them again
 * since they changed (baton_become_look in identity.c), and most need
 * nothing more.
 *
 * Problem: the value of some settings is a name in catalogs, which the check
 * hook looks up. If a backend started when the role had another name, or a
 * configuration did not exist, its value differs from that of a client that
 * logs in now, or is missing, and no change of a setting tells.
 *
 * Decision: those are read again from pg_db_role_setting at each greeting, in
 * the order of process_settings (postinit.c), and checked as there, with its
 * WARNING if they are refused. The same holds for the search path, by which
 * some are looked up. Other sessions of the same kind get the same greeting
 * without a look as long as login_generation does not change, or (if a role
 * was looked up) no role or membership changes, and otherwise as long as
 * names_generation does not change (catalog_watch.c raises them when an object
 * changes that a check hook has looked at). If a role may set a startup option
 * by a privilege, the greeting is valid while no membership changes. On a
 * standby nothing raises them, and each greeting is valid for one session
 * only. The same holds for a greeting with a refused setting: each login has
 * its WARNING in the server's log.
 *
 * What the check hooks look at, as of 15 to 18: check_role and
 * check_session_authorization (variable.c) at roles and memberships;
 * check_default_text_search_config (ts_cache.c) at configurations and, by the
 * search path, at schemas and the role's privileges there;
 * check_default_tablespace (tablespace.c) and
 * check_default_table_access_method (tableamapi.c) at whether there is one of
 * that name. check_temp_tablespaces (tablespace.c) refuses nothing of such a
 * source, nor changes the text: what it looks up goes to fd.c, for one
 * transaction.
 * ----------------------------------------------------------------
 */

/* The greeting that is being made. */
static struct
{
	bool		on_standby;		/* as of its begin */
	uint32		lasts;			/* BATON_GREETING_* */
	uint32		flags;			/* BATON_GREETING_OF_ROLES, _BY_PRIVILEGES */
}			greeting;

static void
greeting_lasts(uint32 most)
{
	if (most == BATON_GREETING_NEVER || greeting.lasts == BATON_GREETING_ALWAYS)
		greeting.lasts = most;
}

/*
 * A parameter was checked with this text. Limits the greeting if the check
 * hook has looked up catalogs.
 */
static void
note_checked(const struct config_generic *record, const char *text)
{
	bool		is_identity = baton_guc_is_identity(record);

	/*
	 * truncated, and the client gets a NOTICE (parse_and_validate_value in
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
 * Makes an item of a value that the server has accepted. A role is the one
 * that has the name now.
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

		/* as set_config_option has done, which has also told the client */
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
	 * Of several options with one name the last counts; the check hook has
	 * seen the earlier ones. Removing them may hide the record again.
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

	/* The server's own checks and messages; nothing is changed. */
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

	/*
	 * by GRANT ... ON PARAMETER, to the role or to a role that it is a member
	 * of
	 */
	if (record->context == PGC_SUSET || record->context == PGC_SU_BACKEND)
		greeting.flags |= BATON_GREETING_BY_PRIVILEGES;
	/* otherwise set_config_option would have done nothing, either */
	if (record->reset_source <= PGC_S_CLIENT)
		give_value(record, text, PGC_S_CLIENT, context);
}

/* ---- settings of role and database ------------------------------------- */

/* Settings that are looked up in catalogs, and the path for the look-up. */
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

/*
 * Looks at a setting of process_settings(). The first setting of a name wins.
 */
static void
look_at_setting(const char *name, const char *text, GucSource source)
{
	struct config_generic *record = baton_guc_find(name);
	bool		good;

	/* only such hooks look at catalogs */
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

/*
 * Makes an item of every reset value that belongs to the session, and sends
 * it.
 */
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

			/* no SET has been run yet, so the reset value is active */
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
 * A valid encoding without a conversion from the database's; otherwise -1.
 * Stock finds this out after it has processed all options
 * (InitializeClientEncoding in mbutils.c), because it cannot look up
 * conversions before.
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
	/* before the transaction has received its invalidation messages */
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
	role_settings_each(GetAuthenticatedUserId(), look_at_setting);

	/*
	 * the backend's own apply, except those that were looked up for this
	 * session
	 */
	(void) baton_plain_undo();
	for (int i = 0; i < (int) lengthof(looked_up); i++)
		baton_plain_apply_to(looked_up[i]);
	put_items();
	return greeting.lasts | greeting.flags;
}
