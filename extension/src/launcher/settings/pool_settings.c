/*-------------------------------------------------------------------------
 *
 * pool_settings.c
 *		What ALTER ROLE, ALTER DATABASE and the configuration set for a pool
 *		and for a backend's start.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tupdesc.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "baton_shared.h"
#include "catalog_watch.h"
#include "dispatcher_link.h"
#include "majors.h"
#include "parameters.h"
#include "pg_catalogs.h"
#include "pg_guc.h"
#include "pg_roles.h"
#include "pool_settings.h"

/* ----------------------------------------------------------------
 *		The rows of pg_db_role_setting, for a process without a database.
 *
 * The catalog has no cache, and the launcher, which is connected to no
 * database, cannot open it: its relcache entry would have to be made from
 * pg_class.  But the catalog is a mapped relation (relmapper.c), so its file
 * is known without that, and its pages are read directly.
 *
 * The table is small: a row for each role and database that has settings.
 */

static void
scan_page(Buffer buffer, Snapshot snapshot,
		  void (*visit) (HeapTuple row, void *argument), void *argument)
{
	Page		page = BufferGetPage(buffer);

	for (OffsetNumber i = FirstOffsetNumber; i <= PageGetMaxOffsetNumber(page); i++)
	{
		ItemId		item = PageGetItemId(page, i);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(item))
			continue;
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
		tuple.t_len = ItemIdGetLength(item);
		tuple.t_tableOid = DbRoleSettingRelationId;
		ItemPointerSet(&tuple.t_self, BufferGetBlockNumber(buffer), i);
		if (HeapTupleSatisfiesVisibility(&tuple, snapshot, buffer))
			visit(&tuple, argument);
	}
}

/*
 * Calls `visit` for each row that a new backend would see.  In a transaction.
 * The row lies in a locked page: `visit` must not read a catalog.
 */
static void
settings_scan(void (*visit) (HeapTuple row, void *argument), void *argument)
{
	Snapshot	snapshot;
	BlockNumber blocks;

	/* against truncation; receives invalidations of the map, too */
	LockRelationOid(DbRoleSettingRelationId, AccessShareLock);
	blocks = baton_shared_catalog_size(DbRoleSettingRelationId);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (BlockNumber i = 0; i < blocks; i++)
	{
		Buffer		buffer = baton_shared_catalog_read(DbRoleSettingRelationId, i);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		scan_page(buffer, snapshot, visit, argument);
		UnlockReleaseBuffer(buffer);
	}
	UnregisterSnapshot(snapshot);
	UnlockRelationOid(DbRoleSettingRelationId, AccessShareLock);
}

/* ----------------------------------------------------------------
 *		Noticing on a standby changes of what a backend reads only when it
 *		starts.
 *
 * Problem: the transactions in which catalog_watch.c sees changes of roles or
 * their settings run on the primary.  On the standby the startup process
 * replays them, and runs none of this code, so older backends would go on to
 * serve new clients.
 *
 * Decision: on a standby the launcher is asked about each client that logs in
 * (login.c allows no answer to be kept there).  Before it answers, it
 * compares the rows of pg_db_role_setting that a new backend would see with
 * those of the last time.
 */

/*
 * Was this a standby at the last look?  The first look after a promotion still
 * counts.
 */
static bool was_standby = false;

static uint64 last_fingerprint = 0;

static void
add_row(HeapTuple tuple, void *argument)
{
	*(uint64 *) argument += baton_settings_row_hash(tuple);
}

/* A hash of the rows of pg_db_role_setting, made as in catalog_watch.c. */
static uint64
settings_fingerprint(void)
{
	uint64		fingerprint = 0;

	settings_scan(add_row, &fingerprint);
	return fingerprint;
}

void
baton_settings_standby_look(void)
{
	bool		is_standby = RecoveryInProgress();
	uint64		fingerprint;

	if (!is_standby && !was_standby)
		return;
	fingerprint = settings_fingerprint();
	if (fingerprint != last_fingerprint || is_standby != was_standby)
		baton_role_settings_changed(InvalidOid, InvalidOid);
	last_fingerprint = fingerprint;
	was_standby = is_standby;
}

