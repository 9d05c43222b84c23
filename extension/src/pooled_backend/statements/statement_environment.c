/*-------------------------------------------------------------------------
 *
 * statement_environment.c
 *		What analysis and planning of a statement depend on besides its text.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "context_params.h"
#include "pg_guc.h"
#include "pooled_state.h"
#include "statement_environment.h"

/* ----------------------------------------------------------------
 *		What a statement's trees and plan keep of the moment when they were made.
 *
 * Parse analysis turns literals into constants: the name of an object into its
 * OID, an enum's label into its OID, 'now' into the time. The planner copies
 * the body of a function in SQL into its caller (inline_function, clauses.c).
 * PostgreSQL sends no invalidation when the same literal or body would mean
 * something else; docs/design/shared-caches.md says what follows for sharing.
 * ----------------------------------------------------------------
 */

typedef struct Finding
{
	BatonBindings *bindings;
	const char *text;			/* NULL: it contains no word for a moment */
	Size		length;
} Finding;

/* Words that datetime.c reads as a moment, anywhere in a literal. */
static const char *const moment_words[] = {"now", "today", "tomorrow", "yesterday"};
static const char moment_letters[] = "nNtTyY";

static bool
is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The text may continue beyond `length`. */
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

/* Does the literal at this position of the text contain such a word? */
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
		return true;			/* its end is not searched */
	begin = strchr(begin, '\'');
	if (begin == NULL)
		return false;
	end = strchr(++begin, '\'');
	if (end == NULL)
		end = finding->text +finding->length;
	/* escapes (E, U&) may hide a word */
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
			found->functions = found->roles = true;
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

/*
 * Walks the parts of a query; of a utility command, those that are analysed
 * with it.
 */
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

/* Adds the types of this node itself. */
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

/*
 * Stored rules and defaults have lost the position in their text
 * (readfuncs.c).
 */
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

/* Those of stored rules and defaults are not read again. */
static void
add_constant(BatonNamed *named, const Const *constant)
{
	List	  **objects = &named->regtypes;

	if (constant->consttype == REGCLASSOID)
		objects = &named->regclasses;
	else if (constant->consttype != REGTYPEOID)
		return;
	if (constant->location >= 0 && !constant->constisnull &&
		OidIsValid(DatumGetObjectId(constant->constvalue)))
		*objects = list_append_unique_oid(*objects, DatumGetObjectId(constant->constvalue));
}

/* Columns that an INSERT leaves out get the defaults of their domains. */
static void
add_target(List **targets, const Query *query)
{
	bool		inserts = query->commandType == CMD_INSERT;
	ListCell   *cell;

	foreach(cell, query->mergeActionList)
		inserts |= lfirst_node(MergeAction, cell)->commandType == CMD_INSERT;
	if (inserts && query->resultRelation > 0)
		*targets = list_append_unique_oid(*targets,
										  rt_fetch(query->resultRelation, query->rtable)->relid);
}

static bool
find_named(Node *node, void *context)
{
	BatonNamed *named = context;

	if (node == NULL)
		return false;
	if (IsA(node, Query))
	{
		add_target(&named->targets, (Query *) node);
		return walk_query((Query *) node, find_named, context,
						  QTW_EXAMINE_RTES_BEFORE);
	}
	add_types_of(&named->types, node);
	/* its contents are walked separately */
	if (IsA(node, RangeTblEntry))
		return false;
	if (IsA(node, Const))
		add_constant(named, (Const *) node);
	add_function(&named->functions, node);
	return expression_tree_walker(node, find_named, context);
}

void
baton_bindings_named(BatonNamed *named, List *queries)
{
	ListCell   *cell;

	memset(named, 0, sizeof(*named));
	foreach(cell, queries)
		(void) find_named(lfirst(cell), named);
}

void
baton_named_free(BatonNamed *named)
{
	list_free(named->types);
	list_free(named->targets);
	list_free(named->functions);
	list_free(named->regclasses);
	list_free(named->regtypes);
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

/*
 * May a literal in the body of a function in SQL be read as a moment? Comments,
 * escapes and dollar quotes are not followed: with them any such word counts.
 */
static bool
body_has_moment(const char *body)
{
	const char *end;

	if (strchr(body, '\\') != NULL)
		return true;
	if (!has_moment_word(body, strlen(body)))
		return false;
	if (strstr(body, "--") != NULL || strstr(body, "/*") != NULL || strstr(body, "$") != NULL)
		return true;
	for (const char *begin = strchr(body, '\''); begin != NULL; begin = strchr(end + 1, '\''))
	{
		begin++;
		end = strchr(begin, '\'');
		if (end == NULL)
			return true;
		if (has_moment_word(begin, end - begin))
			return true;
	}
	return false;
}

bool
baton_bindings_is_users_sql(Oid function, bool *may_have_moment)
{
	HeapTuple	tuple;
	bool		result;

	if (function < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_proc) GETSTRUCT(tuple))->prolang == SQLlanguageId;
	*may_have_moment = false;
	/* the literals of a body BEGIN ATOMIC were read when it was created */
	if (result && heap_attisnull(tuple, Anum_pg_proc_prosqlbody, NULL))
	{
		bool		no_source;
		Datum		source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &no_source);

		*may_have_moment = !no_source && body_has_moment(TextDatumGetCString(source));
	}
	ReleaseSysCache(tuple);
	return result;
}

