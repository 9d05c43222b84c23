/*-------------------------------------------------------------------------
 *
 * context_placeholders.c
 *		Custom parameters of which only the session knows ("SET my.var").
 *
 * Problem: the first mention of a custom parameter adds a record to guc.c's
 * table of parameters, and nothing ever takes one out.  A client can tell a
 * parameter that exists and is empty from one that does not
 * (current_setting('my.var', true) is '' or NULL, SHOW gives '' or an error),
 * so the next session must not find it.
 *
 * So one that belongs to the session at hand is taken out of the table when
 * the session leaves (guc_table.h).  What the server itself has, by its
 * configuration files, stays.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "context_placeholders.h"

uint64		baton_placeholder_changes = 0;

static MemoryContext placeholder_context = NULL;

/* Names of the placeholders that are the server's own. */
static List *own_names = NIL;

const char *
baton_placeholders_attach(void)
{
	if (placeholder_context == NULL)
		placeholder_context = AllocSetContextCreate(TopMemoryContext,
													"pg_baton placeholders",
													ALLOCSET_SMALL_SIZES);
	return baton_guc_table_attach();
}

bool
baton_placeholder_is_own(const struct config_generic *record)
{
	ListCell   *cell;

	foreach(cell, own_names)
	{
		if (baton_guc_compare_names(lfirst(cell), record->name) == 0)
			return true;
	}
	return false;
}

void
baton_placeholders_note_own(bool all)
{
	struct config_generic **variables;
	MemoryContext old = MemoryContextSwitchTo(placeholder_context);
	int			count;

	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];

		if ((record->flags & GUC_CUSTOM_PLACEHOLDER) &&
			(all ? record->reset_source < PGC_S_GLOBAL :
			 record->reset_source == PGC_S_FILE) &&
			!baton_guc_is_removed(record) &&
			!baton_placeholder_is_own(record))
		{
			own_names = lappend(own_names, pstrdup(record->name));
			baton_placeholder_changes++;
		}
	}
	MemoryContextSwitchTo(old);
}

struct config_generic *
baton_placeholder_create(const char *name)
{
	struct config_generic *record = baton_guc_find(name);

	return record != NULL ? record : baton_guc_add_placeholder(name);
}

void
baton_placeholder_hide(struct config_generic *record)
{
	Assert(record->reset_source == PGC_S_DEFAULT);
	if (!baton_placeholder_is_own(record))
		baton_guc_remove_placeholder(record);
}
