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
 * Every new row of pg_class and pg_type is told to all backends as an
 * invalidation of the catalog caches by name, with the hash value of name and
 * schema (PrepareToInvalidateCacheTuple, catcache.c); of its own changes a
 * transaction's backend hears at the next command.  Relations and types are
 * compared by that value, for each unqualified name and each schema of the path;
 * others (a temporary table each transaction, say) cost a look at a bitmap.
 * Functions are looked up by their OID before a statement is (called_functions.c),
 * and compared likewise.  What was analysed in a stay is compared with all that was
 * made since the stay began.  Operators and schemas are plancache.c's own:
 * InitPlanCache() has callbacks that reset all plans.
 *
 * A type that values are converted to counts whatever schema its name was written
 * with, and so do the types that it is made of, and the relations that hold the
 * attributes of composite ones: a statement holds the type's OID, of which
 * plancache.c is not told, and constants as they were laid out.  The catalog is asked
 * for the names when a query is analysed.  An attribute that is dropped, renamed or
 * gets another type writes no row of pg_class or pg_type: the relation cache tells of
 * it, by the relation's OID.
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

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "called_functions.h"
#include "catalog_age.h"
#include "name_hash.h"
#include "nodes/nodeFuncs.h"
#include "own_transaction.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "search_path.h"
#include "statement_bindings.h"
#include "statement_names.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

typedef struct UsedName
{
	uint32		salt;			/* says of what: 0: a relation */
	const char *name;			/* in the raw parse tree */
} UsedName;

struct StatementNames
{
	bool		is_opaque;		/* the raw parse tree was not looked into */
	bool		unknown;		/* any object may be meant */
	bool		inlined;		/* functions in SQL, into the generic plan */
	BatonBindings bindings;		/* what the trees hold; known if hashed */
	int			count;
	int			room;
	UsedName   *used;
	uint64		since;			/* not compared yet with what was made after
								 * that; only if not hashed */
	bool		hashed;
	int			hash_count;
	int			hash_room;
	uint32	   *hashes;			/* for each of them in each schema */
};

/* What is collected into. */
typedef struct Collecting
{
	StatementNames *names;
	bool		strings;		/* those that may name a relation or type;
								 * nothing else */
} Collecting;

/* Of a relation that holds a type's attributes; its OID is hashed. */
#define ROW_SALT 0x5BD1E995

#define RECENT_MAX 4096
#define BITMAP_BITS 65536

/* Types whose names are noted: with more of them all are forgotten. */
#define TYPES_CALLED_MAX 1024

/* Strings that may name an object: the longest one, and how many names. */
#define STRING_NAME_MAX (4 * NAMEDATALEN)
#define STRING_NAMES_MAX 128

/* What a type is called, and those that it is made of. */
typedef struct TypeCalled
{
	Oid			type;			/* the key */
	uint64		made;			/* how much had been */
	List	   *hashes;			/* of name and schema, and of relations with
								 * attributes; empty: it has gone */
} TypeCalled;

static MemoryContext types_context = NULL;
static HTAB *types_called = NULL;
static BatonObjectMade object_made = NULL;
static bool hash_is_checked = false;
static uint64 bitmap[BITMAP_BITS / 64]; /* of all hashes there ever were */
static bool any_may_be_meant = false;	/* there was a statement for which any
										 * name counts */

/* What was made of late. */
static uint32 recent[RECENT_MAX];
static uint64 made = 0;
static uint64 made_before_stay = 0;

static void
note(uint32 hash)
{
	recent[made++ % RECENT_MAX] = hash;
	object_made(hash);
}

static bool
is_in_bitmap(uint32 hash)
{
	return (bitmap[hash % BITMAP_BITS / 64] & (UINT64CONST(1) << (hash % 64))) != 0;
}

void
baton_names_expect(uint32 hash)
{
	bitmap[hash % BITMAP_BITS / 64] |= UINT64CONST(1) << (hash % 64);
}

/* Of what may be anybody's: its hash is compared if a statement has it. */
static void
note_named(uint32 hash)
{
	recent[made++ % RECENT_MAX] = hash;
	if (any_may_be_meant || is_in_bitmap(hash))
		object_made(hash);
}

static void
note_function(uint32 invalidation)
{
	uint32		hash;

	if (invalidation == 0)
		made += RECENT_MAX + 1; /* plancache.c has reset all, too */
	else if (!baton_called_changed(invalidation, &hash))
		note(BATON_ANY_FUNCTION);
	else if (is_in_bitmap(hash))
		note_named(hash);
}