/* ----------------------------------------------------------------
 *		What backends read from the configuration only when they start.
 *
 * A client that connects after a reload expects the new values of all
 * parameters.  A pooled backend reloads like any other, so it has most of
 * them.  But
 * - only the postmaster takes over parameters of context backend and
 *   superuser-backend, for later backends (set_config_option in guc.c);
 * - libraries that are preloaded into a session are loaded once
 *   (process_session_preload_libraries in miscinit.c);
 * - temp_buffers is fixed once the process has local buffers (pg_guc.c);
 * - client_encoding is not changed in a running backend outside a transaction
 *   (check_client_encoding in variable.c).
 *
 * When the files give another value of one of these, the dispatcher is told,
 * and new clients are served by backends that are started from then on.
 *
 * The launcher's own values do not tell, since it is a running process as
 * well.  So the files are parsed once more, as in ProcessConfigFileInternal;
 * the last mention of a name wins.
 */

bool
baton_counts_at_start(const struct config_generic *record)
{
	return record->context == PGC_BACKEND || record->context == PGC_SU_BACKEND ||
		baton_guc_is_of_process(record) ||
		strcmp(record->name, "session_preload_libraries") == 0 ||
		strcmp(record->name, "local_preload_libraries") == 0;
}

char *
baton_start_settings(void)
{
	ConfigVariable *head = NULL;
	ConfigVariable *tail = NULL;
	StringInfoData text;

	initStringInfo(&text);

	/* the postmaster has logged the errors in the files */
	(void) ParseConfigFile(ConfigFileName, true, NULL, 0, 0, DEBUG2, &head, &tail);
	(void) ParseConfigFile(PG_AUTOCONF_FILENAME, false, NULL, 0, 0, DEBUG2, &head, &tail);

	for (const ConfigVariable *item = head; item != NULL; item = item->next)
	{
		const struct config_generic *record;
		bool		is_last = true;

		if (item->name == NULL || item->value == NULL)
			continue;
		record = baton_guc_find(item->name);
		if (record == NULL ||
			!(baton_counts_at_start(record) || strcmp(record->name, "client_encoding") == 0))
			continue;
		for (const ConfigVariable *later = item->next; later != NULL && is_last; later = later->next)
			is_last = later->name == NULL || baton_guc_compare_names(later->name, item->name) != 0;
		if (is_last)
			appendStringInfo(&text, "%s=%s\n", item->name, item->value);
	}
	FreeConfigVariables(head);
	return text.data;
}

/* ----------------------------------------------------------------
 *		What ALTER ROLE and ALTER DATABASE set for a pool.
 *
 * A pool's limits are parameters, set as any others for a role, a database,
 * or a role in a database, and with the same precedence: that of
 * process_settings() in postinit.c, which a new backend follows.  But they
 * must count where no backend of the pool has been started yet, and for
 * running pools as soon as they change.  So the dispatcher asks the launcher,
 * and again whenever catalog_watch.c has noticed a change.  A value that no
 * row sets comes from the configuration.
 *
 * A role may add settings of its own to its row, and so make it as long as it
 * likes. pg_catalogs.c reads a row that is stored out of line.  A row that is
 * too long, or cannot be read, counts as setting the strictest limits, and
 * the log says so.
 */

#define NO_ROOM_WAIT_MS 20

int			baton_pool_max_backends;
int			baton_pool_min_backends;
int			baton_pool_max_sessions;
int			baton_pool_mode;
int			baton_pool_weight;
int			baton_pool_reserve;
int			baton_pool_memory_kb;

const struct config_enum_entry baton_pool_modes[] = {
	{"shared", BATON_MODE_SHARED, false},
	{"dedicated", BATON_MODE_DEDICATED, false},
	{"native", BATON_MODE_NATIVE, false},
	{NULL, 0, false}
};

typedef struct PoolSetting
{
	const char *name;
	int		   *configured;
	const struct config_enum_entry *options;	/* NULL: an integer */
	int			flags;			/* GUC_UNIT_* */
} PoolSetting;

