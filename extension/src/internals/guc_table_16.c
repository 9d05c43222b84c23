/*-------------------------------------------------------------------------
 *
 * guc_table_16.c
 *		The server's table of parameter records, in PostgreSQL 16 and later.
 *
 * What guc.c guarantees in 16, 17 and 18:
 *
 * - The table is a hash, "GUC hash table", below GUCMemoryContext
 *	 (build_guc_variables); find_option() knows a record by it and by nothing
 *	 else.  An entry is a name, which is the record's own, and the record
 *	 (GUCHashEntry, mirrored here).  get_guc_variables() allocates and sorts,
 *	 so that is done only when the table has changed.
 * - A placeholder is one chunk and its name another (add_placeholder_variable),
 *	 both guc_malloc's; MarkGUCPrefixReserved() takes one out of the table by
 *	 HASH_REMOVE, and of the lists that it is in.
 * - guc_nondef_list has the records whose source is not PGC_S_DEFAULT
 *	 (set_guc_source); what is missing there RESET ALL does not reset and
 *	 parallel workers do not get.  It is circular: its head, static in guc.c, is
 *	 the one node of it that is no record's.
 * - guc_report_list has the records whose status says GUC_NEEDS_REPORT, and
 *	 is all that ReportChangedGUCOptions() looks at.  Its head is static in
 *	 guc.c; it is found at attach, as the one word of the program's data that
 *	 points to the link of each parameter that was just set.
 * - guc_stack_list has the records that are stacked; those are never touched.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#if PG_VERSION_NUM >= 160000

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "guc_table.h"
#include "guc_value.h"
#include "hash_table.h"
#include "program_data.h"

/* GUCHashEntry (guc.c) */
typedef struct TableEntry
{
	const char *name;			/* hash key */
	struct config_generic *record;
}			TableEntry;

/* A placeholder, and the entry that a library's parameter may replace it in. */
typedef struct KnownPlaceholder
{
	const		TableEntry *entry;
	const struct config_generic *record;
}			KnownPlaceholder;

static HTAB *table = NULL;
static slist_head * report_list = NULL;
static dlist_head *nondef_list = NULL;

static MemoryContext table_context = NULL;
static struct config_generic **known = NULL;	/* as get_guc_variables() says */
static int	known_count = 0;
static KnownPlaceholder * known_placeholders = NULL;
static int	known_placeholder_count = 0;
static bool looked = false;		/* is what is known whole? */
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

/* The record that the node of the list of those that are set belongs to. */
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
 * A server's process always has its data directory set.  The list must have
 * all that are set, and nothing else.
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

/* Sets the parameter to what it is. */
static void
set_again(struct config_generic *record)
{
	SetConfigOption(record->name, GetConfigOption(record->name, false, false),
					PGC_INTERNAL, PGC_S_OVERRIDE);
}

/* Takes back from the record what set_again() did, but for the report. */
static void
restore(struct config_generic *record, const struct config_generic *before)
{
	baton_guc_set_origin(record, before->source, before->scontext, before->srole);
	record->reset_source = before->reset_source;
	record->reset_scontext = before->reset_scontext;
	record->reset_srole = before->reset_srole;
}

/*
 * Two parameters that are reported and that only the server itself sets, so
 * that nobody looks at them now, are set.  guc.c pushes each to the head.
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
