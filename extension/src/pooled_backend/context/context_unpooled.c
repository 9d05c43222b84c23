/*-------------------------------------------------------------------------
 *
 * context_unpooled.c
 *		The session context in a backend that keeps one session for life.
 *
 * Problem: a check has failed (self_check.c), and what the session context is
 * put in place and captured by must not be used.  Clients shall be served.
 *
 * Decision: the backend takes one session, while it is as it was started, and
 * exits with it.  So nothing has to be undone or captured, and the session's
 * startup options can be applied as a starting backend does it
 * (process_startup_options in postinit.c): by SetConfigOption, which makes them
 * what RESET goes back to.  Settings of role and database the backend has from
 * its own start.
 *
 * Only what the server exports is used here.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "arena.h"
#include "context_guc.h"
#include "context_unpooled.h"
#include "guc_value.h"
#include "majors.h"
#include "own_transaction.h"

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

void
baton_unpooled_startup(const BatonSessionRecord *record)
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

void
baton_unpooled_report(StringInfo reported)
{
	struct config_generic **records;
	int			count;

	/* the dispatcher was told at this backend's start, the client nothing yet */
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
 * Another backend greeted it, or the dispatcher did, and what its startup
 * options were is in its RESET items (context_reset.c has their form).
 */
void
baton_unpooled_install(const BatonSessionRecord *record)
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

		/* a role's value goes on after the text's end, which pnstrdup finds */
		if (entry->kind == BATON_KIND_RESET && entry->value_length > 2 &&
			(GucSource) (uint8) value[0] == PGC_S_CLIENT)
			apply(entry, value + 2, entry->value_length - 2, context);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}
