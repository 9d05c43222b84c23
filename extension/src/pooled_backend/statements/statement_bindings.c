/*-------------------------------------------------------------------------
 *
 * statement_bindings.c
 *		What a statement's trees and plan hold of the moment they were made at.
 *
 * Parse analysis turns literals into constants: the name of an object into its
 * OID, an enum's label into its OID, 'now' into the time.  The planner copies
 * the body of a function in SQL into its caller (inline_function, clauses.c).
 * PostgreSQL sends no invalidation when the same literal or body would mean
 * something else; docs/design/shared-caches.md says what follows for sharing.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "utils/syscache.h"

#include "statement_bindings.h"

typedef struct Finding
{
	BatonBindings *bindings;
	const char *text;			/* NULL: it has no word for a moment */
	Size		length;
} Finding;

/* What datetime.c reads as a moment, wherever it stands in a literal. */
static const char *const moment_words[] = {"now", "today", "tomorrow", "yesterday"};
static const char moment_letters[] = "nNtTyY";

static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The text may go on beyond its length. */
static bool
has_moment_word(const char *text, Size length)
{
	for (const char *at = text; (at = strpbrk(at, moment_letters)) != NULL && at < text +length; at++)
	{
		if (at > text &&is_letter(at[-1]))
			continue;
		for (int i = 0; i < (int) lengthof(moment_words); i++)
		{
			Size		size = strlen(moment_words[i]);

			if (size <= (Size) (text +length - at) &&
				pg_strncasecmp(at, moment_words[i], size) == 0 &&
				(at + size == text +length || !is_letter(at[size])))
				return true;
		}
	}
	return false;
}

/* Does the literal at this place of the text have such a word? */
static bool
literal_is_moment(const Finding *finding, int location)
{
	const char *begin;
	const char *end;

	if (location < 0 || (Size) location >= finding->length)
		return false;
	begin = finding->text +location;
	if (*begin >= '0' && *begin <= '9')
		return false;
	if (*begin == '$')
		return true;			/* its end is not looked for */
	begin = strchr(begin, '\'');
	if (begin == NULL)
		return false;
	end = strchr(++begin, '\'');
	if (end == NULL)
		end = finding->text +finding->length;
	/* escapes (E, U&) may hide one */
	return memchr(begin, '\\', end - begin) != NULL || has_moment_word(begin, end - begin);
}

/* Can a value of this type have been read from a word for a moment? */
static bool
may_be_moment(Oid type)
{
	switch (type)
	{
		case BOOLOID:
		case BPCHAROID:
		case BYTEAOID:
		case CSTRINGOID:
		case FLOAT4OID:
		case FLOAT8OID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case INTERVALOID:
		case JSONBOID:
		case JSONOID:
		case NAMEOID:
		case NUMERICOID:
		case OIDOID:
		case REGCLASSOID:
		case TEXTARRAYOID:
		case TEXTOID:
		case UNKNOWNOID:
		case UUIDOID:
		case VARCHAROID:
			return false;
		default:
			return true;
	}
}

static void
look_at_constant(Finding *finding, const Const *constant)
{
	BatonBindings *found = finding->bindings;

	switch (constant->consttype)
	{
		case REGCLASSOID:
		case REGTYPEOID:
			found->objects = true;
			break;
		case REGPROCOID:
		case REGPROCEDUREOID:
			found->functions = true;
			break;
		case REGROLEOID:
			found->roles = true;
			break;
		case REGCLASSARRAYOID:
		case REGTYPEARRAYOID:
		case REGPROCARRAYOID:
		case REGPROCEDUREARRAYOID:
		case REGROLEARRAYOID:
			found->objects = found->functions = found->roles = true;
			break;
		default:
			if (constant->consttype >= FirstNormalObjectId)
				found->constants = true;
			break;
	}
	if (finding->text !=NULL && !found->moment && may_be_moment(constant->consttype))
		found->moment = literal_is_moment(finding, constant->location);
}

typedef bool (*Walker) (Node *node, void *context);

/* What a query consists of; of a utility command, what is analysed with it. */
static bool
walk_query(Query *query, Walker walker, void *context, int flags)
{
	Node	   *utility = query->utilityStmt;

	if (utility != NULL && IsA(utility, ExplainStmt))
		return walker(((ExplainStmt *) utility)->query, context);
	if (utility != NULL && IsA(utility, CreateTableAsStmt))
		return walker(((CreateTableAsStmt *) utility)->query, context);
	if (utility != NULL && IsA(utility, DeclareCursorStmt))
		return walker(((DeclareCursorStmt *) utility)->query, context);
	if (utility != NULL && IsA(utility, CallStmt))
		return walker((Node *) ((CallStmt *) utility)->funcexpr, context) ||
			walker((Node *) ((CallStmt *) utility)->outargs, context);
	return query_tree_walker(query, walker, context, flags);
}

static bool
find(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Const))
	{
		look_at_constant(context, (Const *) node);
		return false;
	}
	if (IsA(node, Query))
		return walk_query((Query *) node, find, context, 0);
	return expression_tree_walker(node, find, context);
}

