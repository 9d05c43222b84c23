/*-------------------------------------------------------------------------
 *
 * context.c
 *		The session context: the order in which its parts are installed and
 *		captured.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"

#include "arena.h"
#include "context.h"
#include "context_objects.h"
#include "context_params.h"
#include "database_access.h"
#include "delta.h"
#include "function_table.h"
#include "majors.h"
#include "pg_catalogs.h"
#include "pg_guc.h"
#include "pg_process.h"
#include "pg_roles.h"
#include "pooled_state.h"
#include "reset_values.h"
#include "self_check.h"
#include "session_start.h"
#include "statement_environment.h"
#include "statement_tracking.h"
#include "taint.h"
#include "unnamed_statement.h"

/* ----------------------------------------------------------------
 *		The session context in a backend that keeps one session for life.
 *
 * Problem: a check has failed (self_check.c), and the code that installs and
 * captures the session context must not be used. Clients shall still be
 * served.
 *
 * Decision: the backend takes one session, while it is as it was started, and
 * exits with it. So nothing has to be undone or captured, and the session's
 * startup options can be applied as a starting backend does it
 * (process_startup_options in postinit.c): by SetConfigOption, which makes
 * them the values of RESET. The backend has the settings of role and database
 * from its own start.
 *
 * This section uses only what the server exports.
 * ----------------------------------------------------------------
 */

static bool taken = false;		/* a session's options have been applied */

static void
apply(const BatonStored *entry, const char *value, Size length, GucContext context)
{
	char	   *name = pnstrdup(entry->key, entry->key_length);
	char	   *text = pnstrdup(value, length);

	if (pg_strcasecmp(name, "pg_baton.attach") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CANT_CHANGE_RUNTIME_PARAM),
				 errmsg("parameter \"%s\" cannot be set by a client", name)));
	SetConfigOption(name, text, context, PGC_S_CLIENT);
	pfree(name);
	pfree(text);
}

/*
 * Applies the session's startup options, in a transaction. If an option is
 * bad, raises ERROR as the server does.
 */
static void
unpooled_startup(const BatonSessionRecord *record)
{
	const BatonItem *items = baton_record_items(record);
	GucContext	context = baton_authenticated_is_superuser() ? PGC_SU_BACKEND : PGC_BACKEND;

	if (taken)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this backend has served another session")));
	taken = true;
	for (uint32 i = 0; i < record->item_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, items[i].entry);

		if (entry->kind == BATON_KIND_STARTUP)
			apply(entry, entry->value, entry->value_length, context);
	}
}

/*
 * Sends the client all reported parameters, and appends them to *reported in
 * the format of GREETED.
 */
static void
unpooled_report(StringInfo reported)
{
	struct config_generic **records;
	int			count;

	/*
	 * they were reported to the dispatcher at this backend's start, but not
	 * to the client
	 */
	records = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
		baton_guc_set_reported(records[i], NULL);
	BeginReportingGUCOptions();
	for (int i = 0; i < count; i++)
	{
		if (records[i]->last_reported == NULL)
			continue;
		appendBinaryStringInfo(reported, records[i]->name, strlen(records[i]->name) + 1);
		appendBinaryStringInfo(reported, records[i]->last_reported,
							   strlen(records[i]->last_reported) + 1);
	}
}

/*
 * Takes a session that was greeted elsewhere and has done nothing since;
 * otherwise raises ERROR.
 *
 * Another backend, or the dispatcher, greeted it. Its RESET items contain its
 * startup options (reset_values.c has their form).
 */
static void
unpooled_install(const BatonSessionRecord *record)
{
	const BatonItem *items = baton_record_items(record);
	MemoryContext caller = CurrentMemoryContext;
	GucContext	context;

	for (uint32 i = 0; i < record->item_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, items[i].entry);

		if (taken || (entry->kind != BATON_KIND_STARTUP && entry->kind != BATON_KIND_RESET &&
					  entry->kind != BATON_KIND_REPORTED))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the session cannot go on in another backend"),
					 errdetail("A check of pg_baton's has failed in that backend.")));
	}
	taken = true;
	baton_own_transaction_start();
	MemoryContextSwitchTo(caller);
	context = baton_authenticated_is_superuser() ? PGC_SU_BACKEND : PGC_BACKEND;
	for (uint32 i = 0; i < record->item_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, items[i].entry);
		const char *value = entry->value;

		/* a role's value follows the text's end, at which pnstrdup stops */
		if (entry->kind == BATON_KIND_RESET && entry->value_length > 2 &&
			(GucSource) (uint8) value[0] == PGC_S_CLIENT)
			apply(entry, value + 2, entry->value_length - 2, context);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/* ----------------------------------------------------------------
 *		The session context: the order in which its parts come and go.
 *
 * Each part remembers what it has put in place and compares with it. This file
 * knows the order, and that there is nothing to do if the same context is in
 * place already.
 *
 * The order of install: the last session's SET values go, because check hooks
 * may look at them; then reset values, since a parameter that the session has
 * not SET takes them; then the session's own parameters, role last of them;
 * then its temporary namespace; then the reports to the client, which look at
 * all parameters; then prepared statements, the unnamed statement and
 * sequences, which may look at catalogs as the role and with the search_path
 * of the session.
 *
 * Invariants: BatonPlaced.context says which session's context is in place. An
 * error within install or greet leaves its version 0, and each part with a
 * true account of what it has put in place, so that the next install can
 * remove it.
 * ----------------------------------------------------------------
 */

