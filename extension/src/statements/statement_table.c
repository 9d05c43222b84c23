/*-------------------------------------------------------------------------
 *
 * statement_table.c
 *		A table of prepared statements for each session, exchanged as a whole.
 *
 * prepare.c keeps its statements in one hash table, whose handle is a static
 * variable that is set once and never changed.  So the handle's address can
 * be looked up, and what it points to, a struct HTAB, can be overwritten: an
 * HTAB holds nothing but values and pointers (dynahash.c, struct HTAB), all
 * else lies in the memory context that its hcxt names, and new elements are
 * allocated there (element_alloc, dir_realloc, seg_alloc).  Copying one HTAB
 * over another therefore exchanges the whole table, at a constant price.
 *
 * What is leant on, and checked by baton_table_attach() before use:
 *	- the handle, and sizeof(HTAB), are found as hash_table.c says.
 *	- InitQueryHashTable() (prepare.c) uses the name "Prepared Queries", keys
 *	  of NAMEDATALEN bytes compared as strings, entries of PreparedStatement.
 *
 * Invariants: exactly one table is in place; its own handle is stale until it
 * is taken out.  Tables are exchanged outside transactions only, so that no
 * scan is open (dynahash.c knows open scans by the handle's address).  A table
 * either belongs to one session (it is in the list by use and in the map), or
 * is empty and in the list of free ones.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/prepare.h"
#include "hash_table.h"
#include "statement_table.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

#define TABLE_NAME "Prepared Queries"

/* As InitQueryHashTable() has it, so that a scan returns the same order. */
#define TABLE_INITIAL_ELEMENTS 32

/* More empty tables than this are destroyed. */
#define FREE_TABLES_KEPT 4

typedef struct SessionEntry
{
	uint64		session;
	StatementTable *table;
} SessionEntry;

typedef struct TwinEntry
{
	uint64		fingerprint;
	dlist_head	tables;
} TwinEntry;

int			baton_backend_statements = 1000;

StatementTable *baton_table_in_place = NULL;

static HTAB *prepare_handle = NULL; /* what prepare.c's static points to */
static Size htab_size = 0;
static MemoryContext table_context = NULL;
static HTAB *session_map = NULL;
static HTAB *twin_map = NULL;
static dlist_head by_use = DLIST_STATIC_INIT(by_use);
static dlist_head free_tables = DLIST_STATIC_INIT(free_tables);
static int	free_table_count = 0;
static int	kept = 0;			/* tables of sessions, plus statements in them */

