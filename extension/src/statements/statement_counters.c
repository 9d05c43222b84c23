/*-------------------------------------------------------------------------
 *
 * statement_counters.c
 *		The counters of prepared statements, by which plancache.c chooses
 *		between custom and generic plans.
 *
 * Counters are not items, they are numbers in CONTROL that the owner of the
 * session writes.  The slot of a new statement is not known before the
 * dispatcher has stored it, so counters that are not at their start by then
 * travel in an item of their own, "initial counters".  A slot that is all zero
 * was never written (generic_cost starts at -1).  After an install every slot
 * of the session has been written.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "statement_counters.h"
#include "statement_notice.h"
#include "utils/plancache.h"

/* The item that carries initial counters: an array of name and counters. */
#define INITIAL_KEY "statement_counters"

const BatonStatementCounter baton_fresh_counters = {-1, 0, 0, 0};
static const BatonStatementCounter never_written;

static void
get_counters(const CachedPlanSource *plan, BatonStatementCounter *counters)
{
	counters->generic_cost = plan->generic_cost;
	counters->total_custom_cost = plan->total_custom_cost;
	counters->num_custom_plans = plan->num_custom_plans;
	counters->num_generic_plans = plan->num_generic_plans;
}

static void
set_counters(CachedPlanSource *plan, const BatonStatementCounter *counters)
{
	plan->generic_cost = counters->generic_cost;
	plan->total_custom_cost = counters->total_custom_cost;
	plan->num_custom_plans = counters->num_custom_plans;
	plan->num_generic_plans = counters->num_generic_plans;
}

static bool
same_counters(const BatonStatementCounter *a, const BatonStatementCounter *b)
{
	return memcmp(a, b, sizeof(BatonStatementCounter)) == 0;
}

bool
baton_counters_is_item(const BatonEntry *entry)
{
	return entry->kind == BATON_KIND_OTHER &&
		entry->key_length == strlen(INITIAL_KEY) &&
		memcmp(baton_entry_key(entry), INITIAL_KEY, entry->key_length) == 0;
}

void
baton_counters_begin(KnownStatement *known, const BatonEntry *initial)
{
	BatonStatementCounter counters = baton_fresh_counters;

	if (initial != NULL)
	{
		const char *next = baton_entry_value(initial);
		const char *end = next + initial->value_length;

		while ((Size) (end - next) >= NAMEDATALEN + sizeof(counters))
		{
			if (strncmp(next, known->name, NAMEDATALEN) == 0)
				memcpy(&counters, next + NAMEDATALEN, sizeof(counters));
			next += NAMEDATALEN + sizeof(counters);
		}
	}
	set_counters(known->plan, &counters);
}

bool
baton_counters_slot_is_new(const KnownStatement *known)
{
	return known->counter == NO_COUNTER ||
		same_counters(baton_counter(known->counter), &never_written);
}

/*
 * Reads the counters of a statement of the session being installed, or writes
 * them if its slot has just been allotted.
 */
static void
load_counters(KnownStatement *known)
{
	if (known->plan == NULL)
		return;
	if (known->counter != NO_COUNTER)
	{
		if (baton_counters_slot_is_new(known))
			get_counters(known->plan, baton_counter(known->counter));
		else
			set_counters(known->plan, baton_counter(known->counter));
	}
	get_counters(known->plan, &known->written);
}

void
baton_counters_forget_slot(KnownStatement *known)
{
	if (known->counter != NO_COUNTER)
		*baton_counter(known->counter) = never_written;
	known->counter = NO_COUNTER;
	known->written = baton_fresh_counters;
}

void
baton_counters_install(StatementTable *table, uint64 session)
{
	BatonSessionSlot *slot = baton_session_slot(session);
	known_iterator iterator;
	KnownEntry *entry;

	if (table->counter_version != 0 && table->counter_version == slot->counter_version)
		return;
	if (table->known != NULL)
	{
		known_start_iterate(table->known, &iterator);
		while ((entry = known_iterate(table->known, &iterator)) != NULL)
			load_counters(entry->statement);
	}
	if (slot->counter_version == 0)
		slot->counter_version = 1;
	table->counter_version = slot->counter_version;
}

/* Writes a statement's counters; true if there is no slot for them yet. */
static bool
capture_counters(KnownStatement *known, bool *written)
{
	BatonStatementCounter now;

	if (known->plan == NULL)
		return false;
	get_counters(known->plan, &now);
	if (same_counters(&now, &known->written))
		return false;
	known->written = now;
	if (known->counter == NO_COUNTER)
		return true;
	*baton_counter(known->counter) = now;
	*written = true;
	return false;
}

/* Puts the counters of all statements whose slot is not known. */
static void
put_initial(StatementTable *table)
{
	StringInfoData value;
	known_iterator iterator;
	KnownEntry *entry;

	initStringInfo(&value);
	known_start_iterate(table->known, &iterator);
	while ((entry = known_iterate(table->known, &iterator)) != NULL)
	{
		KnownStatement *known = entry->statement;

		if (known->counter != NO_COUNTER || known->plan == NULL ||
			same_counters(&known->written, &baton_fresh_counters))
			continue;
		appendBinaryStringInfo(&value, known->name, NAMEDATALEN);
		appendBinaryStringInfo(&value, (char *) &known->written,
							   sizeof(known->written));
	}
	if (value.len > 0)
		baton_delta_put(BATON_KIND_OTHER, INITIAL_KEY, strlen(INITIAL_KEY),
						value.data, value.len, false, 0);
	else if (table->has_initial)
		baton_delta_delete(BATON_KIND_OTHER, INITIAL_KEY, strlen(INITIAL_KEY));
	table->has_initial = value.len > 0;
	pfree(value.data);
}

bool
baton_counters_capture(StatementTable *table, uint64 session, bool all)
{
	bool		without_slot = false;
	bool		written = false;

	if (table->known != NULL && (all || baton_notice.touched_all))
	{
		known_iterator iterator;
		KnownEntry *entry;

		known_start_iterate(table->known, &iterator);
		while ((entry = known_iterate(table->known, &iterator)) != NULL)
			without_slot |= capture_counters(entry->statement, &written);
	}
	else
		for (int i = 0; i < baton_notice.touched_count; i++)
			without_slot |= capture_counters(baton_notice.touched[i], &written);

	if (written)
	{
		BatonSessionSlot *slot = baton_session_slot(session);

		slot->counter_version++;
		table->counter_version = slot->counter_version;
	}
	if (table->known == NULL ||
		(!without_slot && !(all && table->has_initial)))
		return false;
	put_initial(table);
	return true;
}