/* ----------------------------------------------------------------
 *		What analysis and planning of a statement depend on besides its text.
 *
 * These are: the role; the search path; the settings by which literals are
 * read, by which folded functions format, and that say how to rewrite and
 * plan; the session whose temporary objects exist. plancache.c compares the
 * search path, and role and row security where a policy is involved, and none
 * of the rest: a plan keeps what the rest has made of it. So sessions share a
 * statement only within one environment: the values of all that a session can
 * set, except what neither analysis nor planning looks at.
 *
 * Not included: placeholders (SET app.tenant_id), which only current_setting()
 * and user-defined functions can read. current_setting() is stable, so the
 * planner uses it at most for an estimate. A user's function that is marked
 * immutable but reads a placeholder is folded: so the planner's execution of
 * such a function is noticed, and the generic plan then belongs to its session
 * only.
 *
 * The environment is read when a statement is looked up for the first time
 * since its session came. Usually nothing was set since the session was put in
 * place: then the environment is a function of its context's version, and is
 * cached by it. Every change of a setting is noticed (statement_tracking.c),
 * and what analysis and planning have made until then is distinguished from
 * what they make afterwards (the epoch). SET LOCAL is undone at the
 * transaction's end, a function's SET clause at its return; neither is
 * announced, but their beginnings and ends are known. The server's own code
 * switches to another role without notice, the owner of a table
 * (SetUserIdAndSecContext: foreign keys' actions, and so the triggers they
 * fire, REFRESH, ANALYZE, CREATE INDEX); so the role is checked when
 * statements are looked up, at the end of each analysis and at the beginning
 * of planning. From 17 on some of that code also sets the search path, which
 * plancache.c itself compares. Only set_config() is announced before it sets,
 * so nothing is distinguished between the two.
 * ----------------------------------------------------------------
 */

/* The address of a parameter's value. */
typedef struct Setting
{
	enum config_type type;
	void	   *variable;
} Setting;

/* The environment that results from a version of a session's context. */
typedef struct KnownEnvironment
{
	uint64		version;
	TimestampTz reload;
	Oid			user;
	uint64		environment;
} KnownEnvironment;

#define KNOWN_ENVIRONMENTS 512

static BatonPlacedEnvironment *const placed = &BatonPlaced.environment;

static Setting *settings = NULL;
static int	setting_count = 0;
static uint64 known_table = 0;
static uint64 known_changes = 0;
static KnownEnvironment *known = NULL;

static void (*before_change) (void) = NULL;

/*
 * Parameters that neither analysis nor planning looks at, in the groups that
 * are included.
 */
static bool
is_indifferent(const struct config_generic *record)
{
	static const char *const names[] = {
		"client_encoding", "default_transaction_deferrable",
		"default_transaction_isolation", "default_transaction_read_only",
		"idle_in_transaction_session_timeout", "idle_session_timeout",
		"lock_timeout", "seed", "statement_timeout",
		"transaction_deferrable", "transaction_isolation",
		"transaction_read_only"
	};

	for (int i = 0; i < (int) lengthof(names); i++)
		if (strcmp(record->name, names[i]) == 0)
			return true;
	return strncmp(record->name, "pg_baton.", strlen("pg_baton.")) == 0;
}

static bool
is_taken(const struct config_generic *record)
{
	if (record->context != PGC_USERSET && record->context != PGC_SUSET)
		return false;
	if (record->flags & GUC_CUSTOM_PLACEHOLDER)
		return false;
	return !baton_guc_is_aside(record) && !is_indifferent(record);
}

static void *
variable_of(struct config_generic *record)
{
	switch (record->vartype)
	{
		case PGC_BOOL:
			return ((struct config_bool *) record)->variable;
		case PGC_INT:
			return ((struct config_int *) record)->variable;
		case PGC_REAL:
			return ((struct config_real *) record)->variable;
		case PGC_STRING:
			return ((struct config_string *) record)->variable;
		case PGC_ENUM:
			return ((struct config_enum *) record)->variable;
	}
	return NULL;
}