/* In the order of the answer. */
static const PoolSetting settings[] =
{
#define BATON_POOL_SETTING(name, variable, options, flags) \
	{"pg_baton." #name, &variable, options, flags},
#include "pool_settings.inc"
#undef BATON_POOL_SETTING
};

#define SETTINGS lengthof(settings)

/* A longer row is not searched: that would delay all logins. */
#define LONGEST_ROW (64 * 1024)

/*
 * The values assumed for such a row.  Its other settings are ignored: their
 * loss restricts no role.
 */
static const struct
{
	int		   *configured;
	int			value;
}			strictest[] =

{
	{&baton_pool_max_backends, 1},
	{&baton_pool_min_backends, 0},
	{&baton_pool_max_sessions, 0},
	{&baton_pool_weight, 1},
	{&baton_pool_reserve, 0},
	{&baton_pool_memory_kb, 1024},
};

/* The role and database of a question, and the values found for them. */
typedef struct Search
{
	Oid			role;
	Oid			database;
	TupleDesc	description;
	List	   *rows;			/* copies of the rows that apply */
	int			values[SETTINGS];
	uint32		sources[SETTINGS];	/* BATON_SOURCE_*: the greater, the more
									 * specific */
	bool		has_own_start;	/* the role has a setting that only a starting
								 * backend reads */
} Search;

static bool
read_value(const PoolSetting *setting, const char *text, int *value)
{
	if (setting->options == NULL)
		return parse_int(text, value, setting->flags, NULL);
	for (const struct config_enum_entry *option = setting->options; option->name != NULL; option++)
	{
		if (pg_strcasecmp(text, option->name) == 0)
		{
			*value = option->val;
			return true;
		}
	}
	return false;
}

static void
read_setting(Search *search, const char *text, uint32 source)
{
	const char *value = strchr(text, '=');

	for (int i = 0; value != NULL && i < BATON_START_ONLY_COUNT; i++)
	{
		size_t		length = strlen(baton_start_only[i]);

		search->has_own_start |= (size_t) (value - text) == length &&
			source >= BATON_SOURCE_USER &&
			pg_strncasecmp(text, baton_start_only[i], length) == 0;
	}
	for (int i = 0; value != NULL && i < (int) SETTINGS; i++)
	{
		size_t		length = strlen(settings[i].name);
		int			number;

		/* names of parameters are case-insensitive (guc_name_compare) */
		if ((size_t) (value - text) == length && source > search->sources[i] &&
			pg_strncasecmp(text, settings[i].name, length) == 0 &&
			read_value(&settings[i], value + 1, &number))
		{
			search->values[i] = number;
			search->sources[i] = source;
		}
	}
}

/*
 * Does the row apply to the role and database, and how specifically?  Ranked
 * as in process_settings().
 */
static bool
is_about(Form_pg_db_role_setting row, const Search *search, uint32 *source)
{
	bool		of_role = row->setrole != InvalidOid;
	bool		of_database = row->setdatabase != InvalidOid;

	if ((of_role && row->setrole != search->role) ||
		(of_database && row->setdatabase != search->database))
		return false;
	if (of_role)
		*source = of_database ? BATON_SOURCE_DATABASE_USER : BATON_SOURCE_USER;
	else
		*source = of_database ? BATON_SOURCE_DATABASE : BATON_SOURCE_GLOBAL;
	return true;
}

/*
 * The source of the launcher's own value, which applies to all roles and
 * databases.
 */
static uint32
configured_source(const PoolSetting *setting)
{
	struct config_generic *record = baton_guc_find(setting->name);

	if (record == NULL || record->source == PGC_S_DEFAULT)
		return BATON_SOURCE_DEFAULT;
	return record->source == PGC_S_ARGV ? BATON_SOURCE_COMMAND_LINE : BATON_SOURCE_FILE;
}

/* Copies the row, to be read when the page is no longer locked. */
static void
keep_row(HeapTuple row, void *argument)
{
	Search	   *search = argument;
	uint32		source;

	if (is_about((Form_pg_db_role_setting) GETSTRUCT(row), search, &source))
		search->rows = lappend(search->rows, heap_copytuple(row));
}

/* The row's settings, or NULL if they cannot be searched. */
static ArrayType *
row_settings(Datum stored)
{
	struct varlena *value = (struct varlena *) DatumGetPointer(stored);

	if (toast_raw_datum_size(stored) > LONGEST_ROW)
		return NULL;
	if (VARATT_IS_EXTERNAL(value))
		value = baton_shared_toast_fetch(value, PgDbRoleSettingToastTable,
										 PgDbRoleSettingToastIndex);
	return value == NULL ? NULL : DatumGetArrayTypeP(PointerGetDatum(value));
}

static void
set_strictest(Search *search, const FormData_pg_db_role_setting *row, uint32 source)
{
	ereport(LOG,
			(errmsg("settings of role %u in database %u are too long, so no further sessions of theirs are let in on pg_baton's port",
					row->setrole, row->setdatabase),
			 errdetail("Limits of a pool may be among more than %d bytes of settings.", LONGEST_ROW),
			 errhint("Make fewer or shorter settings by ALTER ROLE or ALTER DATABASE.")));
	for (int i = 0; i < (int) SETTINGS; i++)
	{
		for (int n = 0; n < (int) lengthof(strictest); n++)
		{
			if (settings[i].configured == strictest[n].configured && source > search->sources[i])
			{
				search->values[i] = strictest[n].value;
				search->sources[i] = source;
			}
		}
	}
}

static void
look_at_row(HeapTuple row, Search *search)
{
	Form_pg_db_role_setting form = (Form_pg_db_role_setting) GETSTRUCT(row);
	ArrayType  *array;
	uint32		source;
	bool		is_null;
	Datum		stored;
	Datum	   *texts;
	int			count;

	stored = heap_getattr(row, Anum_pg_db_role_setting_setconfig,
						  search->description, &is_null);
	if (is_null || !is_about(form, search, &source))
		return;
	array = row_settings(stored);
	if (array == NULL)
	{
		set_strictest(search, form, source);
		return;
	}
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &texts, NULL, &count);
	for (int i = 0; i < count; i++)
		read_setting(search, TextDatumGetCString(texts[i]), source);
}

