/*-------------------------------------------------------------------------
 *
 * pg_guc_table.c
 *		PostgreSQL's table of parameter records (guc.c): an array in 15, a
 *		hash table from 16 on. pg_guc.h declares what both provide.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

/* ----------------------------------------------------------------
 *		The server's table of parameter records, in PostgreSQL 15.
 *
 * What guc.c guarantees in 15: the table is one array of pointers, sorted by
 * name (guc_variables), which get_guc_variables() returns and
 * GetNumConfigOptions() counts; find_option() finds a record by bsearch on
 * its name and in no other way; a placeholder is a malloc'd config_string
 * with the flag GUC_CUSTOM_PLACEHOLDER, with a malloc'd name
 * (add_placeholder_variable); neither SHOW ALL nor pg_settings shows a
 * placeholder (GUC_NO_SHOW_ALL). guc.c never removes a record.
 *
 * So a placeholder that must be removed gets a name that no client can send,
 * and moves to where that name sorts.  Such a record is reused for the next
 * placeholder, of any name.  But a session's own SET makes guc.c create a new
 * record for each name that it does not find, and sort the whole table: after
 * 20,000 sessions with a parameter of their own each such SET would take 5
 * ms.  So the table counts as overgrown above MOST_REMOVED removed records,
 * and the backend ends.
 *
 * Invariants: a removed record has no value; removed_records lists all
 * removed records and nothing else; every name is malloc'd, as guc.c's own
 * are.  A library's real variable never replaces a removed record, because
 * none has its name; so the pointers in the list stay valid.
 */

#if PG_VERSION_NUM < 160000

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "pg_guc.h"
#include "pg_guc.h"
#include "pg_guc.h"

/*
 * Where the encoding is checked, no client can send this name, as 0xFE and
 * 0xFF are part of no valid UTF-8.  In other encodings a client would have to
 * guess the number, which is random and differs between backends.
 */
#define REMOVED_PREFIX "\xff\xfepg_baton.hidden_%016" INT64_MODIFIER "x_"

#define MOST_REMOVED 1000

static MemoryContext table_context = NULL;
static struct config_generic **removed_records = NULL;
static int	removed_count = 0;
static int	removed_size = 0;
static uint64 removed_names = 0;
static char removed_prefix[64];
static Size removed_prefix_length = 0;

/* A copy of the table as last seen, and its version. */
static struct config_generic **known = NULL;
static int	known_count = 0;
static int	known_size = 0;
static uint64 version = 0;

/*
 * Prefixes, with the separator, that libraries use but have not reserved,
 * valid for the libraries that were loaded then (EstimateLibraryStateSpace).
 */
static List *free_prefixes = NIL;
static Size free_prefixes_for = 0;

const char *
baton_guc_table_attach(void)
{
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();

	if (table_context == NULL)
	{
		uint64		number;

		table_context = AllocSetContextCreate(TopMemoryContext,
											  "pg_baton table of parameters",
											  ALLOCSET_SMALL_SIZES);
		if (!pg_strong_random(&number, sizeof(number)))
			return "a random number could not be had";
		removed_prefix_length = snprintf(removed_prefix, sizeof(removed_prefix),
										 REMOVED_PREFIX, number);
	}

	for (int i = 1; i < count; i++)
	{
		if (baton_guc_compare_names(variables[i - 1]->name,
									variables[i]->name) >= 0)
			return "the server's table of parameters is not sorted as expected";
	}
	return NULL;
}

/*
 * The first place in guc_variables with a name that does not sort before this
 * name.
 */