static HTAB *
create_table(void)
{
	HASHCTL		control;

	control.keysize = NAMEDATALEN;
	control.entrysize = sizeof(PreparedStatement);
	control.hcxt = table_context;
	return hash_create(TABLE_NAME, TABLE_INITIAL_ELEMENTS, &control,
					   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* Lets prepare.c store a statement without text, which needs no catalog. */
static void
store_probe(const char *name)
{
	CachedPlanSource *plan = CreateCachedPlan(NULL, "", CMDTAG_UNKNOWN);

	CompleteCachedPlan(plan, NIL, NULL, NULL, 0, NULL, NULL, 0, true);
	StorePreparedStatement(name, plan, false);
}

static StatementTable *
new_table(HTAB *handle, bool permanent)
{
	StatementTable *table = MemoryContextAllocZero(table_context, sizeof(StatementTable));

	table->handle = handle;
	table->permanent = permanent;
	dlist_push_tail(&free_tables, &table->use_node);
	free_table_count++;
	return table;
}

/* Does what prepare.c sees follow the exchange, both ways? */
static const char *
check_exchange(void)
{
	StatementTable *original = baton_table_in_place;
	StatementTable *other = new_table(create_table(), false);
	const char *problem = NULL;

	store_probe("pg_baton probe 1");
	if (hash_search(prepare_handle, "pg_baton probe 1", HASH_FIND, NULL) !=
		(void *) FetchPreparedStatement("pg_baton probe 1", false))
		return "prepared statements are not in the table where they were looked for";

	baton_table_place(other);
	if (FetchPreparedStatement("pg_baton probe 1", false) != NULL)
		problem = "the table of prepared statements cannot be exchanged";
	else
	{
		store_probe("pg_baton probe 2");
		baton_table_place(original);
		if (FetchPreparedStatement("pg_baton probe 1", false) == NULL ||
			FetchPreparedStatement("pg_baton probe 2", false) != NULL ||
			hash_get_num_entries(other->handle) != 1)
			problem = "the table of prepared statements cannot be exchanged back";
		else
		{
			baton_table_place(other);
			DropPreparedStatement("pg_baton probe 2", true);
		}
	}
	baton_table_place(original);
	DropPreparedStatement("pg_baton probe 1", false);
	return problem;
}

const char *
baton_table_attach(void)
{
	HASHCTL		control;

	if (table_context != NULL)
		return NULL;			/* done before */
	table_context = AllocSetContextCreate(TopMemoryContext,
										  "pg_baton statement tables",
										  ALLOCSET_DEFAULT_SIZES);

	htab_size = baton_hash_header_size();
	if (htab_size == 0)
		return "a hash table's handle does not lie before its name";

	/* make prepare.c create its own, and look that up */
	store_probe("pg_baton probe 0");
	DropPreparedStatement("pg_baton probe 0", true);
	prepare_handle = baton_hash_find(TABLE_NAME);
	if (prepare_handle == NULL)
		return "the table of prepared statements was not found";

	baton_table_in_place = new_table((HTAB *) MemoryContextAllocZero(table_context,
																	 htab_size),
									 true);

	control.keysize = sizeof(uint64);
	control.entrysize = sizeof(SessionEntry);
	control.hcxt = table_context;
	session_map = hash_create("pg_baton statement sessions", 64, &control,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	control.entrysize = sizeof(TwinEntry);
	twin_map = hash_create("pg_baton statement twins", 64, &control,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	return check_exchange();
}

StatementTable *
baton_table_empty(void)
{
	if (dlist_is_empty(&free_tables))
		(void) new_table(create_table(), false);
	return dlist_head_element(StatementTable, use_node, &free_tables);
}

void
baton_table_place(StatementTable *table)
{
	if (table == baton_table_in_place)
		return;
	memcpy(baton_table_in_place->handle, prepare_handle, htab_size);
	memcpy(prepare_handle, table->handle, htab_size);
	baton_table_in_place = table;
}

HTAB *
baton_table_handle(StatementTable *table)
{
	return table == baton_table_in_place ? prepare_handle : table->handle;
}

StatementTable *
baton_table_find(uint64 session)
{
	SessionEntry *entry;

	/* most often the session is the one that was here last */
	if (baton_table_in_place->session == session)
		return baton_table_in_place;
	entry = hash_search(session_map, &session, HASH_FIND, NULL);
	return entry != NULL ? entry->table : NULL;
}

/*
 * Gives a table to a session: an empty one, or (so that its plans go on being
 * used) one that belonged to a session with equal statements.
 */
void
baton_table_claim(StatementTable *table, uint64 session)
{
	SessionEntry *entry;

	if (table->session != 0)
		hash_search(session_map, &table->session, HASH_REMOVE, NULL);
	else
	{
		dlist_delete(&table->use_node);
		free_table_count--;
		dlist_push_head(&by_use, &table->use_node);
		kept++;
	}
	entry = hash_search(session_map, &session, HASH_ENTER, NULL);
	entry->table = table;
	table->session = session;
	table->context_version = 0;
	table->counter_version = 0;
	table->has_initial = false;
}

/* The session's table is used now. */
void
baton_table_used(StatementTable *table)
{
	dlist_move_head(&by_use, &table->use_node);
}

/* Sets what equal tables are known by; 0 takes it out of the index. */
void
baton_table_fingerprint(StatementTable *table, uint64 fingerprint)
{
	TwinEntry  *entry;
	bool		found;

	if (table->fingerprint == fingerprint)
		return;
	if (table->fingerprint != 0)
	{
		dlist_delete(&table->twin_node);
		entry = hash_search(twin_map, &table->fingerprint, HASH_FIND, NULL);
		if (dlist_is_empty(&entry->tables))
			hash_search(twin_map, &table->fingerprint, HASH_REMOVE, NULL);
	}
	table->fingerprint = fingerprint;
	if (fingerprint != 0)
	{
		entry = hash_search(twin_map, &fingerprint, HASH_ENTER, &found);
		if (!found)
			dlist_init(&entry->tables);
		dlist_push_head(&entry->tables, &table->twin_node);
	}
}

/* A table with that fingerprint, the one that has had it longest. */
StatementTable *
baton_table_twin(uint64 fingerprint)
{
	TwinEntry  *entry = hash_search(twin_map, &fingerprint, HASH_FIND, NULL);

	return entry == NULL ? NULL :
		dlist_tail_element(StatementTable, twin_node, &entry->tables);
}

/* The table used longest ago, if it is not in place. */
StatementTable *
baton_table_oldest(void)
{
	StatementTable *table;

	if (dlist_is_empty(&by_use))
		return NULL;
	table = dlist_tail_element(StatementTable, use_node, &by_use);
	return table == baton_table_in_place ? NULL : table;
}

void
baton_table_count(StatementTable *table, int statements)
{
	kept += statements - table->statements;
	table->statements = statements;
}

bool
baton_table_full(void)
{
	return kept >= baton_backend_statements;
}

void
baton_table_recycle(StatementTable *table)
{
	Assert(table != baton_table_in_place);
	Assert(hash_get_num_entries(table->handle) == 0);

	baton_table_fingerprint(table, 0);
	baton_table_count(table, 0);
	if (table->session != 0)
	{
		hash_search(session_map, &table->session, HASH_REMOVE, NULL);
		dlist_delete(&table->use_node);
		kept--;
		dlist_push_tail(&free_tables, &table->use_node);
		free_table_count++;
	}
	table->session = 0;
	table->context_version = 0;
	table->counter_version = 0;
	table->mixed = false;
	table->has_initial = false;

	if (free_table_count > FREE_TABLES_KEPT && !table->permanent)
	{
		dlist_delete(&table->use_node);
		free_table_count--;
		hash_destroy(table->handle);
		pfree(table);
	}
}
