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
 * What PostgreSQL 15 guarantees (guc.c): the table is one array of pointers,
 * sorted by name (guc_variables), which get_guc_variables() hands out and
 * GetNumConfigOptions() counts; find_option() knows a record by bsearch on its
 * name and by nothing else; a placeholder is a malloc'd config_string with the
 * flag GUC_CUSTOM_PLACEHOLDER, whose name is malloc'd as well
 * (add_placeholder_variable); a placeholder is shown neither by SHOW ALL nor by
 * pg_settings (GUC_NO_SHOW_ALL).
 *
 * Decision: a record that must not be seen gets a name that nobody can type
 * and moves to where that name sorts.  A hidden record is used again for the
 * next placeholder of whatever name, so that the table does not grow beyond
 * the most that one session had at a time.
 *
 * Invariants: a hidden record has no value; hidden_records lists all of them
 * and nothing else; every name is malloc'd, as guc.c's own are.
 * A hidden record is never replaced by a library's real variable, for none has
 * its name; so the pointers in the list stay valid.
 *
 * Limit: 16 and later keep the parameters in a hash table; this file does not
 * know that one yet and says so at attach.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "context_placeholders.h"
#include "guc_value.h"

/*
 * No client can send it where the encoding is checked, as 0xFE and 0xFF are
 * part of no valid UTF-8; in other encodings it would have to guess the
 * number, which is random, and each backend's own.
 */
#define HIDDEN_PREFIX "\xff\xfepg_baton.hidden_%016" INT64_MODIFIER "x_"

static MemoryContext placeholder_context = NULL;
static struct config_generic **hidden_records = NULL;
static int	hidden_count = 0;
static int	hidden_size = 0;
static uint64 hidden_names = 0;
static char hidden_prefix[64];
static Size hidden_prefix_length = 0;

uint64		baton_placeholder_changes = 0;

/*
 * Prefixes, with the separator, that libraries use but have not reserved, as
 * of the libraries that were loaded then (EstimateLibraryStateSpace).
 */
static List *free_prefixes = NIL;
static Size free_prefixes_for = 0;

/* Names of the placeholders that are the server's own. */
static List *own_names = NIL;

const char *
baton_placeholders_attach(void)
{
#if PG_VERSION_NUM >= 160000
	return "custom parameters cannot be kept apart on this version of PostgreSQL yet";
#else
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();

	if (placeholder_context == NULL)
	{
		uint64		number;

		placeholder_context = AllocSetContextCreate(TopMemoryContext,
													"pg_baton placeholders",
													ALLOCSET_SMALL_SIZES);
		if (!pg_strong_random(&number, sizeof(number)))
			return "a random number could not be had";
		hidden_prefix_length = snprintf(hidden_prefix, sizeof(hidden_prefix),
										HIDDEN_PREFIX, number);
	}

	for (int i = 1; i < count; i++)
	{
		if (baton_guc_compare_names(variables[i - 1]->name,
									variables[i]->name) >= 0)
			return "the server's table of parameters is not sorted as expected";
	}
	return NULL;
#endif
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
#if PG_VERSION_NUM < 160000
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();
	MemoryContext old = MemoryContextSwitchTo(placeholder_context);

	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];

		if ((record->flags & GUC_CUSTOM_PLACEHOLDER) &&
			(all ? record->reset_source < PGC_S_GLOBAL :
			 record->reset_source == PGC_S_FILE) &&
			!baton_placeholder_hidden(record) &&
			!baton_placeholder_is_own(record))
		{
			own_names = lappend(own_names, pstrdup(record->name));
			baton_placeholder_changes++;
		}
	}
	MemoryContextSwitchTo(old);
#endif
}

bool
baton_placeholder_hidden(const struct config_generic *record)
{
	Assert(hidden_prefix_length > 0);
	return (record->flags & GUC_CUSTOM_PLACEHOLDER) != 0 &&
		strncmp(record->name, hidden_prefix, hidden_prefix_length) == 0;
}

#if PG_VERSION_NUM < 160000

/* The next name that nobody can type; valid until the next call. */
static const char *
hidden_name(void)
{
	static char name[sizeof(hidden_prefix) + 24];

	snprintf(name, sizeof(name), "%s" UINT64_FORMAT, hidden_prefix, ++hidden_names);
	return name;
}

