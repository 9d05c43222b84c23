/*-------------------------------------------------------------------------
 *
 * statement_capture.c
 *		Telling what a session has done to its named prepared statements.
 *
 * What must be looked at is known from what was noticed (statement_notice.c):
 * nothing in the usual case, the statements touched, or all.  The table in
 * place is compared with what the dispatcher is known to have
 * (statement_known.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "context_statements.h"
#include "statement_counters.h"
#include "statement_description.h"
#include "statement_notice.h"
#include "statement_settings.h"

/*
 * Puts a statement of the table in place that is new, or was analysed again
 * under other settings.
 */
static void
put_statement(PreparedStatement *statement, KnownStatement *known)
{
	StringInfoData value;

	if (known == NULL)
		known = baton_known_add(baton_table_in_place, statement->stmt_name);
	if (known->plan == NULL)
		baton_known_tie(known, statement->plansource);
	(void) baton_settings_changed(known->plan);
	known->serial = 0;
	known->prepare_time = statement->prepare_time;
	known->seen = baton_known_pass;
	baton_counters_forget_slot(known);

	if (!baton_statement_is_describable(statement->plansource))
	{
		baton_delta_give_up();
		return;
	}
	initStringInfo(&value);
	baton_statement_describe(&value, statement->plansource, statement->from_sql);
	baton_delta_put(BATON_KIND_STATEMENT, known->name, strlen(known->name),
					value.data, value.len, true, statement->prepare_time);
	pfree(value.data);
}

/* True if the delta has something. */
static bool
capture_statements(uint64 session)
{
	HTAB	   *handle = baton_table_handle(baton_table_in_place);
	StatementTable *table = baton_table_in_place;
	HASH_SEQ_STATUS status;
	PreparedStatement *statement;
	bool		changed = false;

	if (table->session == 0)
	{
		if (hash_get_num_entries(handle) == 0)
			return false;
		baton_table_claim(table, session);
		table->parameters = baton_statements_parameters;
	}

	baton_known_pass++;
	hash_seq_init(&status, handle);
	while ((statement = hash_seq_search(&status)) != NULL)
	{
		KnownStatement *known = baton_known_find(table, statement->stmt_name);

		if (known != NULL && known->plan == statement->plansource &&
			!baton_settings_changed(known->plan))
		{
			known->seen = baton_known_pass;
			continue;
		}
		put_statement(statement, known);
		changed = true;
	}

	if (table->known != NULL)
	{
		known_iterator iterator;
		KnownEntry *entry;

		known_start_iterate(table->known, &iterator);
		while ((entry = known_iterate(table->known, &iterator)) != NULL)
		{
			KnownStatement *known = entry->statement;

			if (known->seen == baton_known_pass)
				continue;
			baton_delta_delete(BATON_KIND_STATEMENT, known->name,
							   strlen(known->name));
			baton_known_remove(table, known);
			changed = true;
		}
	}
	if (changed)
		baton_table_fingerprint(table, 0);
	return changed;
}

bool
baton_statements_capture(uint64 session)
{
	StatementTable *table;
	bool		changed = false;

	if (!baton_notice.statements && !baton_notice.counters &&
		!baton_notice.analysis && !baton_settings_touched &&
		!baton_notice.settings)
		return false;

	if (baton_notice.statements || baton_notice.analysis ||
		baton_settings_touched)
		changed = capture_statements(session);
	table = baton_table_in_place;
	if (baton_notice.settings && table->session != 0)
	{
		table->mixed = true;
		baton_table_fingerprint(table, 0);
	}
	changed |= baton_counters_capture(table, session, changed);
	if (changed)
		table->context_version = 0;
	baton_notice_reset();
	return changed;
}
