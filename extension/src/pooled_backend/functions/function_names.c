/*-------------------------------------------------------------------------
 *
 * function_names.c
 *		What the functions of a table would mean by their names now.
 *
 * plpgsql resolves names as it compiles a function and as it first runs a
 * statement, and keeps the result; a session that began later would resolve them
 * again.  So each word of a function's text is kept as a hash, and when another
 * session comes it is compared with the names of relations and types that were
 * made since (statement_names.c): the function may mean one of these.  Every
 * word counts, in strings and comments as well: to find too much costs a
 * compilation.  They are names in the schemas of the search path, and in those that
 * the text names.  So it is with the text of a function in SQL that the planner copies.
 * Functions that a call may mean are known by OID, too (called_functions.c).
 * The names in the function's signature count as words of its text.
 *
 * Of %TYPE the relations are kept by OID: the types of their columns are compiled
 * in, and a change of these is told by the relation cache.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "lib/ilist.h"
#include "parser/scansup.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "called_functions.h"
#include "function_names.h"
#include "name_hash.h"
#include "search_path.h"
#include "statement_bindings.h"
#include "statement_names.h"

struct FunctionNames
{
	MemoryContext context;		/* of all below */
	HTAB	   *functions;		/* OIDs of those that were looked at */
	HTAB	   *words;			/* hashes of their words, of types, and of
								 * OIDs of functions that calls may mean */
	List	   *relations;		/* OIDs of those whose %TYPE they have */
	List	   *schemas;		/* that the texts name */
	BatonSearchPath *path;
	BatonBindings bindings;		/* of all queries */
	bool		inlines;		/* plans may hold functions in SQL */
	bool		unknown;		/* any object may be meant */
	bool		outdated;
	uint64		seen;			/* how much had been made (statement_names.c) */
	dlist_node	node;
};

typedef struct NamedSchema
{
	Oid			schema;
	const char *name;
} NamedSchema;

/* The words before a %TYPE. */
#define LAST_WORDS 3

static dlist_head all = DLIST_STATIC_INIT(all);
static bool attached = false;

static void
relation_changes(Datum argument, Oid relation)
{
	dlist_iter	iter;

	dlist_foreach(iter, &all)
	{
		FunctionNames *names = dlist_container(FunctionNames, node, iter.cur);

		if (names->relations != NIL &&
			(!OidIsValid(relation) || list_member_oid(names->relations, relation)))
			names->outdated = true;
	}
}

void
baton_function_names_attach(void)
{
	if (!attached)
		CacheRegisterRelcacheCallback(relation_changes, (Datum) 0);
	attached = true;
}

