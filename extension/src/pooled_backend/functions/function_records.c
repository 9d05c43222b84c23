/*-------------------------------------------------------------------------
 *
 * function_records.c
 *		What compiled PL/pgSQL functions depend on: names, and the types of
 *		records.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/spi_priv.h"
#include "lib/ilist.h"
#include "nodes/memnodes.h"
#include "parser/scansup.h"
#include "plpgsql.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/expandedrecord.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "function_records.h"
#include "pg_catalogs.h"
#include "pg_plancache.h"
#include "statement_environment.h"
#include "statement_names.h"

/* ----------------------------------------------------------------
 *		What the functions of a table would mean by their names now.
 *
 * plpgsql resolves names when it compiles a function and when it first runs a
 * statement, and keeps the result; a session that began later would resolve
 * them again. So each word of a function's text is kept as a hash. When
 * another session comes, the hashes are compared with the names of relations
 * and types that were made since (statement_names.c), which the function may
 * mean. Every word counts, also in strings and comments: a false match only
 * costs a compilation. Words count as names in the schemas of the search path,
 * and in those that the text names. The same holds for the text of a function
 * in SQL that the planner copies. Functions that a call may mean are also
 * known by OID (statement_names.c). The names in the function's signature
 * count as words of its text.
 *
 * Relations in %TYPE are kept by OID: the types of their columns are compiled
 * in, and the relation cache tells when these change.
 * ----------------------------------------------------------------
 */

struct FunctionNames
{
	MemoryContext context;		/* of all below */
	HTAB	   *functions;		/* OIDs of the functions that were looked at */
	HTAB	   *words;			/* hashes of their words, of types, and of
								 * OIDs of functions that calls may mean */
	List	   *relations;		/* OIDs of the relations in their %TYPE */
	List	   *schemas;		/* named in the texts */
	BatonSearchPath *path;
	BatonBindings bindings;		/* of all queries */
	bool		inlines;		/* plans may hold functions in SQL */
	bool		unknown;		/* any object may be meant */
	bool		outdated;
	uint64		seen;			/* count of objects made (statement_names.c)
								 * as of the last look */
	dlist_node	node;
};

typedef struct NamedSchema
{
	Oid			schema;
	const char *name;
} NamedSchema;

/* The number of words before a %TYPE that are kept. */
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

/* For a function whose queries are not shown when they are analysed. */
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

static void
add_types(FunctionNames *names, const List *hashes)
{
	ListCell   *cell;

	foreach(cell, hashes)
	{
		add_hash(names, lfirst_int(cell));
		add_hash(names, (uint32) lfirst_int(cell) ^ BATON_TYPE_SALT);
	}
}

static void
add_type(FunctionNames *names, Oid type)
{
	if (type >= FirstNormalObjectId)
		add_types(names, baton_names_look_up_type(type));
}

/* Adds the result types of the functions of that name, in any schema. */
static void
add_result_types(FunctionNames *names, const char *name)
{
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	List	   *types = NIL;
	ListCell   *cell;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc form = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		types = list_append_unique_oid(types, form->prorettype);
	}
	ReleaseSysCacheList(list);
	foreach(cell, types)
		add_type(names, lfirst_oid(cell));
}

/*
 * Adds the types that a word may name, or that a function of that name
 * returns: the body may select an attribute of the result. Analysis of a body
 * that is copied is seen by no hook, and its constants and its references to
 * attributes are laid out as the types are then.
 */
static void
add_types_called(FunctionNames *names, const char *word)
{
	ListCell   *cell;

	add_type(names, TypenameGetTypid(word));
	add_result_types(names, word);
	foreach(cell, names->schemas)
		add_type(names, GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(word),
										ObjectIdGetDatum(((const NamedSchema *) lfirst(cell))->schema)));
}

/*
 * Adds the word before a dot, if it is a schema's name; NULL: there is none.
 */
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

/* Adds the relation of a %TYPE, if these words name a relation. */
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

