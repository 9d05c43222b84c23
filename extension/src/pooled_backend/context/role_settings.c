/*-------------------------------------------------------------------------
 *
 * role_settings.c
 *		What ALTER ROLE SET and ALTER DATABASE SET say for a role.
 *
 * process_settings() (postinit.c, 15 to 18) reads them once, when a backend starts.  Here
 * they are read again: for a new session, of which some are names that are looked up
 * (reset_greet.c), or all if they have changed since the backend read them, and for a
 * backend that becomes another role's (become.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "context_guc.h"
#include "control.h"
#include "opening_notices.h"
#include "parameters.h"
#include "pooled_state.h"
#include "reset_plain.h"
#include "role_settings.h"

/* The text of such a setting as the backend was started with it; NULL: it had none. */
static char *own_start_only[BATON_START_ONLY_COUNT];

/* A startup option of all its sessions counts before any setting. */
static bool is_startup_option[BATON_START_ONLY_COUNT];

/* control's marks before the backend read its settings. */
static uint32 marks_read[BATON_SETTINGS_MARKS];

/* As ApplySetting (pg_db_role_setting.c). */
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

void
baton_role_settings_each(Oid role, void (*each) (const char *name, const char *text,
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

/* Being read. */
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
	baton_role_settings_each(role, add_found);
	return found;
}

/* ---- what only a start takes -------------------------------------------- */

/*
 * Does a setting of this source count for what a start takes?  A role that has any of its
 * own does not share backends with others (is_apart, in pool_settings.c): what it is given
 * later counts for its next logins.
 */
static bool
counts_at_start(GucSource source)
{
	return BatonSelf.is_apart || source == PGC_S_GLOBAL || source == PGC_S_DATABASE;
}

/* The text of the one that counts; NULL: there is none. */
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

/* As the value is shown: of two texts that mean the same the same one. */
static const char *
canonical(const char *name, const char *text)
{
	int			blocks;

	if (text !=NULL && strcmp(name, "temp_buffers") == 0 &&
		parse_int(text, &blocks, GUC_UNIT_BLOCKS, NULL))
		return psprintf("%d", blocks);
	return text;
}

/* What the parameter has from its role's or database's settings. */
static const char *
setting_of(struct config_generic *record)
{
	if (record->reset_source < PGC_S_GLOBAL || record->reset_source > PGC_S_DATABASE_USER)
		return NULL;
	if (record->vartype == PGC_INT)
		return psprintf("%d", ((struct config_int *) record)->reset_val);
	return ((struct config_string *) record)->reset_val;
}

/* As the start has read them: the catalog may say something else by now. */
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

/* ---- how old they are --------------------------------------------------- */

void
baton_role_settings_note(void)
{
	/* which of them concern it is not known before it has logged in */
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

/* ---- the backend's own become others ------------------------------------ */

void
baton_role_settings_apply(const List *settings)
{
	ListCell   *cell;

	baton_opening_notices_begin_role();
	foreach(cell, settings)
	{
		const Setting *setting = lfirst(cell);

		/* what is in force is as it should be, and cannot be given twice */
		if (is_start_only(setting->name))
			continue;
		/* as ProcessGUCArray (guc.c) */
		baton_plain_expect(setting->name);
		(void) set_config_option(setting->name, setting->text, PGC_SUSET, setting->source,
								 GUC_ACTION_SET, true, 0, false);
	}
	baton_opening_notices_end_role();
	baton_plain_expect_no_more();
	baton_guc_report_touched = true;
}
