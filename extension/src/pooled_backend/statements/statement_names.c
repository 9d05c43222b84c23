/*-------------------------------------------------------------------------
 *
 * statement_names.c
 *		The names in a statement that a new object or function could take over.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "parser/scansup.h"
#include "rewrite/rewriteHandler.h"
#include "utils/catcache.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "pg_catalogs.h"
#include "pooled_state.h"
#include "statement_environment.h"
#include "statement_names.h"

/* ----------------------------------------------------------------
 *		The functions that a call by name may mean.
 *
 * A call means another function when a function of its name is made, replaced,
 * renamed or moved in a schema where it is looked for. It may also do so when
 * a function of that name goes that was not chosen (func_select_candidate(),
 * parse_func.c: a candidate of another type category keeps unknown literals
 * from being resolved). plancache.c follows the chosen function only.
 *
 * An invalidation of PROCNAMEARGSNSP has the arguments in its hash, so it
 * tells no name. An invalidation of PROCOID tells the OID (pg_catalogs.c). So
 * a changed function is known by its OID at once, and by its name and schema
 * as soon as a transaction can look it up. The old name of a function that was
 * dropped or renamed cannot be looked up: so what is kept has the OIDs of the
 * functions that competed with the chosen one when the call was analysed.
 *
 * They are looked up when a query is analysed and noted here, by the chosen
 * function and the search path, until what is kept of the query takes them
 * over. If there are too many, all are forgotten; a caller must then assume
 * that any function is meant.
 * ----------------------------------------------------------------
 */

#define CHANGED_MAX 4096
#define NOTED_MAX 1024
#define COMPETITORS_MAX 64

/* Salt of the hashes of OIDs. */
#define OID_SALT 0x51ED270B

typedef struct CalledKey
{
	Oid			function;
	uint32		path;			/* hash of the schemas */
} CalledKey;

typedef struct Called
{
	CalledKey	key;
	uint64		age;			/* number of changes by then */
	BatonCompetitors competitors;
} Called;

static MemoryContext noted_context = NULL;
static HTAB *noted = NULL;

/* Changed functions that are still to be looked up. */
static Oid	changed[CHANGED_MAX];
static int	changed_count = 0;
static bool changed_too_many = false;
static uint64 age = 0;

static void
forget_all(void)
{
	HASHCTL		control;

	MemoryContextReset(noted_context);
	control.keysize = sizeof(CalledKey);
	control.entrysize = sizeof(Called);
	control.hcxt = noted_context;
	noted = hash_create("pg_baton called functions", 64, &control,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Called once per backend. */
static void
called_attach(void)
{
	noted_context = AllocSetContextCreate(TopMemoryContext, "pg_baton called functions",
										  ALLOCSET_DEFAULT_SIZES);
	forget_all();
}

static uint32
hash_of(const char *name, Oid schema)
{
	return baton_name_hash(RELNAMENSP, name, schema) ^ BATON_FUNCTION_SALT;
}

/*
 * The row of a function has changed, as an invalidation of PROCOID says.
 * Returns false if it is one of the server's own, which any call may mean.
 * Sets the hash of its OID.
 */
static bool
called_changed(uint32 invalidation, uint32 *hash)
{
	Oid			function;

	age++;
	*hash = invalidation ^ OID_SALT;
	if (!baton_name_hash_oid(invalidation, &function) || function < FirstNormalObjectId)
		return false;
	if (changed_count > 0 && changed[changed_count - 1] == function)
		return true;
	if (changed_count == CHANGED_MAX)
		changed_too_many = true;
	else
		changed[changed_count++] = function;
	return true;
}

static bool
called_any_changed(void)
{
	return changed_count > 0;
}

static bool
called_name_changed(BatonFunctionNamed named)
{
	bool		all_known = true;

	/* a look-up may process further changes */
	for (int i = 0; i < changed_count && !changed_too_many; i++)
	{
		HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(changed[i]));
		Form_pg_proc form;

		if (!HeapTupleIsValid(tuple))
			continue;
		form = (Form_pg_proc) GETSTRUCT(tuple);
		/* this schema is searched even if search_path does not name it */
		if (form->pronamespace == PG_CATALOG_NAMESPACE)
			all_known = false;
		named(hash_of(NameStr(form->proname), form->pronamespace));
		ReleaseSysCache(tuple);
	}
	all_known &= !changed_too_many;
	changed_count = 0;
	changed_too_many = false;
	return all_known;
}

void
baton_called_list(BatonCompetitors *competitors, const char *name,
				  const BatonSearchPath *path, Oid schema)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	int			room = list_length(path->schemas) + 1 + Min(list->n_members, COMPETITORS_MAX);
	ListCell   *cell;

	competitors->too_many = false;
	competitors->count = 0;
	competitors->hashes = palloc(room * sizeof(uint32));
	competitors->hashes[competitors->count++] = hash_of(name, schema);
	foreach(cell, path->schemas)
		competitors->hashes[competitors->count++] = hash_of(name, lfirst_oid(cell));
	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (form->oid < FirstNormalObjectId ||
			!(form->pronamespace == schema || list_member_oid(path->schemas, form->pronamespace)))
			continue;
		if (competitors->count == room)
		{
			competitors->too_many = true;
			break;
		}
		competitors->hashes[competitors->count++] = baton_name_hash_of_oid(form->oid) ^ OID_SALT;
	}
	ReleaseCatCacheList(list);
}