static void
note_catalog(BatonCatalog catalog, uint32 hash)
{
	switch (catalog)
	{
		case BATON_CATALOG_ROLES:
			note(BATON_ANY_ROLE);
			break;
		case BATON_CATALOG_ENUMS:
			note(BATON_ANY_ENUM);
			break;
		case BATON_CATALOG_FUNCTIONS:
			note_function(hash);
			break;
		default:
			note(BATON_ANY_OBJECT);
			break;
	}
}

static void
note_made(Datum argument, int cache, uint32 hash)
{
	if (hash == 0)
	{
		made += RECENT_MAX + 1; /* plancache.c has reset all, too */
		return;
	}
	note_named(cache == TYPENAMENSP ? hash ^ BATON_TYPE_SALT : hash);
}

static uint32
hash_of_row(Oid relation)
{
	return baton_name_hash_of_oid(relation) ^ ROW_SALT;
}

/* One without an OID comes with those of all names. */
static void
note_row(Datum argument, Oid relation)
{
	uint32		hash = hash_of_row(relation);

	if (relation >= FirstNormalObjectId && is_in_bitmap(hash))
		note_named(hash);
}

/*
 * Statements have taken over what they need, but those that were not looked
 * at yet: any object may be meant by these (hash_names).
 */
static void
forget_types(void)
{
	HASHCTL		control;

	if (types_context == NULL)
		types_context = AllocSetContextCreate(TopMemoryContext, "pg_baton types",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(types_context);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(TypeCalled);
	control.hcxt = types_context;
	types_called = hash_create("pg_baton names of types", 64, &control,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
baton_names_attach(BatonObjectMade made_callback)
{
	if (object_made != NULL)
		return;
	object_made = made_callback;
	forget_types();
	CacheRegisterSyscacheCallback(RELNAMENSP, note_made, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPENAMENSP, note_made, (Datum) 0);
	CacheRegisterRelcacheCallback(note_row, (Datum) 0);
	baton_called_attach();
	baton_catalog_age_watch(note_catalog);
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

void
baton_names_look_up_functions(void)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		is_own = !IsTransactionState();

	if (is_own)
	{
		if (IsTransactionOrTransactionBlock())
			return;				/* it has failed */
		AcceptInvalidationMessages();
	}
	if (!baton_called_any_changed())
		return;
	if (is_own)
		baton_own_transaction_start();
	if (!baton_called_name_changed(note_named))
		note(BATON_ANY_FUNCTION);
	if (is_own)
		CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/* The name of a type, of its element or base type, and of all its attributes' types. */
static void
find_names_of_type(List **hashes, Oid type)
{
	Oid			element = get_element_type(type);
	HeapTuple	tuple;
	Form_pg_type form;
	Oid			base;
	bool		is_composite;

	check_stack_depth();
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(OidIsValid(element) ? element : type));
	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);
	*hashes = lappend_int(*hashes, GetSysCacheHashValue2(TYPENAMENSP, NameGetDatum(&form->typname),
														 ObjectIdGetDatum(form->typnamespace)));
	type = form->oid;
	base = form->typbasetype;
	is_composite = form->typtype == TYPTYPE_COMPOSITE;
	if (is_composite)
	{
		*hashes = lappend_int(*hashes, hash_of_row(form->typrelid));
		baton_names_expect(hash_of_row(form->typrelid));
	}
	ReleaseSysCache(tuple);
	if (base >= FirstNormalObjectId)
		find_names_of_type(hashes, base);
	if (is_composite)
	{
		TupleDesc	attributes = lookup_rowtype_tupdesc_copy(type, -1);

		for (int i = 0; i < attributes->natts; i++)
			if (TupleDescAttr(attributes, i)->atttypid >= FirstNormalObjectId)
				find_names_of_type(hashes, TupleDescAttr(attributes, i)->atttypid);
		FreeTupleDesc(attributes);
	}
}

static void
look_up_type(Oid type)
{
	TypeCalled *called = hash_search(types_called, &type, HASH_FIND, NULL);
	uint64		before = made;
	List	   *found = NIL;
	MemoryContext caller;

	if (called != NULL && called->made == made)
		return;
	find_names_of_type(&found, type);
	if (hash_get_num_entries(types_called) >= TYPES_CALLED_MAX)
		forget_types();
	caller = MemoryContextSwitchTo(types_context);
	called = hash_search(types_called, &type, HASH_FIND, NULL);
	if (called == NULL)
		called = hash_search(types_called, &type, HASH_ENTER, NULL);
	else
		list_free(called->hashes);
	called->hashes = list_copy(found);
	called->made = before;
	MemoryContextSwitchTo(caller);
	list_free(found);
}

const List *
baton_names_of_type(Oid type)
{
	const TypeCalled *called = hash_search(types_called, &type, HASH_FIND, NULL);

	return called == NULL ? NIL : called->hashes;
}

void
baton_names_query_analysed(Query *query)
{
	List	   *types;
	List	   *functions;
	ListCell   *cell;

	if (object_made == NULL)
		return;
	baton_bindings_types_and_functions(query, &types, &functions);
	foreach(cell, types)
		look_up_type(lfirst_oid(cell));
	list_free(types);
	baton_called_analysed(functions, baton_names_expect);
	list_free(functions);
}

static void
add(Collecting *collecting, uint32 salt, const char *name)
{
	StatementNames *names = collecting->names;

	for (int i = 0; i < names->count; i++)
		if (names->used[i].salt == salt && strcmp(names->used[i].name, name) == 0)
			return;
	if (names->count == names->room)
	{
		names->room *= 2;
		names->used = repalloc(names->used, names->room * sizeof(UsedName));
	}
	names->used[names->count].salt = salt;
	names->used[names->count].name = name;
	names->count++;
}

/* The last name in a string like 'schema."Name"', as an input function reads it. */
static void
add_string(Collecting *collecting, const char *string)
{
	StatementNames *names = collecting->names;
	Size		length = strlen(string);
	const char *end = string + length;
	const char *begin = end;
	char	   *name;
	bool		quoted = length > 1 && end[-1] == '"';

	if (length == 0 || length > STRING_NAME_MAX)
		return;
	if (names->count >= STRING_NAMES_MAX)
	{
		names->unknown = true;
		return;
	}
	if (quoted)
		end--;
	begin = end;
	while (begin > string && begin[-1] != (quoted ? '"' : '.'))
		begin--;
	name = downcase_truncate_identifier(begin, end - begin, false);
	if (quoted)
		strlcpy(name, begin, end - begin + 1);
	add(collecting, 0, name);
	add(collecting, BATON_TYPE_SALT, name);
}

/* Of ON CONFLICT ON CONSTRAINT; the index has the constraint's name. */
static void
add_constraint(Collecting *collecting, const InsertStmt *insert)
{
	const OnConflictClause *conflict = insert->onConflictClause;

	if (conflict == NULL || conflict->infer == NULL || conflict->infer->conname == NULL)
		return;
	if (insert->relation->schemaname == NULL)
		add(collecting, 0, conflict->infer->conname);
	else						/* perhaps in no schema of the path */
		collecting->names->is_opaque = true;
}

static bool
collect(Node *node, void *context)
{
	Collecting *collecting = context;

	if (node == NULL)
		return false;
	if (collecting->strings)
	{
		if (IsA(node, A_Const) && !((A_Const *) node)->isnull &&
			nodeTag(&((A_Const *) node)->val) == T_String)
			add_string(collecting, strVal(&((A_Const *) node)->val));
		return raw_expression_tree_walker(node, collect, context);
	}
	if (IsA(node, RangeVar) && ((RangeVar *) node)->schemaname == NULL)
		add(collecting, 0, ((RangeVar *) node)->relname);
	else if (IsA(node, TypeName) && list_length(((TypeName *) node)->names) == 1)
		add(collecting, BATON_TYPE_SALT, strVal(linitial(((TypeName *) node)->names)));
	else if (IsA(node, FuncCall))
		add(collecting, BATON_FUNCTION_SALT, strVal(llast(((FuncCall *) node)->funcname)));
	else if (IsA(node, RangeTableSample))
		add(collecting, BATON_FUNCTION_SALT, strVal(llast(((RangeTableSample *) node)->method)));
	else if (IsA(node, InsertStmt))
		add_constraint(collecting, (InsertStmt *) node);
	return raw_expression_tree_walker(node, collect, context);
}

StatementNames *
baton_names_collect(const CachedPlanSource *plan)
{
	MemoryContext caller = MemoryContextSwitchTo(plan->context);
	StatementNames *names = palloc0(sizeof(StatementNames));
	Collecting	collecting = {names, false};
	Node	   *statement = plan->raw_parse_tree == NULL ? NULL : plan->raw_parse_tree->stmt;

	names->room = 4;
	names->used = palloc(names->room * sizeof(UsedName));
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
				names->is_opaque = true;	/* not for the walker */
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
	names->inlined = false;
	names->since = made_before_stay;
}

bool
baton_names_can_look(void)
{
	return hash_is_checked;
}

void
baton_names_inlined(StatementNames *names)
{
	names->inlined = any_may_be_meant = true;
}

/* What the trees, which are new, hold beside the names that are written. */
static void
look_into_trees(StatementNames *names, const CachedPlanSource *plan)
{
	MemoryContext caller;
	Collecting	collecting = {names, true};

	names->unknown = names->is_opaque;
	memset(&names->bindings, 0, sizeof(names->bindings));
	baton_bindings_find(&names->bindings, plan->query_list, plan->query_string);
	names->unknown |= names->bindings.functions;
	if (!names->bindings.objects || names->unknown)
		return;

	/* as strings: 'sequence'::regclass */
	caller = MemoryContextSwitchTo(plan->context);
	(void) collect(plan->raw_parse_tree->stmt, &collecting);
	MemoryContextSwitchTo(caller);
}

static void
add_hash(StatementNames *names, uint32 hash)
{
	if (names->hash_count == names->hash_room)
	{
		names->hash_room *= 2;
		names->hashes = repalloc(names->hashes, names->hash_room * sizeof(uint32));
	}
	baton_names_expect(hash);
	names->hashes[names->hash_count++] = hash;
}

/* Those that a call may mean, whatever its name is written with. */
static void
hash_functions(StatementNames *names, const CachedPlanSource *plan)
{
	List	   *functions = baton_bindings_functions(plan->query_list);
	ListCell   *cell;

	foreach(cell, functions)
	{
		const BatonCompetitors *competitors = plan->search_path == NULL ? NULL :
		baton_called_competitors(lfirst_oid(cell), plan->search_path);

		if (competitors == NULL || competitors->too_many)
			names->unknown = true;
		else
			for (int i = 0; i < competitors->count; i++)
				add_hash(names, competitors->hashes[i]);
	}
	list_free(functions);
}

static void
hash_names(StatementNames *names, const CachedPlanSource *plan)
{
	const BatonSearchPath *path = plan->search_path;
	int			schemas = path == NULL ? 0 : list_length(path->schemas);
	List	   *types = baton_bindings_types(plan->query_list);
	ListCell   *cell;

	look_into_trees(names, plan);
	names->hash_count = 0;
	if (names->hashes != NULL)
		pfree(names->hashes);
	names->hash_room = Max(1, names->count * schemas + 3 * list_length(types));
	names->hashes = MemoryContextAlloc(plan->context, names->hash_room * sizeof(uint32));
	hash_functions(names, plan);
	if (path != NULL)
		foreach(cell, path->schemas)
			for (int i = 0; i < names->count; i++)
		{
			const UsedName *used = &names->used[i];

			add_hash(names, used->salt ^
					 baton_name_hash(used->salt == BATON_TYPE_SALT ? TYPENAMENSP : RELNAMENSP,
									 used->name, lfirst_oid(cell)));
		}
	foreach(cell, types)
	{
		const List *called = baton_names_of_type(lfirst_oid(cell));
		ListCell   *name;

		names->unknown |= called == NIL;
		foreach(name, called)
		{
			uint32		hash = lfirst_int(name);

			add_hash(names, hash);
			add_hash(names, hash ^ BATON_TYPE_SALT);
			add_hash(names, hash ^ BATON_FUNCTION_SALT);	/* type(value) */
		}
	}
	list_free(types);
	names->hashed = true;
	any_may_be_meant |= names->unknown;
}

bool
baton_names_hidden_by(const StatementNames *names, uint32 hash)
{
	if (!names->hashed)
		return false;			/* will be looked at */
	if (hash == BATON_ANY_OBJECT || hash == BATON_ANY_FUNCTION)
		return true;
	if (hash == BATON_ANY_ROLE)
		return names->bindings.roles || names->inlined;
	if (hash == BATON_ANY_ENUM)
		return names->bindings.constants || names->inlined;
	if (names->unknown || names->inlined)
		return true;
	for (int i = 0; i < names->hash_count; i++)
		if (names->hashes[i] == hash)
			return true;
	return false;
}

bool
baton_names_moment(const StatementNames *names)
{
	return names->hashed && names->bindings.moment;
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

uint64
baton_names_made(void)
{
	return made;
}

bool
baton_names_made_since(uint64 since, BatonMadeMatches matches, void *argument)
{
	if (made - since > RECENT_MAX)
		return true;
	for (uint64 i = since; i < made; i++)
		if (matches(recent[i % RECENT_MAX], argument))
			return true;
	return false;
}
