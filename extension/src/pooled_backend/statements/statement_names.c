/*-------------------------------------------------------------------------
 *
 * statement_names.c
 *		The names in a statement that a new object could hide.
 *
 * A statement that was analysed goes on to mean the objects it meant, though one
 * of the same name is made in a schema that comes earlier in the search path:
 * plancache.c is not told of that.  On a connection of its own a session that
 * prepares after that means the new one, but here it would be given what
 * was analysed for another.  So a common statement (statement_common.c) is to be
 * analysed again when an object is made, or renamed, that a name of its could
 * mean now.
 *
 * Every new row of pg_class, pg_type and pg_proc is told to all backends as an
 * invalidation of the catalog caches by name, with the hash value of name and
 * schema (PrepareToInvalidateCacheTuple, catcache.c); of its own changes a
 * transaction's backend hears at the next command.  Relations and types are
 * compared by that value, for each unqualified name and each schema of the path;
 * others (a temporary table each transaction, say) cost a look at a bitmap.  For a
 * function, whose value has its arguments in it, each statement with an unqualified
 * call is analysed again.  What was analysed in a stay is compared with all that was
made since the stay began.  Operators and schemas are plancache.c's own:
 * InitPlanCache() has callbacks that reset all plans.
 *
 * A transaction begins by taking in what other backends have committed
 * (AtStart_Cache, xact.c), and a plan is used in one: so what was there when a
 * session prepared is known wherever it comes.  Statements are looked up just
 * before that (exec_bind_message, postgres.c), so what is looked up then is
 * among what can be told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "name_hash.h"
#include "nodes/nodeFuncs.h"
#include "search_path.h"
#include "statement_names.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

typedef struct UsedName
{
	bool		is_type;
	const char *name;			/* in the raw parse tree */
} UsedName;

struct StatementNames
{
	bool		unknown;		/* any object may be meant */
	bool		calls;			/* functions by unqualified names */
	int			count;
	UsedName   *used;
	uint64		since;			/* not compared yet with what was made after
								 * that; only if not hashed */
	bool		hashed;
	int			hash_count;
	uint32	   *hashes;			/* for each of them in each schema */
};

/* What is collected into. */
typedef struct Collecting
{
	StatementNames *names;
	int			room;
} Collecting;

#define RECENT_MAX 4096
#define BITMAP_BITS 65536
#define TYPE_SALT 0x9E3779B9

static BatonObjectMade object_made = NULL;
static bool hash_is_checked = false;
static int	unhashed = 0;		/* statements, at most */
static uint64 bitmap[BITMAP_BITS / 64]; /* of all hashes there ever were */

/* What was made of late. */
static uint32 recent[RECENT_MAX];
static uint64 made = 0;
static uint64 made_before_stay = 0;

static void
note_made(Datum argument, int cache, uint32 hash)
{
	if (hash == 0)
	{
		made += RECENT_MAX + 1; /* plancache.c has reset all, too */
		return;
	}
	if (cache == PROCNAMEARGSNSP)
		hash = BATON_ANY_FUNCTION;
	else if (cache == TYPENAMENSP)
		hash ^= TYPE_SALT;
	recent[made++ % RECENT_MAX] = hash;
	if (hash == BATON_ANY_FUNCTION ||
		(bitmap[hash % BITMAP_BITS / 64] & (UINT64CONST(1) << (hash % 64))) != 0)
		object_made(hash);
}

void
baton_names_attach(BatonObjectMade made_callback)
{
	if (object_made != NULL)
		return;
	object_made = made_callback;
	CacheRegisterSyscacheCallback(RELNAMENSP, note_made, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPENAMENSP, note_made, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCNAMEARGSNSP, note_made, (Datum) 0);
}

void
baton_names_stay_begins(void)
{
	made_before_stay = made;
}

void
baton_names_in_transaction(void)
{
	if (hash_is_checked || object_made == NULL)
		return;
	baton_name_hash_check();
	hash_is_checked = true;
}

