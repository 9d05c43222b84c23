/*-------------------------------------------------------------------------
 *
 * statement_capture.c
 *		Telling what a session has done to its named prepared statements.
 *
 * Only what was looked up can have changed (statement_held.c).  Each such name is
 * compared with what the session's context has of it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "context_statements.h"
#include "delta.h"
#include "pooled_state.h"
#include "prepared_table.h"
#include "statement_description.h"
#include "statement_held.h"
#include "statement_notice.h"
#include "statement_settings.h"
#include "utils/memutils.h"

/* Puts a statement that is new, or was analysed again under other settings. */
static void
put(HeldStatement *held, bool changed)
{
	PreparedStatement *statement = baton_table_find(held->name, held->hash);
	BatonStatementCounter counters;
	StringInfoData value;
	MemoryContext caller;

	held->in_context = true;
	held->is_new = false;
	held->counter = BATON_NO_COUNTER;
	held->counter_due = true;
	held->prepare_time = statement->prepare_time;
	baton_counters_get(held->plan, &held->spared, &counters);
	held->written = counters;
	if (changed && held->value != NULL)
	{
		pfree(held->value);
		held->value = NULL;
	}

	if (!baton_statement_is_describable(held->plan))
	{
		baton_delta_give_up();
		return;
	}
	if (held->value == NULL)
	{
		caller = MemoryContextSwitchTo(BatonPlaced.held.memory);
		initStringInfo(&value);
		baton_statement_describe(&value, held->plan, statement->from_sql);
		held->value = value.data;
		held->value_length = value.len;
		MemoryContextSwitchTo(caller);
	}
	baton_delta_put(BATON_KIND_STATEMENT, held->name, strlen(held->name),
					held->value, held->value_length, &counters, held->prepare_time);
}

/* True if the delta has something; *written if counters were. */
static bool
capture(HeldStatement *held, bool *written)
{
	bool		changed;

	if (held->unready)
		return false;			/* its making has failed: nothing was done */
	if (held->plan == NULL)
	{
		PreparedStatement *statement = baton_table_find(held->name, held->hash);

		if (statement != NULL)
			baton_held_tie(held, statement->plansource);
		else if (!held->in_context)
			return false;
		else
		{
			baton_delta_delete(BATON_KIND_STATEMENT, held->name,
							   strlen(held->name));
			held->in_context = false;
			held->counter_due = false;
			return true;
		}
	}
	changed = baton_settings_changed(held->plan);
	if (held->is_new || changed ||
		(held->counter_due && baton_counters_changed(held->plan, &held->spared, &held->written)))
	{
		put(held, changed);
		return true;
	}
	if (baton_counters_changed(held->plan, &held->spared, &held->written))
	{
		baton_counters_store(held->plan, &held->spared, held->counter,
							 &held->written);
		*written = true;
	}
	return false;
}

bool
baton_statements_capture(uint64 session)
{
	dlist_iter	iter;
	bool		changed = false;
	bool		written = false;

	/* these change what was not looked up, too */
	if (BatonServed.notice.discards_plans ||
		(BatonServed.notice.invalidates && baton_common_lost_any()))
		baton_held_look_up_described();
	baton_notice_reset();
	dlist_foreach(iter, &BatonPlaced.held.list)
		changed |= capture(dlist_container(HeldStatement, node, iter.cur),
						   &written);
	baton_statements_captured(changed, written);
	return changed;
}