/* The text between double quotes, whether or not it is a name. */
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
	bool		percent = false;	/* the last token was % */

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
			{
				add_functions_called(names, word);
				add_types_called(names, word);
			}
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
		add_schema(names, get_namespace_name(form->typnamespace));	/* may be gone */
	ReleaseSysCache(tuple);
}

/*
 * Adds the names in the signature, which plpgsql keeps for the CONTEXT of
 * messages. Whether they are shown with a schema depends on what hides the
 * function and the types of its arguments.
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

static void
add_named(FunctionNames *names, const BatonNamed *named)
{
	List	   *hashes;
	List	   *words;
	ListCell   *cell;

	names->unknown |= !baton_names_of(named, &hashes, &words);
	add_types(names, hashes);
	/* as an input function reads them: 'my-seq', '"a""b"' */
	foreach(cell, words)
		add_hash(names, baton_name_hash_alone(lfirst(cell)));
	list_free(hashes);
	list_free(words);
}

void
baton_function_names_rewritten(FunctionNames *names, Query *query)
{
	BatonNamed	named;

	baton_bindings_named(&named, list_make1(query));
	add_named(names, &named);
	baton_named_free(&named);
}

void
baton_function_names_analysed(FunctionNames *names, Query *query)
{
	BatonNamed	named;
	ListCell   *cell;

	baton_bindings_named(&named, list_make1(query));
	add_named(names, &named);
	baton_bindings_find(&names->bindings, list_make1(query), NULL);
	if (named.functions != NIL)
	{
		const BatonSearchPath *path = baton_search_path_get(CurrentMemoryContext);

		foreach(cell, named.functions)
			add_competitors(names, baton_called_competitors(lfirst_oid(cell), path));
	}
	baton_named_free(&named);
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
		case BATON_ANY_ROW:
			return names->unknown;
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

/* ----------------------------------------------------------------
 *		The types that plans of PL/pgSQL functions were made for.
 *
 * A RECORD has the type of the last value assigned to it, and plpgsql plans an
 * expression for the types that its records have at that moment. With another
 * type the same plan fails ("type of parameter ... does not match that when
 * preparing the plan", exec_eval_datum, pl_exec.c): in stock once per session,
 * but in a pool's backend for every later session. The same holds for NEW and
 * OLD after ALTER TABLE, and for the variable of CASE.
 *
 * So when a statement begins that another session has planned, the types noted
 * at its analysis are compared with the present ones. If they differ, the plan
 * is made invalid: plancache.c analyses it again, with plpgsql's own
 * callbacks, which look at the records of the running call. Plans of this
 * session are left alone: their errors are stock's.
 *
 * A PLpgSQL_plugin sees the statements; it is in place only while a function
 * runs that has such variables. If another library has claimed it (a debugger,
 * a profiler), such functions are compiled for each session.
 * ----------------------------------------------------------------
 */

/* A type that a query was analysed for. */
typedef struct NotedType
{
	int			dno;
	Oid			type;			/* InvalidOid: unknown */
	int32		typmod;
	Oid			collation;
	uint64		shape;			/* of a named row type, as a whole; otherwise
								 * 0 */
} NotedType;

typedef struct NotedQuery
{
	const PLpgSQL_expr *expr;	/* the key */
	int			count;
	NotedType  *types;			/* in the function's memory, like the
								 * following */
} NotedQuery;

/* A statement of a function. */
typedef struct Statement
{
	uint64		checked;		/* the stay in which it was last looked at */
	const NotedQuery *last;		/* the query that was found last */
} Statement;

/* Allocated in the memory of a compiled function. */
typedef struct FunctionRecords
{
	MemoryContextCallback callback;
	PLpgSQL_function *function;
	bool		has;
	List	   *queries;		/* keys in `noted` */
	Statement  *statements;		/* by their numbers */
} FunctionRecords;

#define CASE_VARIABLE "__Case__Variable_"

/* For a statement whose queries have no variables that may change. */
#define HAS_NONE PG_UINT64_MAX

static void statement_begins(PLpgSQL_execstate *estate, PLpgSQL_stmt *statement);

static PLpgSQL_plugin plugin = {.stmt_beg = statement_begins};
static PLpgSQL_plugin **place = NULL;
static ParseParamRefHook param_hook = NULL; /* plpgsql's hook, once it was
											 * seen */
static HTAB *noted = NULL;
static FunctionRecords *last_found = NULL;
static uint64 stay = 1;			/* number of the stay of a session, in one
								 * environment */

static void
function_has_gone(void *argument)
{
	FunctionRecords *records = argument;
	ListCell   *cell;

	if (last_found == records)
		last_found = NULL;
	foreach(cell, records->queries)
	{
		const PLpgSQL_expr *expr = lfirst(cell);

		(void) hash_search(noted, &expr, HASH_REMOVE, NULL);
	}
}

/* Is it a variable whose type may change? */
static bool
may_change(const PLpgSQL_datum *datum)
{
	const char *name;

	if (datum->dtype == PLPGSQL_DTYPE_REC || datum->dtype == PLPGSQL_DTYPE_RECFIELD)
		return true;
	if (datum->dtype != PLPGSQL_DTYPE_VAR)
		return false;
	name = ((const PLpgSQL_var *) datum)->refname;
	return name[0] == CASE_VARIABLE[0] &&
		strncmp(name, CASE_VARIABLE, strlen(CASE_VARIABLE)) == 0;
}

static bool
has_records(const PLpgSQL_function *function)
{
	for (int i = 0; i < function->ndatums; i++)
		if (may_change(function->datums[i]))
			return true;
	return false;
}

static FunctionRecords *
find(PLpgSQL_function *function)
{
	FunctionRecords *records;

	if (last_found != NULL && last_found->function == function)
		return last_found;
	for (MemoryContextCallback *callback = function->fn_cxt->reset_cbs;
		 callback != NULL; callback = callback->next)
		if (callback->func == function_has_gone)
			return last_found = callback->arg;

	records = MemoryContextAllocZero(function->fn_cxt, sizeof(FunctionRecords));
	records->function = function;
	records->has = has_records(function);
	if (records->has)
		records->statements = MemoryContextAllocZero(function->fn_cxt,
													 (function->nstatements + 1) * sizeof(Statement));
	records->callback.func = function_has_gone;
	records->callback.arg = records;
	MemoryContextRegisterResetCallback(function->fn_cxt, &records->callback);
	return last_found = records;
}

/*
 * The type that an expression would be analysed for now; returns false if it
 * has none.
 */
static bool
type_of(PLpgSQL_execstate *estate, int dno, NotedType *type)
{
	const PLpgSQL_datum *datum = estate->datums[dno];
	const PLpgSQL_recfield *field;
	const PLpgSQL_rec *record;
	ExpandedRecordFieldInfo info;

	memset(type, 0, sizeof(*type));
	type->dno = dno;
	type->typmod = -1;
	switch (datum->dtype)
	{
		case PLPGSQL_DTYPE_VAR:
			type->type = ((const PLpgSQL_var *) datum)->datatype->typoid;
			return true;
		case PLPGSQL_DTYPE_REC:
			record = (const PLpgSQL_rec *) datum;
			if (record->erh == NULL)
			{
				type->type = record->rectypeid;
				return true;
			}
			type->type = record->erh->er_typeid;
			if (type->type != RECORDOID)
				type->shape = record->erh->er_tupdesc_id;
			return true;
		case PLPGSQL_DTYPE_RECFIELD:
			field = (const PLpgSQL_recfield *) datum;
			record = (const PLpgSQL_rec *) estate->datums[field->recparentno];
			if (record->erh == NULL ||
				!expanded_record_lookup_field(record->erh, field->fieldname, &info))
				return false;
			type->type = info.ftypeid;
			type->typmod = info.ftypmod;
			type->collation = info.fcollation;
			return true;
		default:
			return true;
	}
}

/* Is it a query of a function's own? In doubt yes. */
bool
baton_function_records_is_own(const ParseState *pstate)
{
	return param_hook == NULL || pstate->p_paramref_hook == param_hook;
}

/*
 * A query has variables that may change: no statement is known to have none
 * any more.
 */
static void
look_at_all(FunctionRecords *records)
{
	for (unsigned int i = 0; i <= records->function->nstatements; i++)
		if (records->statements[i].checked == HAS_NONE)
			records->statements[i].checked = 0;
}

void
baton_function_records_analysed(ParseState *pstate)
{
	PLpgSQL_expr *expr;
	PLpgSQL_execstate *estate;
	FunctionRecords *records;
	NotedQuery *noted_query;
	bool		found;
	int			dno = -1;
	int			count = 0;

	if (param_hook == NULL || pstate->p_paramref_hook != param_hook)
		return;
	expr = pstate->p_ref_hook_state;
	if (expr == NULL || expr->func == NULL || expr->func->cur_estate == NULL ||
		!OidIsValid(expr->func->fn_oid))
		return;
	estate = expr->func->cur_estate;
	records = find(expr->func);
	if (!records->has)
		return;
	noted_query = hash_search(noted, &expr, HASH_ENTER, &found);
	if (!found)
	{
		MemoryContext caller = MemoryContextSwitchTo(expr->func->fn_cxt);

		noted_query->count = 0;
		noted_query->types = NULL;
		records->queries = lappend(records->queries, expr);
		MemoryContextSwitchTo(caller);
	}
	while ((dno = bms_next_member(expr->paramnos, dno)) >= 0)
		count += may_change(estate->datums[dno]);
	if (count > noted_query->count)
	{
		look_at_all(records);
		if (noted_query->types != NULL)
			pfree(noted_query->types);
		noted_query->count = 0;
		noted_query->types = MemoryContextAlloc(expr->func->fn_cxt, count * sizeof(NotedType));
	}
	noted_query->count = 0;
	dno = -1;
	while ((dno = bms_next_member(expr->paramnos, dno)) >= 0)
		if (may_change(estate->datums[dno]))
		{
			NotedType  *type = &noted_query->types[noted_query->count++];

			if (!type_of(estate, dno, type))
				type->type = InvalidOid;
		}
}

/* State of the look at one statement. */
typedef struct Looking
{
	PLpgSQL_execstate *estate;
	Statement  *statement;
	bool		has_none;		/* all its queries are planned, and none has
								 * variables that may change */
} Looking;

/* The note disappears with the function. */
static const NotedQuery *
query_of(Statement *within, const PLpgSQL_expr *expr)
{
	if (within->last == NULL || within->last->expr != expr)
		within->last = hash_search(noted, &expr, HASH_FIND, NULL);
	return within->last;
}

/*
 * Are the types unchanged? A variable of CASE has the type of its expression,
 * case_type.
 */
static bool
same_types(Looking *looking, const PLpgSQL_expr *expr, Oid case_type)
{
	PLpgSQL_execstate *estate = looking->estate;
	const NotedQuery *noted_query = NULL;
	int			dno = -1;

	while ((dno = bms_next_member(expr->paramnos, dno)) >= 0)
	{
		NotedType	now;
		int			at = 0;

		if (!may_change(estate->datums[dno]))
			continue;
		looking->has_none = false;
		if (noted_query == NULL)
			noted_query = query_of(looking->statement, expr);
		if (noted_query == NULL || !type_of(estate, dno, &now))
			return false;
		if (estate->datums[dno]->dtype == PLPGSQL_DTYPE_VAR)
			now.type = case_type;
		while (at < noted_query->count && noted_query->types[at].dno != dno)
			at++;
		if (at == noted_query->count || memcmp(&noted_query->types[at], &now, sizeof(now)) != 0)
			return false;
	}
	return true;
}

/* Learns plpgsql's callback for parameters, which identifies its queries. */
static void
learn_hook(PLpgSQL_expr *expr)
{
	CachedPlanSource *source;
	ParseState *pstate;

	if (expr->plan->plancache_list == NIL)
		return;
	source = linitial(expr->plan->plancache_list);
	if (source->parserSetup == NULL)
		return;
	pstate = make_parsestate(NULL);
	source->parserSetup(pstate, expr);
	param_hook = pstate->p_paramref_hook;
	free_parsestate(pstate);
}

static void
check_for(Looking *looking, PLpgSQL_expr *expr, Oid case_type)
{
	ListCell   *cell;

	if (expr == NULL)
		return;
	if (expr->plan == NULL)
	{
		looking->has_none = false;
		return;
	}
	if (param_hook == NULL)
		learn_hook(expr);
	if (same_types(looking, expr, case_type))
		return;
	foreach(cell, expr->plan->plancache_list)
		baton_plan_invalidate(lfirst(cell));
}

static void
check(Looking *looking, PLpgSQL_expr *expr)
{
	check_for(looking, expr, InvalidOid);
}

static void
check_list(Looking *looking, List *exprs)
{
	ListCell   *cell;

	foreach(cell, exprs)
		check(looking, lfirst(cell));
}

/* The type of an expression as planned; invalid if it is not planned. */
static Oid
planned_type(const PLpgSQL_expr *expr)
{
	const CachedPlanSource *source;

	if (expr == NULL || expr->plan == NULL || list_length(expr->plan->plancache_list) != 1)
		return InvalidOid;
	source = linitial(expr->plan->plancache_list);
	if (!source->is_valid || source->resultDesc == NULL || source->resultDesc->natts != 1)
		return InvalidOid;
	return TupleDescAttr(source->resultDesc, 0)->atttypid;
}

static void
check_case(Looking *looking, const PLpgSQL_stmt_case *statement)
{
	ListCell   *cell;

	check(looking, statement->t_expr);
	foreach(cell, statement->case_when_list)
		check_for(looking, ((PLpgSQL_case_when *) lfirst(cell))->expr,
				  planned_type(statement->t_expr));
}

static void
check_block(Looking *looking, const PLpgSQL_stmt_block *block)
{
	for (int i = 0; i < block->n_initvars; i++)
	{
		PLpgSQL_datum *datum = looking->estate->datums[block->initvarnos[i]];

		if (datum->dtype == PLPGSQL_DTYPE_VAR)
			check(looking, ((PLpgSQL_var *) datum)->default_val);
		else if (datum->dtype == PLPGSQL_DTYPE_REC)
			check(looking, ((PLpgSQL_rec *) datum)->default_val);
	}
}

static void
check_cursor(Looking *looking, int dno)
{
	if (looking->estate->datums[dno]->dtype == PLPGSQL_DTYPE_VAR)
		check(looking, ((PLpgSQL_var *) looking->estate->datums[dno])->cursor_explicit_expr);
}

#define OF(type) ((PLpgSQL_stmt_##type *) statement)
#define CHECK(expr) check(looking, expr)

/* Checks what the statement itself evaluates, not the statements within it. */
static void
check_statement(Looking *looking, PLpgSQL_stmt *statement)
{
	ListCell   *cell;

	switch (statement->cmd_type)
	{
		case PLPGSQL_STMT_BLOCK:
			check_block(looking, OF(block));
			break;
		case PLPGSQL_STMT_ASSIGN:
			CHECK(OF(assign)->expr);
			break;
		case PLPGSQL_STMT_IF:
			CHECK(OF(if)->cond);
			foreach(cell, OF(if)->elsif_list)
				CHECK(((PLpgSQL_if_elsif *) lfirst(cell))->cond);
			break;
		case PLPGSQL_STMT_CASE:
			check_case(looking, OF(case));
			break;
		case PLPGSQL_STMT_WHILE:
			CHECK(OF(while)->cond);
			break;
		case PLPGSQL_STMT_FORI:
			CHECK(OF(fori)->lower);
			CHECK(OF(fori)->upper);
			CHECK(OF(fori)->step);
			break;
		case PLPGSQL_STMT_FORS:
			CHECK(OF(fors)->query);
			break;
		case PLPGSQL_STMT_FORC:
			CHECK(OF(forc)->argquery);
			check_cursor(looking, OF(forc)->curvar);
			break;
		case PLPGSQL_STMT_FOREACH_A:
			CHECK(OF(foreach_a)->expr);
			break;
		case PLPGSQL_STMT_EXIT:
			CHECK(OF(exit)->cond);
			break;
		case PLPGSQL_STMT_RETURN:
			CHECK(OF(return)->expr);
			break;
		case PLPGSQL_STMT_RETURN_NEXT:
			CHECK(OF(return_next)->expr);
			break;
		case PLPGSQL_STMT_RETURN_QUERY:
			CHECK(OF(return_query)->query);
			CHECK(OF(return_query)->dynquery);
			check_list(looking, OF(return_query)->params);
			break;
		case PLPGSQL_STMT_RAISE:
			check_list(looking, OF(raise)->params);
			foreach(cell, OF(raise)->options)
				CHECK(((PLpgSQL_raise_option *) lfirst(cell))->expr);
			break;
		case PLPGSQL_STMT_ASSERT:
			CHECK(OF(assert)->cond);
			CHECK(OF(assert)->message);
			break;
		case PLPGSQL_STMT_EXECSQL:
			CHECK(OF(execsql)->sqlstmt);
			break;
		case PLPGSQL_STMT_DYNEXECUTE:
			CHECK(OF(dynexecute)->query);
			check_list(looking, OF(dynexecute)->params);
			break;
		case PLPGSQL_STMT_DYNFORS:
			CHECK(OF(dynfors)->query);
			check_list(looking, OF(dynfors)->params);
			break;
		case PLPGSQL_STMT_OPEN:
			CHECK(OF(open)->argquery);
			CHECK(OF(open)->query);
			CHECK(OF(open)->dynquery);
			check_list(looking, OF(open)->params);
			check_cursor(looking, OF(open)->curvar);
			break;
		case PLPGSQL_STMT_FETCH:
			CHECK(OF(fetch)->expr);
			break;
		case PLPGSQL_STMT_PERFORM:
			CHECK(OF(perform)->expr);
			break;
		case PLPGSQL_STMT_CALL:
			CHECK(OF(call)->expr);
			break;
		default:
			break;
	}
}

static void
statement_begins(PLpgSQL_execstate *estate, PLpgSQL_stmt *statement)
{
	FunctionRecords *records = last_found;
	Looking		looking;

	if (records == NULL || records->function != estate->func)
	{
		if (!OidIsValid(estate->func->fn_oid))
			return;				/* DO, whose function is not kept */
		records = find(estate->func);
	}
	if (!records->has || statement->stmtid > records->function->nstatements)
		return;
	looking.statement = &records->statements[statement->stmtid];
	if (looking.statement->checked == stay || looking.statement->checked == HAS_NONE)
		return;
	looking.estate = estate;
	looking.has_none = true;
	check_statement(&looking, statement);
	looking.statement->checked = looking.has_none ? HAS_NONE : stay;
}

void
baton_function_records_stay_begins(void)
{
	stay++;
}

bool
baton_function_records_has(PLpgSQL_function *function)
{
	return function->fn_cxt != NULL && find(function)->has;
}

bool
baton_function_records_can_watch(void)
{
	return *place == NULL || *place == &plugin;
}

void
baton_function_records_watch(bool watch)
{
	if (watch && *place == NULL)
		*place = &plugin;
	else if (!watch && *place == &plugin)
		*place = NULL;
}

void
baton_function_records_attach(void)
{
	HASHCTL		control;

	if (place != NULL)
		return;
	control.keysize = sizeof(PLpgSQL_expr *);
	control.entrysize = sizeof(NotedQuery);
	control.hcxt = TopMemoryContext;
	noted = hash_create("pg_baton queries of functions", 64, &control,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	place = (PLpgSQL_plugin **) find_rendezvous_variable("PLpgSQL_plugin");
}