static void
find_settings(void)
{
	struct config_generic **records;
	int			count;

	records = baton_guc_records(&count);
	if (settings != NULL)
		pfree(settings);
	settings = NULL;
	setting_count = 0;
	settings = MemoryContextAlloc(TopMemoryContext, count * sizeof(Setting));
	for (int i = 0; i < count; i++)
	{
		if (is_taken(records[i]))
		{
			settings[setting_count].type = records[i]->vartype;
			settings[setting_count].variable = variable_of(records[i]);
			setting_count++;
		}
	}
	known_changes = baton_placeholder_changes;
	known_table = baton_guc_table_version();
}

static inline uint64
mix(uint64 sum, uint64 value)
{
	sum = (sum ^ value) * UINT64CONST(0x9E3779B97F4A7C15);
	return sum ^ (sum >> 29);
}

static void
look_for_settings(void)
{
	if (settings == NULL || known_changes != baton_placeholder_changes ||
		known_table != baton_guc_table_version())
		find_settings();
}

static uint64
read_environment(void)
{
	uint64		sum = 0;

	look_for_settings();
	for (int i = 0; i < setting_count; i++)
	{
		void	   *variable = settings[i].variable;

		switch (settings[i].type)
		{
			case PGC_BOOL:
				sum = mix(sum, *(bool *) variable);
				break;
			case PGC_INT:
			case PGC_ENUM:
				sum = mix(sum, (uint64) *(int *) variable);
				break;
			case PGC_REAL:
				{
					uint64		bits;

					memcpy(&bits, variable, sizeof(bits));
					sum = mix(sum, bits);
					break;
				}
			case PGC_STRING:
				{
					const char *text = *(char **) variable;

					sum = mix(sum, text == NULL ? 1 :
							  hash_bytes_extended((const unsigned char *) text,
												  strlen(text), 0));
					break;
				}
		}
	}
	return sum;
}

/* plancache.c compares this as part of the search path. */
static bool
temporary_namespace_is_shown(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	return OidIsValid(namespace);
}

void
baton_environment_look_at_role(void)
{
	Oid			user = GetUserId();

	if (user == placed->epoch_user)
		return;
	if (OidIsValid(placed->epoch_user))
		baton_environment_changes();
	placed->epoch_user = user;
}

StatementEnvironment
baton_statement_environment(void)
{
	KnownEnvironment *entry = NULL;
	uint64		environment;
	StatementEnvironment result;

	baton_environment_look_at_role();
	if (known == NULL)
		known = MemoryContextAllocZero(TopMemoryContext,
									   KNOWN_ENVIRONMENTS * sizeof(KnownEnvironment));
	if (!placed->has_changed && placed->installed_version != 0)
		entry = &known[placed->installed_version % KNOWN_ENVIRONMENTS];
	if (entry != NULL && entry->version == placed->installed_version &&
		entry->reload == PgReloadTime && entry->user == GetUserId())
		environment = entry->environment;
	else
	{
		environment = read_environment();
		if (entry != NULL)
		{
			entry->version = placed->installed_version;
			entry->reload = PgReloadTime;
			entry->user = GetUserId();
			entry->environment = environment;
		}
	}
	if (temporary_namespace_is_shown())
		environment = mix(environment, 1);
	if (baton_may_have_temporary_objects())
		environment = mix(environment, baton_session_held());
	result.number = environment;
	result.role = GetUserId();
	return result;
}

void
baton_environment_watch(void (*before) (void))
{
	before_change = before;
}

void
baton_environment_install(uint64 context_version, bool same)
{
	if (!same || placed->has_changed || placed->is_volatile)
		BatonPlaced.environment.epoch = ++placed->last_epoch;
	placed->installed_version = context_version;
	placed->epoch_user = InvalidOid;
	placed->has_changed = false;
	placed->is_volatile = false;
}

void
baton_environment_changes(void)
{
	if (before_change != NULL)
		before_change();
	placed->has_changed = true;
	if (!placed->is_volatile)
		BatonPlaced.environment.epoch = ++placed->last_epoch;
}

void
baton_environment_is_volatile(void)
{
	baton_environment_changes();
	placed->is_volatile = true;
	BatonPlaced.environment.epoch = 0;
}

void
baton_environment_is_stable(void)
{
	if (!placed->is_volatile)
		return;
	placed->is_volatile = false;
	BatonPlaced.environment.epoch = ++placed->last_epoch;
}

/*
 * Called before the settings return to their old values (AtEOXact_GUC comes
 * later, in CommitTransaction() and AbortTransaction(), xact.c).
 */
void
baton_environment_transaction(void)
{
	if (placed->has_changed)
		baton_environment_changes();
}