static MemoryContext context_context = NULL;

/* The entries of the present session, by kind; used within install only. */
static BatonEntryList parameters;
static BatonEntryList resets;
static BatonEntryList startup;
static const BatonStored *reported_entry;	/* NULL: none */
static BatonStored reported_stored;
static bool has_temporary;		/* a temporary namespace */

const char *
baton_context_attach(void)
{
	/* statements last: what they replace must not stay if a part fails */
	static const struct
	{
		const char *name;
		const char *(*attach) (void);
	}			parts[] = {
		{"parameters", baton_placeholders_attach},
		{"reset_values", baton_reset_attach},
		{"set_values", baton_params_attach},
		{"reports", baton_report_attach},
		{"sequences", baton_sequences_attach},
		{"temporary_namespace", baton_namespace_attach},
		{"sql_functions", baton_functions_attach},
		{"kept_functions", baton_kept_functions_attach},
		{"statements", baton_statements_attach},
	};

	if (context_context == NULL)
		context_context = AllocSetContextCreate(TopMemoryContext,
												"pg_baton session context",
												ALLOCSET_DEFAULT_SIZES);
	baton_catalog_age_attach();
	for (int i = 0; i < (int) lengthof(parts); i++)
	{
		const char *problem = parts[i].attach();

		if (problem == NULL && baton_self_check_is_broken(parts[i].name))
			problem = "broken on purpose";
		if (problem != NULL)
			return problem;
	}
	return NULL;
}

static void
add_entry(BatonEntryList *list, const BatonStored *entry)
{
	if (list->count == list->size)
	{
		int			size = Max(16, list->size * 2);

		if (list->entries == NULL)
			list->entries = MemoryContextAlloc(context_context,
											   size * sizeof(*list->entries));
		else
			list->entries = repalloc(list->entries,
									 size * sizeof(*list->entries));
		list->size = size;
	}
	list->entries[list->count++] = *entry;
}

static void
sort_out(const BatonSessionRecord *record)
{
	const BatonItem *session_items = baton_record_items(record);

	parameters.count = 0;
	resets.count = 0;
	startup.count = 0;
	reported_entry = NULL;
	has_temporary = false;
	for (uint32 i = 0; i < record->item_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry;

		if (i == record->first_statement)
			i += record->statement_count;
		if (i == record->item_count)
			break;
		entry = baton_entry(&stored, session_items[i].entry);
		switch (entry->kind)
		{
			case BATON_KIND_PARAMETER:
				add_entry(&parameters, entry);
				break;
			case BATON_KIND_RESET:
				add_entry(&resets, entry);
				break;
			case BATON_KIND_STARTUP:
				add_entry(&startup, entry);
				break;
			case BATON_KIND_REPORTED:
				reported_stored = stored;
				reported_entry = &reported_stored;
				break;
			case BATON_KIND_OTHER:
				has_temporary |= baton_temporary_is_item(entry);
				break;
			default:
				break;
		}
	}
}

static void
install_rest(const BatonSessionRecord *record)
{
	baton_statements_install(record);
	baton_unnamed_install(record);
	baton_sequences_install(record);
}

/*
 * What the backend keeps for all sessions is this session's now.  If the
 * session was elsewhere, it may have discarded its plans there.
 */
static void
session_comes(const BatonSessionRecord *record)
{
	uint64		moves = baton_session_slot(record->id)->migrations;
	bool		is_another = record->id != BatonPlaced.context.session;

	if (is_another || moves != BatonPlaced.context.moves)
		baton_functions_session_changes();
	BatonPlaced.context.moves = moves;
	if (!is_another)
		return;
	baton_catalog_session_changes();
	baton_role_caches_session_changes();
}

static void
greet_unpooled(const BatonSessionRecord *record, StringInfo notices, StringInfo reported,
			   bool *login_triggers)
{
	MemoryContext caller = CurrentMemoryContext;

	baton_own_transaction_start();
	baton_login_take_snapshot();
	MemoryContextSwitchTo(caller);
	baton_connect_check();
	unpooled_startup(record);
	*login_triggers = baton_login_triggers_exist();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	baton_opening_notices_send(notices);
	unpooled_report(reported);
}