static void
set_key(CalledKey *key, Oid function, const BatonSearchPath *path)
{
	ListCell   *cell;

	key->function = function;
	key->path = 0;
	foreach(cell, path->schemas)
		key->path = hash_combine(key->path, murmurhash32(lfirst_oid(cell)));
}

static void
look_up(Oid function, const BatonSearchPath *path, BatonCompetitorFound found)
{
	CalledKey	key;
	Called	   *called;
	HeapTuple	tuple;
	Form_pg_proc form;
	MemoryContext caller;
	BatonCompetitors competitors;
	uint64		before = age;
	bool		is_there;

	set_key(&key, function, path);
	called = hash_search(noted, &key, HASH_FIND, NULL);
	if (called != NULL && called->age == age)
		return;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return;
	if (hash_get_num_entries(noted) >= NOTED_MAX)
		forget_all();
	form = (Form_pg_proc) GETSTRUCT(tuple);
	caller = MemoryContextSwitchTo(noted_context);
	baton_called_list(&competitors, NameStr(form->proname), path, form->pronamespace);
	MemoryContextSwitchTo(caller);
	ReleaseSysCache(tuple);
	called = hash_search(noted, &key, HASH_ENTER, &is_there);
	if (is_there)
		pfree(called->competitors.hashes);
	called->age = before;
	called->competitors = competitors;
	for (int i = 0; i < competitors.count; i++)
		found(competitors.hashes[i]);
}

static void
called_analysed(const List *functions, BatonCompetitorFound found)
{
	BatonSearchPath *path;
	ListCell   *cell;

	if (functions == NIL)
		return;
	path = baton_search_path_get(CurrentMemoryContext);
	foreach(cell, functions)
		look_up(lfirst_oid(cell), path, found);
}

const BatonCompetitors *
baton_called_competitors(Oid function, const BatonSearchPath *path)
{
	CalledKey	key;
	Called	   *called;

	set_key(&key, function, path);
	called = hash_search(noted, &key, HASH_FIND, NULL);
	return called == NULL ? NULL : &called->competitors;
}

