/*-------------------------------------------------------------------------
 *
 * statement_known.c
 *		What is known of the statements of a session's table.
 *
 * A KnownStatement describes one statement of one table as the dispatcher has
 * it.  It outlives the plan, whose death is told by a reset callback on its
 * context, and so tells what has been dropped; the table's entry for it is
 * prepare.c's alone.  Known statements live until their table is emptied.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "statement_counters.h"
#include "statement_known.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

uint64		baton_known_pass = 0;

static MemoryContext known_context = NULL;

void
baton_known_attach(void)
{
	known_context = AllocSetContextCreate(TopMemoryContext,
										  "pg_baton known statements",
										  ALLOCSET_DEFAULT_SIZES);
}

static void
known_plan_gone(void *argument)
{
	((KnownStatement *) argument)->plan = NULL;
}

/* Ties a known statement to its plan.  It must outlive the plan. */
void
baton_known_tie(KnownStatement *known, CachedPlanSource *plan)
{
	MemoryContextCallback *callback;

	Assert(known->plan == NULL);
	callback = MemoryContextAlloc(plan->context, sizeof(MemoryContextCallback));
	callback->func = known_plan_gone;
	callback->arg = known;
	MemoryContextRegisterResetCallback(plan->context, callback);
	known->plan = plan;
}

KnownStatement *
baton_known_find(StatementTable *table, const char *name)
{
	char		key[NAMEDATALEN];
	KnownEntry *entry;

	if (table->known == NULL)
		return NULL;

	/* dynahash.c truncates keys in the same way */
	strlcpy(key, name, NAMEDATALEN);
	entry = known_lookup(table->known, key);
	return entry == NULL ? NULL : entry->statement;
}

KnownStatement *
baton_known_add(StatementTable *table, const char *name)
{
	KnownStatement *known;
	KnownEntry *entry;
	bool		found;

	if (table->known == NULL)
		table->known = known_create(known_context, 4, NULL);
	known = MemoryContextAllocZero(known_context, sizeof(KnownStatement));
	strlcpy(known->name, name, NAMEDATALEN);
	known->counter = NO_COUNTER;
	known->written = baton_fresh_counters;
	entry = known_insert(table->known, known->name, &found);
	Assert(!found);
	entry->statement = known;
	baton_table_count(table, table->known->members);
	return known;
}

/* Its plan must have gone. */
void
baton_known_remove(StatementTable *table, KnownStatement *known)
{
	Assert(known->plan == NULL);
	known_delete(table->known, known->name);
	pfree(known);
	baton_table_count(table, table->known->members);
}

/* Drops a statement of the table in place, and what is known of it. */
void
baton_known_drop(KnownStatement *known)
{
	if (known->plan != NULL)
		DropPreparedStatement(known->name, false);
	baton_known_remove(baton_table_in_place, known);
}

/* Drops whatever is in the table in place. */
void
baton_known_empty_table(void)
{
	StatementTable *table = baton_table_in_place;
	known_iterator iterator;
	KnownEntry *entry;

	DropAllPreparedStatements();
	if (table->known != NULL)
	{
		known_start_iterate(table->known, &iterator);
		while ((entry = known_iterate(table->known, &iterator)) != NULL)
			pfree(entry->statement);
		known_destroy(table->known);
		table->known = NULL;
	}
	baton_table_count(table, 0);
}

void
baton_known_for_plans(StatementTable *table, void (*callback) (CachedPlanSource *plan))
{
	known_iterator iterator;
	KnownEntry *entry;

	if (table->known == NULL)
		return;
	known_start_iterate(table->known, &iterator);
	while ((entry = known_iterate(table->known, &iterator)) != NULL)
		if (entry->statement->plan != NULL)
			callback(entry->statement->plan);
}