uint32
baton_context_greet(const BatonSessionRecord *record, StringInfo notices,
					StringInfo reported, bool *login_triggers)
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		lasts;

	if (unlikely(baton_unpooled()))
	{
		greet_unpooled(record, notices, reported, login_triggers);
		return BATON_GREETING_NEVER;
	}
	session_comes(record);
	BatonPlaced.context.session = record->id;
	BatonPlaced.context.version = 0;
	baton_reset_follow_reload();
	baton_params_forget();
	baton_reset_prepare_greeting();
	sort_out(record);
	baton_temporary_install(false);

	/*
	 * As InitPostgres (postinit.c) does: some check hooks look at catalogs,
	 * and those of the transaction's own parameters check for a snapshot.
	 */
	baton_own_transaction_start();
	baton_login_take_snapshot();
	MemoryContextSwitchTo(caller);
	baton_connect_check();
	lasts = baton_reset_greet(&startup);
	/* each login has to fire them */
	*login_triggers = baton_login_triggers_exist();
	if (*login_triggers)
		lasts = BATON_GREETING_NEVER;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	install_rest(record);
	baton_opening_notices_send(notices);
	baton_report_greet(reported);
	return lasts;
}

BATON_STOP_POINT void
baton_context_install(const BatonSessionRecord *record)
{
	if (unlikely(baton_unpooled()))
	{
		unpooled_install(record);
		return;
	}
	session_comes(record);
	baton_reset_follow_reload();
	if (record->context_version == 0 ||
		record->context_version != BatonPlaced.context.version ||
		record->id != BatonPlaced.context.session)
	{
		BatonPlaced.context.session = record->id;
		BatonPlaced.context.version = 0;
		sort_out(record);
		baton_params_make_room(&parameters);
		baton_reset_install(&resets);
		baton_params_install(&parameters);
		baton_temporary_install(has_temporary);
		baton_report_install(reported_entry);
	}
	install_rest(record);
	BatonPlaced.context.version = record->context_version;
}

BATON_STOP_POINT bool
baton_context_capture(uint64 session)
{
	bool		changed;

	/* never while the backend is unpooled: the session stays */
	Assert(session == BatonPlaced.context.session);
	baton_reset_follow_reload();
	changed = baton_params_capture();
	if (changed)
		baton_notice_settings();
	changed |= baton_report_capture();
	changed |= baton_statements_capture(session);
	changed |= baton_unnamed_capture(session);
	changed |= baton_sequences_capture(session);
	changed |= baton_temporary_capture();
	if (changed)
		BatonPlaced.context.version = 0;
	return changed;
}

/* Forgets what install_rest() installs, and the temporary namespace. */
static void
forget_rest(uint64 session)
{
	baton_statements_forget(session);
	baton_unnamed_forget(session);
	baton_sequences_forget(session);
	baton_temporary_forget();
}

void
baton_context_forget(uint64 session)
{
	/* the backend ends with the session */
	if (unlikely(baton_unpooled()))
		return;
	forget_rest(session);
	if (session != BatonPlaced.context.session)
		return;
	BatonPlaced.context.session = 0;
	BatonPlaced.context.version = 0;
	baton_reset_neutralise();
	baton_params_forget();
}

void
baton_context_leave(void)
{
	baton_reset_follow_reload();
	if (BatonPlaced.context.session != 0)
		baton_context_forget(BatonPlaced.context.session);
	else
		/* kept for a session that has not come (baton_context_leave_resets) */
		baton_reset_neutralise();
	baton_temporary_install(false);
}

bool
baton_context_leave_resets(void)
{
	uint64		session = BatonPlaced.context.session;

	if (session == 0 || BatonPlaced.params.count > 0 || baton_plain_any() ||
		OidIsValid(GetCurrentRoleId()) || !baton_reset_items_may_stay())
		return false;
	baton_reset_follow_reload();
	forget_rest(session);
	baton_temporary_install(false);
	BatonPlaced.context.session = 0;
	BatonPlaced.context.version = 0;
	return true;
}

void
baton_context_reload(void)
{
	ConfigReloadPending = false;

	/*
	 * Within a transaction records are stacked, and nothing may be exchanged:
	 * the files are read in the server's own way, as in PostgresMain. The
	 * boundary notices that (baton_reset_follow_reload) and does the rest.
	 */
	if (IsTransactionOrTransactionBlock() || baton_unpooled())
		baton_files_read_by_server();
	else
		baton_reset_reload();
}

bool
baton_context_unnamed(uint64 session, const char *first_bytes, Size length,
					  StringInfo messages)
{
	return !baton_unpooled() && baton_unnamed_messages(session, first_bytes, length, messages);
}

void
baton_context_withhold_report(void)
{
	baton_report_withhold();
}

void
baton_context_begin(void)
{
	if (likely(!baton_unpooled()))
		baton_report_arm();
}

void
baton_context_note_message(char type)
{
	if (unlikely(baton_unpooled()))
		return;
	baton_report_note_message(type);
	baton_notice_message(type);
	/* a portal that is still open may call set_config() again, unnoticed */
	if (type == 'C' && BatonPlaced.environment.is_volatile && !baton_portals_may_run())
		baton_environment_is_stable();
	baton_unnamed_note_message(type);
}