/* ----------------------------------------------------------------
 *		The names in a statement that a new object could hide.
 *
 * An analysed statement goes on to mean the objects that it meant, even if an
 * object of the same name is made in a schema that comes earlier in the search
 * path: plancache.c is not told. On a direct connection a session that
 * prepares after that means the new object, but here it would get what was
 * analysed for another session. So a common statement (statement_cache.c) must
 * be analysed again when an object is made, or renamed, that one of its names
 * could now mean.
 *
 * Every new row of pg_class and pg_type is announced to all backends as an
 * invalidation of the catalog caches by name, with the hash value of name and
 * schema (PrepareToInvalidateCacheTuple, catcache.c); a transaction's own
 * backend processes it at the next command. Relations and types are compared
 * by that value, for each unqualified name and each schema of the path; others
 * (a temporary table in each transaction, for example) cost a look at a
 * bitmap. Functions are looked up by their OID before a statement is, and
 * compared in the same way. What was analysed in a stay is compared with
 * everything made since the stay began. Operators and schemas are left to
 * plancache.c: InitPlanCache() has callbacks that reset all plans.
 *
 * A type that values are converted to counts whatever schema its name was
 * written with, and so do its component types, and the relations that hold the
 * attributes of composite types: a statement holds the type's OID, about which
 * plancache.c is not told, and constants in their old layout. The catalog is
 * asked for the names when a query is analysed. An attribute that is dropped,
 * renamed or gets another type writes no row of pg_class or pg_type: the
 * relation cache announces it, by the relation's OID.
 *
 * A transaction begins by processing what other backends have committed
 * (AtStart_Cache, xact.c), and a plan is used in a transaction: so what
 * existed when a session prepared is known wherever the session comes.
 * Statements are looked up just before that (exec_bind_message, postgres.c),
 * so what is looked up then is among what can be announced.
 * ----------------------------------------------------------------
 */

typedef struct UsedName
{
	uint32		salt;			/* the kind of object: 0: a relation */
	const char *name;
} UsedName;

struct StatementNames
{
	bool		is_opaque;		/* the raw parse tree was not searched */
	bool		unknown;		/* any object may be meant */
	bool		inlined;		/* functions in SQL, in the generic plan */
	BatonBindings bindings;		/* what the trees hold; valid if hashed */
	int			count;
	int			room;
	UsedName   *used;
	uint64		since;			/* number of objects made up to which it was
								 * compared; only if not hashed */
	bool		hashed;
	int			hash_count;
	int			hash_room;
	uint32	   *hashes;			/* of each name in each schema */
};

/* For a relation that holds a type's attributes; its OID is hashed. */
#define ROW_SALT 0x5BD1E995

#define RECENT_MAX 4096
#define BITMAP_BITS 65536

/* Types whose names are noted: if there are more, all are forgotten. */
#define TYPES_CALLED_MAX 1024

typedef enum CalledKind
{
	OF_TYPE,					/* the names of a type and of its component
								 * types */
	OF_TARGET,					/* of the domains of a target's columns */
	OF_REGCLASS,				/* of a relation in a constant */
	OF_REGTYPE					/* of a type in a constant, and of its
								 * elements' */
} CalledKind;

typedef struct TypeKey
{
	CalledKind	kind;
	Oid			object;
} TypeKey;

typedef struct TypeCalled
{
	TypeKey		key;
	uint64		made;			/* number of objects made by then */
	List	   *hashes;			/* of name and schema, and of relations with
								 * attributes */
	List	   *names;			/* char *: of what a constant means */
} TypeCalled;

static MemoryContext types_context = NULL;
static HTAB *types_called = NULL;
static BatonObjectMade object_made = NULL;
static bool hash_is_checked = false;
static uint64 bitmap[BITMAP_BITS / 64]; /* of all hashes that statements ever
										 * had */
static bool any_may_be_meant = false;	/* a statement existed for which any
										 * name counts */
static bool rows_may_be_meant = false;	/* or one may have been planned */

/* The hashes of recently made objects. */
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

/*
 * A name that any session may mean: its hash is compared if a statement has
 * it.
 */
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
		made += RECENT_MAX + 1; /* plancache.c has reset all plans, too */
	else if (!called_changed(invalidation, &hash))
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
		made += RECENT_MAX + 1; /* plancache.c has reset all plans, too */
		return;
	}
	note_named(cache == TYPENAMENSP ? hash ^ BATON_TYPE_SALT : hash);
}

static uint32
hash_of_row(Oid relation)
{
	return baton_name_hash_of_oid(relation) ^ ROW_SALT;
}

/* An invalidation without an OID comes with those of all names. */
static void
note_row(Datum argument, Oid relation)
{
	uint32		hash = hash_of_row(relation);

	if (relation < FirstNormalObjectId)
		return;
	if (is_in_bitmap(hash))
		note_named(hash);
	else if (any_may_be_meant || rows_may_be_meant)
	{
		recent[made++ % RECENT_MAX] = BATON_ANY_ROW;
		if (any_may_be_meant)
			object_made(BATON_ANY_ROW);
	}
}

/*
 * Statements have taken over what they need, except those that were not looked
 * at yet: these may mean any object (hash_names).
 */