static HTAB *
new_set(const char *name, MemoryContext context)
{
	HASHCTL		control;

	control.keysize = control.entrysize = sizeof(uint32);
	control.hcxt = context;
	return hash_create(name, 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
fill(FunctionNames *names)
{
	MemoryContext caller = MemoryContextSwitchTo(names->context);

	names->functions = new_set("pg_baton functions", names->context);
	names->words = new_set("pg_baton words of functions", names->context);
	names->relations = names->schemas = NIL;
	names->path = baton_search_path_get(names->context);
	memset(&names->bindings, 0, sizeof(names->bindings));
	names->inlines = names->unknown = names->outdated = false;
	names->seen = baton_names_made();
	MemoryContextSwitchTo(caller);
}

FunctionNames *
baton_function_names_create(MemoryContext parent)
{
	FunctionNames *names = MemoryContextAllocZero(parent, sizeof(FunctionNames));

	names->context = AllocSetContextCreate(parent, "pg_baton names of functions",
										   ALLOCSET_SMALL_SIZES);
	dlist_push_head(&all, &names->node);
	fill(names);
	return names;
}

void
baton_function_names_clear(FunctionNames *names)
{
	names->relations = names->schemas = NIL;
	MemoryContextReset(names->context);
	fill(names);
}

void
baton_function_names_destroy(FunctionNames *names)
{
	dlist_delete(&names->node);
	MemoryContextDelete(names->context);
	pfree(names);
}

static void
add_hash(FunctionNames *names, uint32 hash)
{
	(void) hash_search(names->words, &hash, HASH_ENTER, NULL);
}

static void
add_competitors(FunctionNames *names, const BatonCompetitors *competitors)
{
	if (competitors == NULL || competitors->too_many)
		names->unknown = true;
	else
		for (int i = 0; i < competitors->count; i++)
			add_hash(names, competitors->hashes[i]);
}

/* Of a function whose queries are not shown when they are analysed. */
static void
add_functions_called(FunctionNames *names, const char *word)
{
	BatonCompetitors competitors;

	baton_called_list(&competitors, word, names->path, InvalidOid);
	for (int i = 0; i < competitors.count; i++)
		baton_names_expect(competitors.hashes[i]);
	add_competitors(names, &competitors);
	pfree(competitors.hashes);
}

/* What stands before a dot, if it is a schema's name; NULL: there is none. */
static void
add_schema(FunctionNames *names, const char *word)
{
	Oid			schema = word == NULL ? InvalidOid : get_namespace_oid(word, true);
	NamedSchema *named;
	MemoryContext caller;
	ListCell   *cell;

	if (!OidIsValid(schema))
		return;
	foreach(cell, names->schemas)
		if (((const NamedSchema *) lfirst(cell))->schema == schema)
		return;
	caller = MemoryContextSwitchTo(names->context);
	named = palloc(sizeof(NamedSchema));
	named->schema = schema;
	named->name = pstrdup(word);
	names->schemas = lappend(names->schemas, named);
	MemoryContextSwitchTo(caller);
}

/* The relation of a %TYPE, if these words are one's names; else nothing. */
static void
add_relation(FunctionNames *names, const char *schema, const char *name)
{
	Oid			relation = InvalidOid;

	if (name == NULL)
		return;
	if (schema != NULL)
	{
		Oid			namespace = get_namespace_oid(schema, true);

		if (OidIsValid(namespace))
			relation = get_relname_relid(name, namespace);
	}
	if (!OidIsValid(relation))
		relation = RelnameGetRelid(name);
	if (OidIsValid(relation))
	{
		MemoryContext caller = MemoryContextSwitchTo(names->context);

		names->relations = list_append_unique_oid(names->relations, relation);
		MemoryContextSwitchTo(caller);
	}
}

static bool
is_word_byte(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '_' || c == '$' || IS_HIGHBIT_SET(c);
}

/* Text between double quotes; whether they are a name's is not asked. */
static char *
quoted_word(const char *begin)
{
	const char *end = strchr(begin, '"');
	Size		length = end == NULL ? 0 : end - begin;
	char	   *word;

	if (length == 0 || length >= 2 * NAMEDATALEN)
		return NULL;
	word = pnstrdup(begin, length);
	truncate_identifier(word, length, false);
	return word;
}

static bool
is_before_dot(const char *at)
{
	while (isspace((unsigned char) *at))
		at++;
	return *at == '.';
}

static void
add_words(FunctionNames *names, const char *source, bool is_copied)
{
	char	   *last[LAST_WORDS] = {NULL};
	const char *at = source;
	bool		percent = false;	/* just before */

	while (*at != '\0')
	{
		char	   *word = NULL;
		const char *end = at + 1;

		if (*at == '"')
			word = quoted_word(end);
		else if (is_word_byte(*at))
		{
			while (is_word_byte(*end))
				end++;
			word = downcase_truncate_identifier(at, end - at, false);
		}
		if (percent && word != NULL &&
			(strcmp(word, "type") == 0 || strcmp(word, "rowtype") == 0))
		{
			add_relation(names, last[1], last[0]);
			add_relation(names, last[2], last[1]);
		}
		percent = *at == '%' || (percent && isspace((unsigned char) *at));
		if (word != NULL)
		{
			add_hash(names, baton_name_hash_alone(word));
			if (is_copied)
				add_functions_called(names, word);
			if (is_before_dot(*at == '"' ? strchr(end, '"') + 1 : end))
				add_schema(names, word);
			memmove(last + 1, last, (LAST_WORDS - 1) * sizeof(char *));
			last[0] = word;
		}
		at = end;
	}
}

static void
add_argument_type(FunctionNames *names, Oid type)
{
	Oid			element = get_element_type(type);
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(OidIsValid(element) ? element : type));
	Form_pg_type form;

	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);
	add_hash(names, baton_name_hash_alone(NameStr(form->typname)));
	if (form->typnamespace != PG_CATALOG_NAMESPACE)
		add_schema(names, get_namespace_name(form->typnamespace));	/* it may be gone */
	ReleaseSysCache(tuple);
}

/*
 * plpgsql keeps the function's signature for the CONTEXT of messages.  Schemas in it
 * depend on what hides the function and the types of its arguments.
 */
