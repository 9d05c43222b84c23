/*-------------------------------------------------------------------------
 *
 * prepared_table.c
 *		The table of prepared statements, which asks for what is looked up.
 *
 * prepare.c keeps its statements in one hash table, whose handle is a static
 * variable that is set once and never changed.  So the handle's address can
 * be looked up, and what it points to, a struct HTAB, can be overwritten: an
 * HTAB holds nothing but values and pointers (dynahash.c, struct HTAB), all
 * else lies in the memory context that its hcxt names.  We overwrite it with a
 * table of our own, whose hash function is ours: hash_search() (dynahash.c)
 * calls it with the name before it looks at anything else of the table, so a
 * statement can be entered just then.  Whoever looks up, enters or removes a
 * statement goes by that way (FetchPreparedStatement, StorePreparedStatement and
 * DropPreparedStatement, prepare.c); only pg_prepared_statement() and
 * DropAllPreparedStatements() walk the table, and both are known beforehand.
 * The table itself never calls the function again: elements keep their hash
 * value (expand_table).
 *
 * What is leant on, in 15 to 18, and checked by baton_table_attach() before use:
 *	- the handle, and sizeof(HTAB), are found as hash_table.c says.
 *	- InitQueryHashTable() (prepare.c) uses the name "Prepared Queries", keys
 *	  of NAMEDATALEN bytes compared as strings, entries of PreparedStatement.
 *
 * A walk returns entries by hash value, then in the order they were entered; how
 * many buckets there are depends on how many entries a table has had at most.  So
 * a session's listing has the order it has on a connection of its own if its
 * table begins like that one's, which baton_table_refresh() sees to.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "hash_table.h"
#include "prepared_table.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

#define TABLE_NAME "Prepared Queries"

/* As InitQueryHashTable() has it. */
#define TABLE_INITIAL_ELEMENTS 32

static HTAB *prepare_handle = NULL; /* what prepare.c's static points to */
static HTAB *own = NULL;		/* the table it is a copy of; to destroy it */
static Size htab_size = 0;
static BatonStatementWanted wanted_callback = NULL;
static char last_probe[NAMEDATALEN];	/* while it is tried out */

static uint32
hash_name(const void *key, Size key_size)
{
	uint32		hash = string_hash(key, key_size);

	if (wanted_callback != NULL)
		wanted_callback((const char *) key, hash);
	return hash;
}

/* As dynahash.c does for HASH_STRINGS. */
static int
compare_names(const void *one, const void *other, Size key_size)
{
	return strncmp(one, other, key_size - 1);
}

static void *
copy_name(void *to, const void *from, Size key_size)
{
	strlcpy(to, from, key_size);
	return to;
}

/* A new table in the place of prepare.c's. */
static void
begin_table(void)
{
	HASHCTL		control;
	HTAB	   *before = own;

	control.keysize = NAMEDATALEN;
	control.entrysize = sizeof(PreparedStatement);
	control.hash = hash_name;
	control.match = compare_names;
	control.keycopy = copy_name;
	control.hcxt = TopMemoryContext;
	own = hash_create("pg_baton prepared statements", TABLE_INITIAL_ELEMENTS, &control,
					  HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_KEYCOPY |
					  HASH_CONTEXT);
	memcpy(prepare_handle, own, htab_size);
	if (before != NULL)
		hash_destroy(before);
}

static void
note_probe(const char *name, uint32 hash)
{
	strlcpy(last_probe, name, NAMEDATALEN);
}

static bool
probed(const char *name)
{
	bool		result = strcmp(last_probe, name) == 0;

	last_probe[0] = '\0';
	return result;
}

/* Lets prepare.c store a statement without text, which needs no catalog. */
static void
store_probe(const char *name)
{
	CachedPlanSource *plan = CreateCachedPlan(NULL, "", CMDTAG_UNKNOWN);

	CompleteCachedPlan(plan, NIL, NULL, NULL, 0, NULL, NULL, 0, true);
	StorePreparedStatement(name, plan, false);
}

/* Does prepare.c work on the table, and does that ask? */
static bool
check_table(void)
{
	const char *name = "pg_baton probe";
	PreparedStatement *found;
	uint32		hash = string_hash(name, NAMEDATALEN);
	bool		asks;

	store_probe(name);
	asks = probed(name);
	found = FetchPreparedStatement(name, false);
	asks &= probed(name);
	if (found == NULL || found != baton_table_find(name, hash) ||
		hash_get_num_entries(own) != 1)
		return false;
	DropPreparedStatement(name, false);
	asks &= probed(name);
	return asks && baton_table_find(name, hash) == NULL;
}

const char *
baton_table_attach(BatonStatementWanted wanted)
{
	if (prepare_handle != NULL)
		return NULL;			/* done before */
	htab_size = baton_hash_header_size();
	if (htab_size == 0)
		return "a hash table's handle does not lie before its name";

	/* make prepare.c create its own, and look that up */
	store_probe("pg_baton probe 0");
	DropPreparedStatement("pg_baton probe 0", true);
	prepare_handle = baton_hash_find(TABLE_NAME);
	if (prepare_handle == NULL)
		return "the table of prepared statements was not found";
	if (hash_get_num_entries(prepare_handle) != 0)
		return "there are prepared statements already";

	begin_table();
	wanted_callback = note_probe;
	if (!check_table())
		return "the table of prepared statements cannot be replaced";
	wanted_callback = wanted;
	return NULL;
}

PreparedStatement *
baton_table_find(const char *name, uint32 hash)
{
	return hash_search_with_hash_value(prepare_handle, name, hash, HASH_FIND, NULL);
}

void
baton_table_enter(const char *name, uint32 hash, CachedPlanSource *plan,
				  bool from_sql, TimestampTz prepare_time)
{
	PreparedStatement *statement = hash_search_with_hash_value(prepare_handle, name, hash,
															   HASH_ENTER, NULL);

	statement->plansource = plan;
	statement->from_sql = from_sql;
	statement->prepare_time = prepare_time;
}

void
baton_table_remove(const char *name, uint32 hash)
{
	hash_search_with_hash_value(prepare_handle, name, hash, HASH_REMOVE, NULL);
}

void
baton_table_refresh(int names)
{
	Assert(hash_get_num_entries(prepare_handle) == 0);
	if (names > TABLE_INITIAL_ELEMENTS)
		begin_table();
}