static void
forget_types(void)
{
	HASHCTL		control;

	if (types_context == NULL)
		types_context = AllocSetContextCreate(TopMemoryContext, "pg_baton types",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(types_context);
	control.keysize = sizeof(TypeKey);
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
	called_attach();
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
			return;				/* the analysis has failed */
		AcceptInvalidationMessages();
	}
	if (!called_any_changed())
		return;
	if (is_own)
		baton_own_transaction_start();
	if (!called_name_changed(note_named))
		note(BATON_ANY_FUNCTION);
	if (is_own)
		CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/*
 * The names of a type, of its element or base type, and of all its attributes'
 * types.
 */
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

/*
 * The table of an updatable view (rewriteTargetView, rewriteHandler.c);
 * InvalidOid: none is found.
 */
static Oid
table_of_view(Relation relation)
{
	const Query *query;
	const Node *from;
	const RangeTblEntry *entry;

	if (relation->rd_rel->relkind != RELKIND_VIEW)
		return InvalidOid;
	query = get_view_query(relation);
	if (list_length(query->jointree->fromlist) != 1)
		return InvalidOid;
	from = linitial(query->jointree->fromlist);
	if (!IsA(from, RangeTblRef))
		return InvalidOid;
	entry = rt_fetch(((const RangeTblRef *) from)->rtindex, query->rtable);
	return entry->rtekind == RTE_RELATION ? entry->relid : InvalidOid;
}

/*
 * build_column_default() (rewriteHandler.c) looks at the domains of the
 * columns that an INSERT leaves out; if one has no default, nothing in the
 * rewritten tree tells of it.
 */
static void
find_names_of_domains(List **hashes, Relation relation)
{
	for (int i = 0; i < RelationGetNumberOfAttributes(relation); i++)
	{
		Oid			type = TupleDescAttr(RelationGetDescr(relation), i)->atttypid;

		if (type >= FirstNormalObjectId && get_typtype(type) == TYPTYPE_DOMAIN)
			find_names_of_type(hashes, type);
	}
}

/*
 * A constant 'kind[]'::regtype may have been read from the name of its element
 * type.
 */
static void
find_names_of_regtype(List **hashes, List **names, Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Form_pg_type form;
	Oid			element = get_element_type(type);

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);
	*hashes = lappend_int(*hashes, GetSysCacheHashValue2(TYPENAMENSP, NameGetDatum(&form->typname),
														 ObjectIdGetDatum(form->typnamespace)));
	*names = lappend(*names, pstrdup(NameStr(form->typname)));
	ReleaseSysCache(tuple);
	if (OidIsValid(element))
		find_names_of_regtype(hashes, names, element);
}

static const TypeCalled *
keep_names(TypeKey key, uint64 made_before, const List *hashes, const List *names)
{
	TypeCalled *called;
	List	   *kept_hashes;
	List	   *kept_names = NIL;
	ListCell   *cell;
	MemoryContext caller;

	if (hash_get_num_entries(types_called) >= TYPES_CALLED_MAX)
		forget_types();
	caller = MemoryContextSwitchTo(types_context);
	kept_hashes = list_copy(hashes);
	foreach(cell, names)
		kept_names = lappend(kept_names, pstrdup(lfirst(cell)));
	MemoryContextSwitchTo(caller);
	called = hash_search(types_called, &key, HASH_FIND, NULL);
	if (called == NULL)
		called = hash_search(types_called, &key, HASH_ENTER, NULL);
	else
	{
		list_free(called->hashes);
		list_free_deep(called->names);
	}
	called->hashes = kept_hashes;
	called->names = kept_names;
	called->made = made_before;
	return called;
}

static const TypeCalled *
look_up_names(CalledKind kind, Oid object)
{
	TypeKey		key = {kind, object};
	const TypeCalled *called = hash_search(types_called, &key, HASH_FIND, NULL);
	uint64		before = made;
	List	   *hashes = NIL;
	List	   *names = NIL;
	char	   *name;

	if (called != NULL && called->made == made)
		return called;
	switch (kind)
	{
		case OF_TYPE:
			find_names_of_type(&hashes, object);
			break;
		case OF_REGTYPE:
			find_names_of_regtype(&hashes, &names, object);
			break;
		case OF_REGCLASS:

			/*
			 * plancache.c follows the relation itself (fix_expr_common,
			 * setrefs.c)
			 */
			name = get_rel_name(object);
			if (name != NULL)
				names = list_make1(name);
			break;
		case OF_TARGET:
			return NULL;
	}
	called = keep_names(key, before, hashes, names);
	list_free(hashes);
	list_free_deep(names);
	return called;
}