static void
remember_hidden(struct config_generic *record)
{
	if (hidden_count == hidden_size)
	{
		int			size = Max(16, hidden_size * 2);

		if (hidden_records == NULL)
			hidden_records = MemoryContextAlloc(placeholder_context,
												size * sizeof(*hidden_records));
		else
			hidden_records = repalloc(hidden_records,
									  size * sizeof(*hidden_records));
		hidden_size = size;
	}
	hidden_records[hidden_count++] = record;
}

/*
 * Adds a record to the table under a hidden name.  Asking whether a value
 * would be valid creates a placeholder (set_config_option_ext calls
 * find_option with create_placeholders); the name is one that find_option
 * accepts, and no library can have reserved its prefix, so nothing is said.
 */
static void
add_hidden_record(void)
{
	const char *name = hidden_name();
	struct config_generic *record;

	(void) set_config_option(name, "", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SET, false, ERROR, false);
	record = baton_guc_find(name);
	if (record == NULL)
		elog(ERROR, "could not make a custom parameter");
	remember_hidden(record);
}

/*
 * Gives the record another name and the place that the name sorts to.  A
 * placeholder's name is allocated as guc.c does it.
 */
static void
rename_record(struct config_generic *record, const char *new_name)
{
	struct config_generic **variables = get_guc_variables();
	char	   *name = baton_guc_strdup(new_name);
	int			count = GetNumConfigOptions();
	int			from = baton_guc_place(record->name);
	int			to = baton_guc_place(name);

	if (from >= count || variables[from] != record)
		elog(ERROR, "parameter \"%s\" is not in the table of parameters",
			 record->name);

	/* those between the two places move by one */
	if (to > from)
	{
		to--;
		memmove(&variables[from], &variables[from + 1],
				(to - from) * sizeof(*variables));
	}
	else
		memmove(&variables[to + 1], &variables[to],
				(from - to) * sizeof(*variables));
	baton_guc_free(unconstify(char *, record->name));
	record->name = name;
	variables[to] = record;
	baton_placeholder_changes++;
}
#endif

#if PG_VERSION_NUM < 160000

/* Does a library have real parameters whose names begin so? */
static bool
is_library_prefix(const char *name, Size length)
{
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();

	for (int i = 0; i < count; i++)
	{
		if (strncmp(variables[i]->name, name, length) == 0 &&
			!(variables[i]->flags & GUC_CUSTOM_PLACEHOLDER))
			return true;
	}
	return false;
}

/*
 * Has a library reserved the name's prefix (MarkGUCPrefixReserved in guc.c)?
 * Only find_option() knows, and says so by not adding a record.  One that it
 * adds stays, and so the question is asked once a prefix until the next
 * library comes, and only for the prefixes that libraries use.
 */
static bool
prefix_is_reserved(const char *name)
{
	const char *separator = strchr(name, GUC_QUALIFIER_SEPARATOR);
	Size		length = separator ? separator - name + 1 : 0;
	Size		libraries = EstimateLibraryStateSpace();
	struct config_generic *record;
	ListCell   *cell;
	MemoryContext old;

	if (libraries != free_prefixes_for)
	{
		list_free_deep(free_prefixes);
		free_prefixes = NIL;
		free_prefixes_for = libraries;
	}
	foreach(cell, free_prefixes)
	{
		const char *prefix = lfirst(cell);

		if (strlen(prefix) == length && strncmp(prefix, name, length) == 0)
			return false;
	}
	if (!is_library_prefix(name, length))
		return false;

	(void) set_config_option(name, "", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SET, false, DEBUG5, false);
	record = baton_guc_find(name);
	if (record == NULL)
		return true;
	baton_placeholder_hide(record);
	old = MemoryContextSwitchTo(placeholder_context);
	free_prefixes = lappend(free_prefixes, pnstrdup(name, length));
	MemoryContextSwitchTo(old);
	return false;
}
#endif

struct config_generic *
baton_placeholder_create(const char *name)
{
	struct config_generic *record = baton_guc_find(name);

	if (record != NULL)
		return record;

#if PG_VERSION_NUM < 160000
	if (prefix_is_reserved(name))
		return NULL;
	if (hidden_count == 0)
		add_hidden_record();
	record = hidden_records[--hidden_count];
	rename_record(record, name);
#endif
	return record;
}

void
baton_placeholder_hide(struct config_generic *record)
{
#if PG_VERSION_NUM < 160000
	Assert(record->flags & GUC_CUSTOM_PLACEHOLDER);
	Assert(record->reset_source == PGC_S_DEFAULT);

	if (baton_placeholder_is_own(record))
		return;
	/* either may run out of memory: none may be remembered under its own name */
	rename_record(record, hidden_name());
	remember_hidden(record);
#endif
}