static void
search_settings(Search *search)
{
	Snapshot	snapshot;
	ListCell   *cell;

	/* an oid is stored as an int4 is, which is among the built-in entries */
	search->description = CreateTemplateTupleDesc(Natts_pg_db_role_setting);
	TupleDescInitBuiltinEntry(search->description, Anum_pg_db_role_setting_setdatabase,
							  "setdatabase", INT4OID, -1, 0);
	TupleDescInitBuiltinEntry(search->description, Anum_pg_db_role_setting_setrole,
							  "setrole", INT4OID, -1, 0);
	TupleDescInitBuiltinEntry(search->description, Anum_pg_db_role_setting_setconfig,
							  "setconfig", TEXTARRAYOID, -1, 0);
	for (int i = 0; i < (int) SETTINGS; i++)
	{
		search->values[i] = *settings[i].configured;
		search->sources[i] = configured_source(&settings[i]);
	}

	/*
	 * as old as the rows, or vacuum might remove their toasted values
	 * meanwhile
	 */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	search->rows = NIL;
	settings_scan(keep_row, search);
	foreach(cell, search->rows)
		look_at_row((HeapTuple) lfirst(cell), search);
	list_free_deep(search->rows);
	UnregisterSnapshot(snapshot);
}

bool
baton_pool_is_native(Oid role, Oid database, int32 *max_sessions, bool *is_apart)
{
	Search		search = {.role = role,.database = database};
	bool		is_native = false;

	search_settings(&search);
	for (int i = 0; i < (int) SETTINGS; i++)
	{
		if (settings[i].configured == &baton_pool_mode)
			is_native = search.values[i] == BATON_MODE_NATIVE;
		else if (settings[i].configured == &baton_pool_max_sessions)
			*max_sessions = search.values[i];
	}
	*is_apart = search.has_own_start || !baton_roles_can_change();
	return is_native;
}

/* Returns false if the server's table of locks is full. */
static bool
search_if_there_is_room(Search *search)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool there_is = true;

	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		XactIsoLevel = XACT_READ_COMMITTED;
		search_settings(search);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_OUT_OF_MEMORY)
			PG_RE_THROW();
		FlushErrorState();
		AbortCurrentTransaction();
		there_is = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return there_is;
}

/*
 * A role's locks may leave no room for this lock.  If the error ended the
 * launcher, no client could log in for the second until it is restarted; and
 * assumed strict limits would outlast the locks.  So this function waits.
 */
static void
search_when_there_is_room(Search *search)
{
	while (!search_if_there_is_room(search))
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 NO_ROOM_WAIT_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (ProcDiePending)
			proc_exit(1);
	}
}

bool
baton_pool_settings_answer(const char *bytes, Size length, StringInfo answer)
{
	Search		search;
	uint32		role;
	uint32		database;

	if (length != sizeof(role) + sizeof(database))
		return false;
	memcpy(&role, bytes, sizeof(role));
	memcpy(&database, bytes + sizeof(role), sizeof(database));
	memset(&search, 0, sizeof(search));
	search.role = role;
	search.database = database;

	search_when_there_is_room(&search);

	baton_wire_u32(answer, role);
	baton_wire_u32(answer, database);
	for (int i = 0; i < (int) SETTINGS; i++)
	{
		baton_wire_u32(answer, (uint32) search.values[i]);
		baton_wire_u32(answer, search.sources[i]);
	}
	return true;
}