const List *
baton_names_look_up_type(Oid type)
{
	return look_up_names(OF_TYPE, type)->hashes;
}

/* A column may change its type without a new name. */
static void
look_up_target(Oid target, LOCKMODE lock)
{
	Relation	relation = relation_open(target, lock);
	TypeKey		key = {OF_TARGET, target};
	uint64		before = made;
	List	   *found = NIL;
	Oid			table = table_of_view(relation);

	find_names_of_domains(&found, relation);
	relation_close(relation, NoLock);
	(void) keep_names(key, before, found, NIL);
	list_free(found);
	if (OidIsValid(table))
	{
		check_stack_depth();
		look_up_target(table, AccessShareLock);
	}
}

void
baton_names_query_analysed(Query *query)
{
	BatonNamed	named;
	ListCell   *cell;

	if (object_made == NULL)
		return;
	baton_bindings_named(&named, list_make1(query));
	foreach(cell, named.types)
		(void) look_up_names(OF_TYPE, lfirst_oid(cell));
	foreach(cell, named.regtypes)
		(void) look_up_names(OF_REGTYPE, lfirst_oid(cell));
	foreach(cell, named.regclasses)
		(void) look_up_names(OF_REGCLASS, lfirst_oid(cell));
	foreach(cell, named.targets)
		look_up_target(lfirst_oid(cell), NoLock);	/* analysis has locked it */
	called_analysed(named.functions, baton_names_expect);
	baton_named_free(&named);
}

/* Returns false if one is not known any more, or has gone. */
static bool
add_names_of(List **hashes, List **names, CalledKind kind, const List *objects)
{
	bool		all_known = true;
	ListCell   *cell;

	foreach(cell, objects)
	{
		TypeKey		key = {kind, lfirst_oid(cell)};
		const TypeCalled *called = hash_search(types_called, &key, HASH_FIND, NULL);

		if (called == NULL ||
			(kind != OF_TARGET && called->hashes == NIL && called->names == NIL))
			all_known = false;
		else
		{
			*hashes = list_concat(*hashes, called->hashes);
			*names = list_concat(*names, called->names);
		}
	}
	return all_known;
}

bool
baton_names_of(const BatonNamed *named, List **hashes, List **names)
{
	bool		all_known = true;

	*hashes = *names = NIL;
	all_known &= add_names_of(hashes, names, OF_TYPE, named->types);
	all_known &= add_names_of(hashes, names, OF_TARGET, named->targets);
	all_known &= add_names_of(hashes, names, OF_REGTYPE, named->regtypes);
	all_known &= add_names_of(hashes, names, OF_REGCLASS, named->regclasses);
	return all_known;
}

static void
add(StatementNames *names, uint32 salt, const char *name)
{
	for (int i = 0; i < names->count; i++)
		if (names->used[i].salt == salt && strcmp(names->used[i].name, name) == 0)
			return;
	if (names->count == names->room)
	{
		names->room *= 2;
		names->used = repalloc(names->used, names->room * sizeof(UsedName));
	}
	names->used[names->count].salt = salt;
	names->used[names->count].name = pstrdup(name);
	names->count++;
}

/* For ON CONFLICT ON CONSTRAINT; the index has the constraint's name. */
static void
add_constraint(StatementNames *names, const InsertStmt *insert)
{
	const OnConflictClause *conflict = insert->onConflictClause;

	if (conflict == NULL || conflict->infer == NULL || conflict->infer->conname == NULL)
		return;
	if (insert->relation->schemaname == NULL)
		add(names, 0, conflict->infer->conname);
	else						/* perhaps in no schema of the path */
		names->is_opaque = true;
}