static void
add(Collecting *collecting, bool is_type, const char *name)
{
	StatementNames *names = collecting->names;

	for (int i = 0; i < names->count; i++)
		if (names->used[i].is_type == is_type && strcmp(names->used[i].name, name) == 0)
			return;
	if (names->count == collecting->room)
	{
		collecting->room *= 2;
		names->used = repalloc(names->used, collecting->room * sizeof(UsedName));
	}
	names->used[names->count].is_type = is_type;
	names->used[names->count].name = name;
	names->count++;
}

static bool
collect(Node *node, void *context)
{
	Collecting *collecting = context;

	if (node == NULL)
		return false;
	if (IsA(node, RangeVar) && ((RangeVar *) node)->schemaname == NULL)
		add(collecting, false, ((RangeVar *) node)->relname);
	else if (IsA(node, TypeName) && list_length(((TypeName *) node)->names) == 1)
		add(collecting, true, strVal(linitial(((TypeName *) node)->names)));
	else if (IsA(node, FuncCall) && list_length(((FuncCall *) node)->funcname) == 1)
		collecting->names->calls = true;
	return raw_expression_tree_walker(node, collect, context);
}

StatementNames *
baton_names_collect(const CachedPlanSource *plan)
{
	MemoryContext caller = MemoryContextSwitchTo(plan->context);
	StatementNames *names = palloc0(sizeof(StatementNames));
	Collecting	collecting = {names, 4};
	Node	   *statement = plan->raw_parse_tree == NULL ? NULL : plan->raw_parse_tree->stmt;

	names->used = palloc(collecting.room * sizeof(UsedName));
	if (statement != NULL)
		switch (nodeTag(statement))
		{
			case T_SelectStmt:
			case T_InsertStmt:
			case T_UpdateStmt:
			case T_DeleteStmt:
				(void) collect(statement, &collecting);
				break;
			default:
				names->unknown = true;	/* not for the walker */
				break;
		}
	baton_names_analysed(names);
	MemoryContextSwitchTo(caller);
	return names;
}

void
baton_names_analysed(StatementNames *names)
{
	names->hashed = false;
	names->since = made_before_stay;
	unhashed++;
}

bool
baton_names_to_look_at(void)
{
	return unhashed > 0 && hash_is_checked;
}

void
baton_names_looked_at(void)
{
	unhashed = 0;
}

static void
hash_names(StatementNames *names, const CachedPlanSource *plan)
{
	const BatonSearchPath *path = plan->search_path;
	int			schemas = path == NULL ? 0 : list_length(path->schemas);
	ListCell   *cell;

	names->hash_count = 0;
	if (names->hashes != NULL)
		pfree(names->hashes);
	names->hashes = MemoryContextAlloc(plan->context,
									   Max(1, names->count * schemas) * sizeof(uint32));
	if (path != NULL)
		foreach(cell, path->schemas)
			for (int i = 0; i < names->count; i++)
		{
			const UsedName *used = &names->used[i];
			uint32		hash = baton_name_hash(used->is_type ? TYPENAMENSP : RELNAMENSP,
											   used->name, lfirst_oid(cell));

			if (used->is_type)
				hash ^= TYPE_SALT;
			bitmap[hash % BITMAP_BITS / 64] |= UINT64CONST(1) << (hash % 64);
			names->hashes[names->hash_count++] = hash;
		}
	names->hashed = true;
}

bool
baton_names_hidden_by(const StatementNames *names, uint32 hash)
{
	if (!names->hashed)
		return false;			/* will be looked at */
	if (names->unknown)
		return true;
	if (hash == BATON_ANY_FUNCTION)
		return names->calls;
	for (int i = 0; i < names->hash_count; i++)
		if (names->hashes[i] == hash)
			return true;
	return false;
}

bool
baton_names_look_at(StatementNames *names, const CachedPlanSource *plan)
{
	if (names->hashed)
		return false;
	hash_names(names, plan);
	if (made - names->since > RECENT_MAX)
		return true;
	for (uint64 i = names->since; i < made; i++)
		if (baton_names_hidden_by(names, recent[i % RECENT_MAX]))
			return true;
	return false;
}