static int
place_of(const char *name)
{
	struct config_generic **variables = get_guc_variables();
	int			low = 0;
	int			high = GetNumConfigOptions();

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (baton_guc_compare_names(variables[middle]->name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct config_generic *
baton_guc_find(const char *name)
{
	struct config_generic **variables = get_guc_variables();
	int			place = place_of(name);

	if (place < GetNumConfigOptions() &&
		baton_guc_compare_names(variables[place]->name, name) == 0)
		return variables[place];
	return NULL;
}

struct config_generic **
baton_guc_records(int *count)
{
	*count = GetNumConfigOptions();
	return get_guc_variables();
}

uint64
baton_guc_table_version(void)
{
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();

	if (count == known_count &&
		memcmp(variables, known, count * sizeof(*known)) == 0)
		return version;

	if (count > known_size)
	{
		int			size = count + 64;

		if (known != NULL)
			pfree(known);
		known = NULL;
		known_count = known_size = 0;
		known = MemoryContextAlloc(table_context, size * sizeof(*known));
		known_size = size;
	}
	memcpy(known, variables, count * sizeof(*known));
	known_count = count;
	return ++version;
}

/* ---- placeholders ------------------------------------------------------ */

bool
baton_guc_is_removed(const struct config_generic *record)
{
	Assert(removed_prefix_length > 0);
	return (record->flags & GUC_CUSTOM_PLACEHOLDER) != 0 &&
		strncmp(record->name, removed_prefix, removed_prefix_length) == 0;
}

bool
baton_guc_table_is_overgrown(void)
{
	return removed_count > MOST_REMOVED;
}

/* The next name that no client can send; valid until the next call. */
static const char *
removed_name(void)
{
	static char name[sizeof(removed_prefix) + 24];

	snprintf(name, sizeof(name), "%s" UINT64_FORMAT, removed_prefix, ++removed_names);
	return name;
}

static void
remember_removed(struct config_generic *record)
{
	if (removed_count == removed_size)
	{
		int			size = Max(16, removed_size * 2);

		if (removed_records == NULL)
			removed_records = MemoryContextAlloc(table_context,
												 size * sizeof(*removed_records));
		else
			removed_records = repalloc(removed_records,
									   size * sizeof(*removed_records));
		removed_size = size;
	}
	removed_records[removed_count++] = record;
}

/*
 * Adds a record to the table under a hidden name.  Checking whether a value
 * would be valid creates a placeholder (set_config_option_ext calls
 * find_option with create_placeholders). find_option accepts the name, and no
 * library can have reserved its prefix, so nothing is logged.
 */
static void
add_removed_record(void)
{
	const char *name = removed_name();
	struct config_generic *record;

	(void) set_config_option(name, "", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SET, false, ERROR, false);
	record = baton_guc_find(name);
	if (record == NULL)
		elog(ERROR, "could not make a custom parameter");
	remember_removed(record);
}

/*
 * Renames the record and moves it to the place that the name sorts to.  A
 * placeholder's name is allocated as guc.c does it.
 */
static void
rename_record(struct config_generic *record, const char *new_name)
{
	struct config_generic **variables = get_guc_variables();
	char	   *name = baton_guc_strdup(new_name);
	int			count = GetNumConfigOptions();
	int			from = place_of(record->name);
	int			to = place_of(name);

	if (from >= count || variables[from] != record)
		elog(ERROR, "parameter \"%s\" is not in the table of parameters",
			 record->name);

	/* the records between the two places move by one */
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
	version++;					/* even if the place is the same */
}

/* Does a library have real parameters with this prefix? */
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
 * Only find_option() knows, and shows it by not adding a record.  A record
 * that it adds stays in the table; so this is tested once for each prefix
 * until the next library is loaded, and only for prefixes that libraries use.
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
	baton_guc_remove_placeholder(record);
	old = MemoryContextSwitchTo(table_context);
	free_prefixes = lappend(free_prefixes, pnstrdup(name, length));
	MemoryContextSwitchTo(old);
	return false;
}

struct config_generic *
baton_guc_add_placeholder(const char *name)
{
	struct config_generic *record;

	if (prefix_is_reserved(name))
		return NULL;
	if (removed_count == 0)
		add_removed_record();
	record = removed_records[--removed_count];
	rename_record(record, name);
	return record;
}

void
baton_guc_remove_placeholder(struct config_generic *record)
{
	Assert(record->flags & GUC_CUSTOM_PLACEHOLDER);

	/*
	 * either step may run out of memory: a record must not be remembered
	 * under its own name
	 */
	rename_record(record, removed_name());
	remember_removed(record);
}

/* ---- origins and reports ----------------------------------------------- */

void
baton_guc_set_origin(struct config_generic *record, GucSource source,
					 GucContext scontext, Oid srole)
{
	record->source = source;
	record->scontext = scontext;
	record->srole = srole;
}

void
baton_guc_look_for_report(struct config_generic *record)
{
	Assert(record->flags & GUC_REPORT);
	record->status |= GUC_NEEDS_REPORT;
}

/*
 * ReportChangedGUCOptions() returns at once unless report_needed is set, which
 * is private to guc.c and set whenever a reported parameter is set.  So this
 * function sets a parameter to its current value.
 */
void
baton_guc_look_for_reports(void)
{
	struct config_generic **variables = get_guc_variables();
	int			count = GetNumConfigOptions();
	struct config_generic *record = baton_guc_find("in_hot_standby");
	struct config_generic before;

	for (int i = 0; i < count; i++)
	{
		if (variables[i]->flags & GUC_REPORT)
			variables[i]->status |= GUC_NEEDS_REPORT;
	}
	before = *record;
	SetConfigOption("in_hot_standby",
					GetConfigOption("in_hot_standby", false, false),
					PGC_INTERNAL, PGC_S_OVERRIDE);

	/* the parameter's origin must not show that */
	record->source = before.source;
	record->reset_source = before.reset_source;
	record->scontext = before.scontext;
	record->reset_scontext = before.reset_scontext;
	record->srole = before.srole;
	record->reset_srole = before.reset_srole;
}

#endif							/* PG_VERSION_NUM < 160000 */

/* ----------------------------------------------------------------
 *		The server's table of parameter records, in PostgreSQL 16 and later.
 *
 * What guc.c guarantees in 16, 17 and 18:
 * - The table is a hash, "GUC hash table", below GUCMemoryContext
 *   (build_guc_variables); find_option() finds a record by it and in no other
 *   way.  An entry is a name, which is the record's own, and the record
 *   (GUCHashEntry, mirrored here). get_guc_variables() allocates and sorts,
 *   so it is called only when the table has changed.
 * - A placeholder is one chunk and its name another
 *   (add_placeholder_variable), both from guc_malloc; MarkGUCPrefixReserved()
 *   removes a placeholder from the table by HASH_REMOVE, and from the lists
 *   that contain it.
 * - guc_nondef_list has the records with a source other than PGC_S_DEFAULT
 *   (set_guc_source).  RESET ALL does not reset a record that is missing
 *   there, and parallel workers do not get it.  The list is circular: its
 *   head, static in guc.c, is its only node that belongs to no record.
 * - guc_report_list has the records with the status GUC_NEEDS_REPORT, and
 *   ReportChangedGUCOptions() looks at nothing else.  Its head is static in
 *   guc.c; it is found at attach, as the only word of the program's data that
 *   points to the link of each parameter that was just set.
 * - guc_stack_list has the records that are stacked; this file never touches
 *   those.
 */

#if PG_VERSION_NUM >= 160000

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "pg_guc.h"
#include "pg_guc.h"
#include "pg_program.h"
#include "pg_program.h"

/* GUCHashEntry (guc.c) */
typedef struct TableEntry
{
	const char *name;			/* hash key */
	struct config_generic *record;
}			TableEntry;

/*
 * A placeholder, and its entry, in which a library's parameter may replace it.
 */
typedef struct KnownPlaceholder
{
	const		TableEntry *entry;
	const struct config_generic *record;
}			KnownPlaceholder;

static HTAB *table = NULL;
static slist_head * report_list = NULL;
static dlist_head *nondef_list = NULL;

static MemoryContext table_context = NULL;
static struct config_generic **known = NULL;	/* as returned by
												 * get_guc_variables() */
static int	known_count = 0;
static KnownPlaceholder * known_placeholders = NULL;
static int	known_placeholder_count = 0;
static bool looked = false;		/* are the known_* variables complete? */
static uint64 version = 0;

struct config_generic *
baton_guc_find(const char *name)
{
	return find_option(name, false, true, DEBUG5);
}

static TableEntry *
find_entry(const char *name)
{
	return hash_search(table, &name, HASH_FIND, NULL);
}

static bool
has_changed(void)
{
	if (!looked || hash_get_num_entries(table) != known_count)
		return true;
	for (int i = 0; i < known_placeholder_count; i++)
	{
		if (known_placeholders[i].entry->record != known_placeholders[i].record)
			return true;
	}
	return false;
}

uint64
baton_guc_table_version(void)
{
	MemoryContext old;
	int			count = 0;

	if (!has_changed())
		return version;

	looked = false;
	version++;
	known_placeholder_count = known_count = 0;
	known = NULL;
	known_placeholders = NULL;
	MemoryContextReset(table_context);
	old = MemoryContextSwitchTo(table_context);
	known = get_guc_variables(&known_count);
	for (int i = 0; i < known_count; i++)
		count += (known[i]->flags & GUC_CUSTOM_PLACEHOLDER) != 0;
	known_placeholders = palloc(Max(count, 1) * sizeof(*known_placeholders));
	for (int i = 0; i < known_count; i++)
	{
		KnownPlaceholder *one;

		if ((known[i]->flags & GUC_CUSTOM_PLACEHOLDER) == 0)
			continue;
		one = &known_placeholders[known_placeholder_count++];
		one->record = known[i];
		one->entry = find_entry(known[i]->name);
	}
	MemoryContextSwitchTo(old);
	looked = true;
	return version;
}

struct config_generic **
baton_guc_records(int *count)
{
	if (table == NULL)
		return get_guc_variables(count);
	(void) baton_guc_table_version();
	*count = known_count;
	return known;
}

/* ---- attach ------------------------------------------------------------ */

static const char *
find_table(void)
{
	MemoryContext parent = NULL;
	struct config_generic **variables;
	int			count;

	for (MemoryContext child = TopMemoryContext->firstchild; child != NULL; child = child->nextchild)
	{
		if (strcmp(child->name, "GUCMemoryContext") != 0)
			continue;
		if (parent != NULL)
			return "GUCMemoryContext is ambiguous";
		parent = child;
	}
	if (parent == NULL)
		return "GUCMemoryContext was not found";
	table = baton_hash_find_below(parent, "GUC hash table");
	if (table == NULL)
		return "the server's table of parameters was not found";

	variables = get_guc_variables(&count);
	if (hash_get_num_entries(table) != count)
		return "the server's table of parameters is not the one that was found";
	for (int i = 0; i < count; i++)
	{
		TableEntry *entry = find_entry(variables[i]->name);

		if (entry == NULL || entry->record != variables[i] ||
			entry->name != variables[i]->name)
			return "the server's table of parameters is not as expected";
	}
	pfree(variables);
	return NULL;
}

/* The record to which a node of guc_nondef_list belongs. */
static struct config_generic *
owner_of(const dlist_node *node, struct config_generic **variables, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (&variables[i]->nondef_link == node)
			return variables[i];
	}
	return NULL;
}

/*
 * A process of the server always has data_directory set.  The list must
 * contain all parameters that are set, and nothing else.
 */
static const char *
find_nondef_list(void)
{
	struct config_generic *start = baton_guc_find("data_directory");
	struct config_generic **variables;
	dlist_node *head = NULL;
	dlist_node *node;
	int			count;
	int			members = 0;

	if (start == NULL || start->source == PGC_S_DEFAULT)
		return "parameter \"data_directory\" is not set";
	variables = get_guc_variables(&count);
	for (int i = 0; i < count; i++)
		members += variables[i]->source != PGC_S_DEFAULT;

	node = &start->nondef_link;
	do
	{
		struct config_generic *owner = owner_of(node, variables, count);

		if (owner == NULL && head == NULL)
			head = node;
		else if (owner == NULL || owner->source == PGC_S_DEFAULT)
			return "the list of parameters that are set is not as expected";
		else
			members--;
		if (node->next == NULL || node->next->prev != node)
			return "the list of parameters that are set is not circular";
		node = node->next;
	} while (node != &start->nondef_link);
	pfree(variables);
	if (head == NULL || members != 0)
		return "the list of parameters that are set was not found";
	nondef_list = (dlist_head *) head;
	return NULL;
}

/* Sets the parameter to its current value. */
static void
set_again(struct config_generic *record)
{
	SetConfigOption(record->name, GetConfigOption(record->name, false, false),
					PGC_INTERNAL, PGC_S_OVERRIDE);
}

/* Undoes in the record what set_again() did, except for the report. */
static void
restore(struct config_generic *record, const struct config_generic *before)
{
	baton_guc_set_origin(record, before->source, before->scontext, before->srole);
	record->reset_source = before->reset_source;
	record->reset_scontext = before->reset_scontext;
	record->reset_srole = before->reset_srole;
}

/*
 * Sets two reported parameters that only the server itself sets, so that no
 * other code is using them now. guc.c pushes each to the head of the list.
 */
static const char *
find_report_list(void)
{
	static const char *const names[] = {"in_hot_standby", "integer_datetimes"};
	struct config_generic *records[lengthof(names)];
	struct config_generic before[lengthof(names)];
	BatonProgramData range;
	slist_node *first = NULL;
	int			found = 0;

	if (!baton_program_data(&range))
		return "the server program's data was not found";
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		records[i] = baton_guc_find(names[i]);
		if (records[i] == NULL || (records[i]->flags & GUC_REPORT) == 0 ||
			records[i]->vartype != PGC_BOOL || records[i]->stack != NULL ||
			(records[i]->status & GUC_NEEDS_REPORT) != 0)
			return "parameters that are reported are not as expected";
		before[i] = *records[i];
	}

	set_again(records[0]);
	for (uintptr_t word = range.start; word < range.end; word += sizeof(void *))
	{
		if (*(slist_node *volatile *) word == &records[0]->report_link)
		{
			report_list = (slist_head *) word;
			found++;
		}
	}
	if (found == 1)
	{
		first = records[0]->report_link.next;
		set_again(records[1]);
	}
	if (found != 1 ||
		report_list->head.next != &records[1]->report_link ||
		records[1]->report_link.next != &records[0]->report_link)
	{
		report_list = NULL;
		return "the list of parameters to report was not found";
	}

	report_list->head.next = first;
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		records[i]->status &= ~GUC_NEEDS_REPORT;
		restore(records[i], &before[i]);
	}
	return NULL;
}