static bool
collect(Node *node, void *context)
{
	StatementNames *names = context;

	if (node == NULL)
		return false;
	if (IsA(node, RangeVar) && ((RangeVar *) node)->schemaname == NULL)
		add(names, 0, ((RangeVar *) node)->relname);
	else if (IsA(node, TypeName) && list_length(((TypeName *) node)->names) == 1)
		add(names, BATON_TYPE_SALT, strVal(linitial(((TypeName *) node)->names)));
	else if (IsA(node, FuncCall))
		add(names, BATON_FUNCTION_SALT, strVal(llast(((FuncCall *) node)->funcname)));
	else if (IsA(node, RangeTableSample))
		add(names, BATON_FUNCTION_SALT, strVal(llast(((RangeTableSample *) node)->method)));
	else if (IsA(node, InsertStmt))
		add_constraint(names, (InsertStmt *) node);
	return raw_expression_tree_walker(node, collect, context);
}

StatementNames *
baton_names_collect(const CachedPlanSource *plan)
{
	MemoryContext caller = MemoryContextSwitchTo(plan->context);
	StatementNames *names = palloc0(sizeof(StatementNames));
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
				(void) collect(statement, names);
				break;
			default:
				names->is_opaque = true;	/* the walker does not support it */
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
baton_names_will_inline(void)
{
	rows_may_be_meant = true;
}

void
baton_names_inlined(StatementNames *names)
{
	names->inlined = any_may_be_meant = true;
}

/* Adds names that constants may have been read from: 'sequence'::regclass. */
static void
add_words(StatementNames *names, MemoryContext context, const List *words)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	ListCell   *cell;

	foreach(cell, words)
	{
		add(names, 0, lfirst(cell));
		add(names, BATON_TYPE_SALT, lfirst(cell));
	}
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

/*
 * Adds the functions that a call may mean, with whatever schema its name is
 * written.
 */
static void
hash_functions(StatementNames *names, const CachedPlanSource *plan, const List *functions)
{
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
}

static void
hash_names(StatementNames *names, const CachedPlanSource *plan)
{
	const BatonSearchPath *path = plan->search_path;
	int			schemas = path == NULL ? 0 : list_length(path->schemas);
	BatonNamed	named;
	List	   *called;
	List	   *words;
	ListCell   *cell;

	baton_bindings_named(&named, plan->query_list);
	memset(&names->bindings, 0, sizeof(names->bindings));
	baton_bindings_find(&names->bindings, plan->query_list, plan->query_string);
	names->unknown = !baton_names_of(&named, &called, &words) || names->is_opaque ||
		names->bindings.functions;
	add_words(names, plan->context, words);
	names->hash_count = 0;
	if (names->hashes != NULL)
		pfree(names->hashes);
	names->hash_room = Max(1, names->count * schemas + 3 * list_length(called));
	names->hashes = MemoryContextAlloc(plan->context, names->hash_room * sizeof(uint32));
	hash_functions(names, plan, named.functions);
	if (path != NULL)
		foreach(cell, path->schemas)
			for (int i = 0; i < names->count; i++)
		{
			const UsedName *used = &names->used[i];

			add_hash(names, used->salt ^
					 baton_name_hash(used->salt == BATON_TYPE_SALT ? TYPENAMENSP : RELNAMENSP,
									 used->name, lfirst_oid(cell)));
		}
	foreach(cell, called)
	{
		uint32		hash = lfirst_int(cell);

		add_hash(names, hash);
		add_hash(names, hash ^ BATON_TYPE_SALT);
		add_hash(names, hash ^ BATON_FUNCTION_SALT);	/* type(value) */
	}
	list_free(called);
	list_free(words);
	baton_named_free(&named);
	names->hashed = true;
	any_may_be_meant |= names->unknown;
}

bool
baton_names_hidden_by(const StatementNames *names, uint32 hash)
{
	if (!names->hashed)
		return false;			/* it will be looked at */
	if (hash == BATON_ANY_OBJECT || hash == BATON_ANY_FUNCTION)
		return true;
	if (hash == BATON_ANY_ROLE)
		return names->bindings.roles || names->inlined;
	if (hash == BATON_ANY_ENUM)
		return names->bindings.constants || names->inlined;
	if (names->unknown || names->inlined)
		return true;
	if (hash == BATON_ANY_ROW)
		return false;
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