static void
add_signature(FunctionNames *names, Form_pg_proc form)
{
	add_functions_called(names, NameStr(form->proname));
	add_schema(names, get_namespace_name(form->pronamespace));
	for (int i = 0; i < form->pronargs; i++)
		add_argument_type(names, form->proargtypes.values[i]);
}

static void
add_function(FunctionNames *names, Oid function, bool is_copied)
{
	HeapTuple	tuple;
	Datum		source;
	bool		no_source;
	bool		found;
	MemoryContext caller;
	MemoryContext work;

	(void) hash_search(names->functions, &function, HASH_FIND, &found);
	if (found)
		return;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return;
	work = AllocSetContextCreate(CurrentMemoryContext, "pg_baton words",
								 ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(work);
	source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &no_source);
	if (!no_source)
		add_words(names, TextDatumGetCString(source), is_copied);
	if (!is_copied)
		add_signature(names, (Form_pg_proc) GETSTRUCT(tuple));
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(work);
	ReleaseSysCache(tuple);
	(void) hash_search(names->functions, &function, HASH_ENTER, NULL);
}

void
baton_function_names_add(FunctionNames *names, Oid function)
{
	add_function(names, function, false);
}

void
baton_function_names_copied(FunctionNames *names, Oid function)
{
	add_function(names, function, true);
}

void
baton_function_names_rewritten(FunctionNames *names, Query *query)
{
	List	   *types = baton_bindings_types(list_make1(query));
	ListCell   *cell;

	foreach(cell, types)
	{
		const List *called = baton_names_of_type(lfirst_oid(cell));
		ListCell   *name;

		names->unknown |= called == NIL;
		foreach(name, called)
		{
			add_hash(names, lfirst_int(name));
			add_hash(names, (uint32) lfirst_int(name) ^ BATON_TYPE_SALT);
		}
	}
	list_free(types);
}

void
baton_function_names_analysed(FunctionNames *names, Query *query)
{
	List	   *functions = baton_bindings_functions(list_make1(query));
	ListCell   *cell;

	baton_function_names_rewritten(names, query);
	baton_bindings_find(&names->bindings, list_make1(query), NULL);
	if (functions != NIL)
	{
		const BatonSearchPath *path = baton_search_path_get(CurrentMemoryContext);

		foreach(cell, functions)
			add_competitors(names, baton_called_competitors(lfirst_oid(cell), path));
	}
}

void
baton_function_names_inlined(FunctionNames *names)
{
	names->inlines = true;
}

static bool
has_hash(const FunctionNames *names, uint32 hash)
{
	return hash_search(names->words, &hash, HASH_FIND, NULL) != NULL;
}

/* Is this the hash of a word as a name in that schema? */
static bool
has_word_of(const FunctionNames *names, uint32 hash, Oid schema)
{
	uint32		word;

	return !baton_name_hash_parts(hash, schema, &word) || has_hash(names, word) ||
		has_hash(names, word ^ BATON_TYPE_SALT) || has_hash(names, word ^ BATON_FUNCTION_SALT);
}

static bool
matches(uint32 hash, void *argument)
{
	const FunctionNames *names = argument;
	Oid			temporary;
	Oid			toast;
	ListCell   *cell;

	switch (hash)
	{
		case BATON_ANY_FUNCTION:
		case BATON_ANY_OBJECT:
			return true;
		case BATON_ANY_ROLE:
			return names->bindings.roles || names->inlines;
		case BATON_ANY_ENUM:
			return names->bindings.constants || names->inlines;
		default:
			break;
	}
	if (names->unknown || has_hash(names, hash))
		return true;
	foreach(cell, names->path->schemas)
		if (has_word_of(names, hash, lfirst_oid(cell)))
		return true;
	foreach(cell, names->schemas)
		if (has_word_of(names, hash, ((const NamedSchema *) lfirst(cell))->schema))
		return true;
	GetTempNamespaceState(&temporary, &toast);
	return OidIsValid(temporary) && has_word_of(names, hash, temporary);
}

static bool
is_renamed(const FunctionNames *names)
{
	ListCell   *cell;

	foreach(cell, names->schemas)
	{
		const NamedSchema *named = lfirst(cell);

		if (get_namespace_oid(named->name, true) != named->schema)
			return true;
	}
	return false;
}

bool
baton_function_names_outdated(FunctionNames *names)
{
	uint64		since = names->seen;

	names->seen = baton_names_made();
	if (hash_get_num_entries(names->functions) == 0)
		return false;
	return names->outdated || !baton_search_path_matches(names->path) || is_renamed(names) ||
		baton_names_made_since(since, matches, names);
}
