/*-------------------------------------------------------------------------
 *
 * context_statements.c
 *		The named prepared statements of a session, by SQL and by protocol.
 *
 * Each session that has statements has a table of its own in each backend that
 * served it (statement_table.c).  Putting a session in place exchanges tables;
 * if the session's context has changed elsewhere since, its items are compared
 * with what is known of the table, what is gone is dropped, and what is missing
 * is made (statement_make.c).  Sessions without statements share an empty
 * table.  A session new to this backend may take over the table of another
 * with the same statements and parameters, if that one has ended or this
 * backend keeps as many as it may, and if all its plans were made under just
 * these parameters: a plan keeps what parameters and role made of it, and a
 * session of its own would have planned by its own.
 *
 * Counters are statement_counters.c's, and what goes back to the dispatcher is
 * statement_capture.c's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "context_statements.h"
#include "context_unnamed.h"
#include "statement_counters.h"
#include "statement_description.h"
#include "statement_known.h"
#include "statement_make.h"
#include "statement_notice.h"
#include "statement_settings.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* What a look at a session's items told. */
typedef struct ItemScan
{
	uint32		statements;
	uint64		parameters;		/* a fingerprint of these alone */
	uint64		fingerprint;	/* of statements and parameters */
	const BatonEntry *initial;
} ItemScan;

uint64		baton_statements_parameters = 0;

static bool attached = false;
static MemoryContext work_context = NULL;

const char *
baton_statements_attach(void)
{
	const char *problem;

	if (attached)
		return NULL;
	problem = baton_table_attach();
	if (problem == NULL)
		problem = baton_unnamed_attach();
	if (problem == NULL)
		problem = baton_notice_attach();
	if (problem != NULL)
		return problem;
	baton_known_attach();
	work_context = AllocSetContextCreate(TopMemoryContext,
										 "pg_baton statement work",
										 ALLOCSET_DEFAULT_SIZES);
	attached = true;
	return NULL;
}

/* Drops a session's table; leaves the empty table in place. */
static void
discard_table(StatementTable *table)
{
	baton_table_place(table);
	baton_known_empty_table();
	if (table->session != 0)
	{
		baton_table_place(baton_table_empty());
		baton_table_recycle(table);
	}
}

static inline uint64
mix(uint64 number)
{
	number ^= number >> 33;
	number *= UINT64CONST(0xff51afd7ed558ccd);
	number ^= number >> 33;
	number *= UINT64CONST(0xc4ceb9fe1a85ec53);
	return number ^ (number >> 33);
}

/*
 * Counts the statements.  The fingerprint also takes in the parameters and the
 * configuration files, so that plans made under other settings are not taken
 * over.
 */
static void
scan_items(const BatonSessionRecord *record, ItemScan *scan)
{
	const BatonItem *items = baton_record_items(record);

	memset(scan, 0, sizeof(*scan));
	scan->parameters = mix(PgReloadTime);
	for (uint32 i = 0; i < record->item_count; i++)
	{
		const BatonEntry *entry = baton_entry(items[i].entry);

		switch (entry->kind)
		{
			case BATON_KIND_STATEMENT:
				scan->statements++;
				scan->fingerprint += mix(entry->serial);
				break;
			case BATON_KIND_PARAMETER:
			case BATON_KIND_RESET:
				if (entry->key_length != strlen("application_name") ||
					pg_strncasecmp(baton_entry_key(entry), "application_name",
								   entry->key_length) != 0)
					scan->parameters += mix(~entry->serial);
				break;
			case BATON_KIND_OTHER:
				if (baton_counters_is_item(entry))
					scan->initial = entry;
				break;
			default:
				break;
		}
	}
	if (scan->statements > 0)
		scan->fingerprint += scan->parameters;
}

/* Is the plan in the table in place what the entry describes? */
static bool
same_statement(KnownStatement *known, const BatonEntry *entry)
{
	PreparedStatement *statement;
	StringInfoData value;
	bool		result;

	if (known->plan == NULL)
		return false;
	if (known->serial != 0)
		return known->serial == entry->serial;

	statement = FetchPreparedStatement(known->name, true);
	initStringInfo(&value);
	baton_statement_describe(&value, known->plan, statement->from_sql);
	result = (uint32) value.len == entry->value_length &&
		memcmp(value.data, baton_entry_value(entry), value.len) == 0;
	pfree(value.data);
	return result;
}

/* Makes a statement in the table in place. */
static void
make_statement(const char *name, const BatonItem *item)
{
	const BatonEntry *entry = baton_entry(item->entry);
	CachedPlanSource *plan;
	KnownStatement *known;
	bool		from_sql;

	plan = baton_statement_make(baton_entry_value(entry), entry->value_length,
								&from_sql);
	if (plan == NULL)
	{
		ereport(LOG,
				(errmsg("pg_baton could not make prepared statement \"%s\" of a session",
						name)));
		return;
	}
	StorePreparedStatement(name, plan, from_sql);
	FetchPreparedStatement(name, true)->prepare_time = item->aux;
	known = baton_known_add(baton_table_in_place, name);
	baton_known_tie(known, plan);
	known->serial = entry->serial;
	known->prepare_time = item->aux;
	known->counter = item->counter;
	known->seen = baton_known_pass;
}

typedef struct MissingStatement
{
	char		name[NAMEDATALEN];
	const BatonItem *item;
} MissingStatement;

