/*-------------------------------------------------------------------------
 *
 * parsed_list.c
 *		A parameter's list of names, taken apart once for each value.
 *
 * Lists are asked at boundaries and function look-ups, and change with a reload:
 * to compare the value with the one that was taken apart is all that it costs.
 * What was taken apart is this file's own, so that nothing depends on when the
 * server frees the former value of a parameter.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "parsed_list.h"

List *
baton_parsed_list(BatonParsedList *parsed, const char *value)
{
	MemoryContext caller;

	if (parsed->value != NULL && strcmp(parsed->value, value) == 0)
		return parsed->names;

	/* memory may run out at any point: nothing half made may be found */
	parsed->value = NULL;
	parsed->names = NIL;
	if (parsed->context == NULL)
		parsed->context = AllocSetContextCreate(TopMemoryContext, "pg_baton parsed list",
												ALLOCSET_SMALL_SIZES);
	MemoryContextReset(parsed->context);
	caller = MemoryContextSwitchTo(parsed->context);
	/* a list that cannot be read lists what could be read of it */
	(void) parsed->split(pstrdup(value), ',', &parsed->names);
	parsed->value = pstrdup(value);
	MemoryContextSwitchTo(caller);
	return parsed->names;
}

bool
baton_parsed_list_has(BatonParsedList *parsed, const char *value, const char *name)
{
	ListCell   *cell;

	if (name == NULL)
		return false;
	foreach(cell, baton_parsed_list(parsed, value))
	{
		if (strcmp(name, (const char *) lfirst(cell)) == 0)
			return true;
	}
	return false;
}