const char *
baton_guc_table_attach(void)
{
	const char *problem = NULL;

	if (table_context == NULL)
		table_context = AllocSetContextCreate(TopMemoryContext,
											  "pg_baton table of parameters",
											  ALLOCSET_DEFAULT_SIZES);
	if (table == NULL)
		problem = find_table();

	if (problem == NULL && nondef_list == NULL)
		problem = find_nondef_list();
	if (problem == NULL && report_list == NULL)
		problem = find_report_list();
	if (problem != NULL)
		table = NULL;
	return problem;
}

/* ---- placeholders ------------------------------------------------------ */

bool
baton_guc_is_removed(const struct config_generic *record)
{
	return false;
}

bool
baton_guc_table_is_overgrown(void)
{
	return false;
}

struct config_generic *
baton_guc_add_placeholder(const char *name)
{
	return find_option(name, true, true, ERROR);
}

void
baton_guc_remove_placeholder(struct config_generic *record)
{
	struct config_string *placeholder = (struct config_string *) record;
	const char *name = record->name;
	bool		found;

	Assert(record->flags & GUC_CUSTOM_PLACEHOLDER);
	if (record->stack != NULL || (record->status & GUC_NEEDS_REPORT) ||
		*placeholder->variable != NULL || placeholder->reset_val != NULL ||
		record->extra != NULL || placeholder->reset_extra != NULL)
		elog(ERROR, "custom parameter \"%s\" still has a value", name);

	(void) hash_search(table, &name, HASH_REMOVE, &found);
	if (!found)
		elog(ERROR, "parameter \"%s\" is not in the table of parameters", name);
	looked = false;
	if (record->source != PGC_S_DEFAULT)
		dlist_delete(&record->nondef_link);
	if (record->sourcefile != NULL)
		guc_free(record->sourcefile);
	if (record->last_reported != NULL)
		guc_free(record->last_reported);
	guc_free(unconstify(char *, name));
	guc_free(record);
}

/* ---- origins and reports ----------------------------------------------- */

void
baton_guc_set_origin(struct config_generic *record, GucSource source,
					 GucContext scontext, Oid srole)
{
	/* as set_guc_source() in guc.c */
	if (record->source == PGC_S_DEFAULT && source != PGC_S_DEFAULT)
		dlist_push_tail(nondef_list, &record->nondef_link);
	else if (record->source != PGC_S_DEFAULT && source == PGC_S_DEFAULT)
		dlist_delete(&record->nondef_link);
	record->source = source;
	record->scontext = scontext;
	record->srole = srole;
}

void
baton_guc_look_for_report(struct config_generic *record)
{
	Assert(record->flags & GUC_REPORT);
	if (record->status & GUC_NEEDS_REPORT)
		return;
	record->status |= GUC_NEEDS_REPORT;
	slist_push_head(report_list, &record->report_link);
}

void
baton_guc_look_for_reports(void)
{
	struct config_generic **records;
	int			count;

	records = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		if (records[i]->flags & GUC_REPORT)
			baton_guc_look_for_report(records[i]);
	}
}

#endif							/* PG_VERSION_NUM >= 160000 */