static int
compare_missing(const void *a, const void *b)
{
	TimestampTz first = ((const MissingStatement *) a)->item->aux;
	TimestampTz second = ((const MissingStatement *) b)->item->aux;

	return first < second ? -1 : first > second ? 1 : 0;
}

/* Makes the table in place agree with the session's items. */
static void
reconcile(const BatonSessionRecord *record, const ItemScan *scan)
{
	StatementTable *table = baton_table_in_place;
	const BatonItem *items = baton_record_items(record);
	MissingStatement *missing;
	MemoryContext caller = MemoryContextSwitchTo(work_context);
	int			missing_count = 0;

	table->context_version = 0;
	if (table->statements == 0)
		table->mixed = false;
	else if (table->parameters != scan->parameters)
		table->mixed = true;
	table->parameters = scan->parameters;
	table->has_initial = scan->initial != NULL;
	baton_known_pass++;

	/* which are here? */
	missing = palloc(sizeof(MissingStatement) * Max(scan->statements, 1));
	for (uint32 i = 0; i < record->item_count; i++)
	{
		const BatonEntry *entry = baton_entry(items[i].entry);
		char		name[NAMEDATALEN] = {0};
		KnownStatement *known;

		if (entry->kind != BATON_KIND_STATEMENT)
			continue;
		memcpy(name, baton_entry_key(entry),
			   Min(entry->key_length, NAMEDATALEN - 1));
		known = baton_known_find(table, name);
		if (known != NULL && same_statement(known, entry))
		{
			known->seen = baton_known_pass;
			known->serial = entry->serial;
			known->counter = items[i].counter;
			if (known->prepare_time != items[i].aux ||
				baton_counters_slot_is_new(known))
			{
				/*
				 * Prepared anew elsewhere, another session's, no slot, or put
				 * again with what it had (analysed again, say): then the
				 * counters it has here are of before.
				 */
				FetchPreparedStatement(name, true)->prepare_time = items[i].aux;
				known->prepare_time = items[i].aux;
				baton_counters_begin(known, scan->initial);
			}
		}
		else
		{
			memcpy(missing[missing_count].name, name, NAMEDATALEN);
			missing[missing_count].item = &items[i];
			missing_count++;
		}
	}

	/* drop what the session has no more */
	if (table->known != NULL)
	{
		known_iterator iterator;
		KnownEntry *entry;

		known_start_iterate(table->known, &iterator);
		while ((entry = known_iterate(table->known, &iterator)) != NULL)
			if (entry->statement->seen != baton_known_pass)
				baton_known_drop(entry->statement);
	}

	/* in the order they were prepared in, for scans return equal hashes so */
	qsort(missing, missing_count, sizeof(MissingStatement), compare_missing);
	for (int i = 0; i < missing_count; i++)
	{
		KnownStatement *known;

		make_statement(missing[i].name, missing[i].item);
		known = baton_known_find(table, missing[i].name);
		if (known != NULL)
			baton_counters_begin(known, scan->initial);
	}

	baton_table_fingerprint(table, table->mixed ? 0 : scan->fingerprint);
	table->context_version = record->context_version;
	table->counter_version = 0;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(work_context);
}

/* A table for a session that has statements, but no table here. */
static StatementTable *
choose_table(uint64 session, const ItemScan *scan)
{
	StatementTable *table = baton_table_twin(scan->fingerprint);

	if (table != NULL &&
		(baton_table_full() ||
		 baton_session_slot(table->session)->id != table->session))
	{
		baton_table_claim(table, session);
		return table;
	}

	while (baton_table_full() && (table = baton_table_oldest()) != NULL)
		discard_table(table);

	table = baton_table_empty();
	baton_table_claim(table, session);
	return table;
}

void
baton_statements_install(const BatonSessionRecord *record)
{
	StatementTable *table = baton_table_find(record->id);

	baton_notice_reset();
	if (table == NULL || table->context_version != record->context_version ||
		record->context_version == 0)
	{
		ItemScan	scan;

		scan_items(record, &scan);
		baton_statements_parameters = scan.parameters;
		if (table == NULL && scan.statements == 0)
		{
			baton_table_place(baton_table_empty());
			return;
		}
		if (table == NULL)
			table = choose_table(record->id, &scan);
		baton_table_place(table);
		reconcile(record, &scan);
	}
	else
		baton_table_place(table);
	baton_table_used(table);
	if (table->discards != baton_discards)
	{
		/* another session has discarded the plans of this backend */
		table->discards = baton_discards;
		baton_known_for_plans(table, baton_settings_rearm);
	}

	baton_counters_install(table, record->id);
	baton_notice_reset();
}

void
baton_statements_forget(uint64 session)
{
	StatementTable *table = baton_table_find(session);

	/* statements that were never captured are in a table of nobody */
	if (baton_table_in_place->session == 0)
		baton_known_empty_table();

	/*
	 * A captured table may serve a session with the same statements.  If the
	 * session leaves in the middle of something, nothing of this was
	 * captured.
	 */
	if (table != NULL &&
		(table->fingerprint == 0 || baton_notice.statements ||
		 baton_notice.analysis || baton_notice.settings || baton_settings_touched))
		discard_table(table);
	baton_table_place(baton_table_empty());
	baton_notice_reset();
}