static void
begin(Finding *finding, BatonBindings *bindings, const char *text)
{
	finding->bindings = bindings;
	finding->text = NULL;
	finding->length = 0;
	if (text == NULL)
		return;
	finding->length = strlen(text);
	if (strchr(text, '\\') != NULL || has_moment_word(text, finding->length))
		finding->text = text;
}

void
baton_bindings_find(BatonBindings *bindings, List *queries, const char *text)
{
	Finding		finding;
	ListCell   *cell;

	begin(&finding, bindings, text);
	foreach(cell, queries)
		(void) find(lfirst(cell), &finding);
}

static void
add_type(List **types, Oid type)
{
	if (type >= FirstNormalObjectId)
		*types = list_append_unique_oid(*types, type);
}

static void
add_types(List **types, List *more)
{
	ListCell   *cell;

	foreach(cell, more)
		add_type(types, lfirst_oid(cell));
}

/* The types of this node itself. */
static void
add_types_of(List **types, Node *node)
{
	ListCell   *cell;

	switch (nodeTag(node))
	{
		case T_Const:
		case T_Param:
		case T_FuncExpr:
		case T_RowExpr:
		case T_ArrayExpr:
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_CoerceToDomain:
		case T_ArrayCoerceExpr:
		case T_ConvertRowtypeExpr:
		case T_FieldStore:
			add_type(types, exprType(node));
			break;
		case T_FieldSelect:
			add_type(types, exprType((Node *) ((FieldSelect *) node)->arg));
			break;
		case T_TableFunc:
			add_types(types, ((TableFunc *) node)->coltypes);
			break;
		case T_RangeTblEntry:
			foreach(cell, ((RangeTblEntry *) node)->functions)
				add_types(types, ((RangeTblFunction *) lfirst(cell))->funccoltypes);
			break;
		default:
			break;
	}
}

/* Rules and defaults that are stored have lost the place in their text (readfuncs.c). */
static void
add_function(List **functions, Node *node)
{
	if (IsA(node, FuncExpr))
	{
		const FuncExpr *call = (FuncExpr *) node;

		if (call->location >= 0 && (call->funcformat == COERCE_EXPLICIT_CALL ||
									call->funcformat == COERCE_SQL_SYNTAX))
			*functions = list_append_unique_oid(*functions, call->funcid);
	}
	else if (IsA(node, Aggref) && ((Aggref *) node)->location >= 0)
		*functions = list_append_unique_oid(*functions, ((Aggref *) node)->aggfnoid);
	else if (IsA(node, WindowFunc) && ((WindowFunc *) node)->location >= 0)
		*functions = list_append_unique_oid(*functions, ((WindowFunc *) node)->winfnoid);
	else if (IsA(node, TableSampleClause))
		*functions = list_append_unique_oid(*functions, ((TableSampleClause *) node)->tsmhandler);
}

/* What is looked for: NULL is not. */
typedef struct Named
{
	List	  **types;
	List	  **functions;
} Named;

static bool
find_named(Node *node, void *context)
{
	const Named *named = context;

	if (node == NULL)
		return false;
	if (IsA(node, Query))
		return walk_query((Query *) node, find_named, context,
						  QTW_EXAMINE_RTES_BEFORE);
	if (named->types != NULL)
		add_types_of(named->types, node);
	/* what is in it is walked by itself */
	if (IsA(node, RangeTblEntry))
		return false;
	if (named->functions != NULL)
		add_function(named->functions, node);
	return expression_tree_walker(node, find_named, context);
}

List *
baton_bindings_types(List *queries)
{
	List	   *types = NIL;
	Named		named = {&types, NULL};
	ListCell   *cell;

	foreach(cell, queries)
		(void) find_named(lfirst(cell), &named);
	return types;
}

List *
baton_bindings_functions(List *queries)
{
	List	   *functions = NIL;
	Named		named = {NULL, &functions};
	ListCell   *cell;

	foreach(cell, queries)
		(void) find_named(lfirst(cell), &named);
	return functions;
}

void
baton_bindings_types_and_functions(Query *query, List **types, List **functions)
{
	Named		named = {types, functions};

	*types = *functions = NIL;
	(void) find_named((Node *) query, &named);
}

bool
baton_bindings_moment(Query *query, const char *text)
{
	BatonBindings bindings = {0};
	Finding		finding;

	begin(&finding, &bindings, text);
	if (finding.text !=NULL)
		(void) find((Node *) query, &finding);
	return bindings.moment;
}

bool
baton_bindings_function_constant(Query *query)
{
	BatonBindings bindings = {0};

	baton_bindings_find(&bindings, list_make1(query), NULL);
	return bindings.functions;
}

bool
baton_bindings_is_users_sql(Oid function)
{
	HeapTuple	tuple;
	bool		result;

	if (function < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_proc) GETSTRUCT(tuple))->prolang == SQLlanguageId;
	ReleaseSysCache(tuple);
	return result;
}
