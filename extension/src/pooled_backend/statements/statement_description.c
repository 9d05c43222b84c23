/*-------------------------------------------------------------------------
 *
 * statement_description.c
 *		A prepared statement as bytes, and the making of a statement from them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "parser/parse_param.h"
#include "parser/parser.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "delta.h"
#include "majors.h"
#include "pg_catalogs.h"
#include "pg_guc.h"
#include "pg_plancache.h"
#include "statement_description.h"
#include "statement_environment.h"

/* ----------------------------------------------------------------
 *		The settings by which the literals of a prepared statement were read.
 *
 * Parse analysis turns '1/2/2020'::date into a constant, by the DateStyle of
 * that moment; a prepared statement keeps that constant until it is analysed
 * again. A statement that is made again on another backend is analysed again
 * when it is first used there, when the session may have another DateStyle. So
 * that analysis runs under the settings of the first, unless the server would
 * have analysed it again anyway, which it does if the search path has changed
 * (RevalidateCachedQuery, plancache.c).
 *
 * How: the plan gets a parser setup callback, which plancache.c calls when
 * analysis begins (parse_analyze_withcb, analyze.c) and which is a plan's
 * ordinary means to resolve parameters; it raises the GUC nest level and sets
 * the parameters. post_parse_analyze_hook, called with the same ParseState
 * when analysis ends, restores them. If analysis fails, the end of the
 * (sub)transaction does (AtEOXact_GUC). Later analyses, after an invalidation,
 * are the server's own and go by its rules; the callback only notes the
 * settings in force, which are the statement's from then on. Whether the
 * session caused an invalidation (its DDL, DISCARD PLANS) is checked when the
 * session is captured; nothing is kept of what happens while it is away.
 *
 * Constants that are the time itself ('now', 'today') are read again, as the
 * server does after any invalidation.
 *
 * The warnings of that analysis are held back. A text whose analysis may warn
 * has settings for that reason, too, even if it holds no literal.
 * ----------------------------------------------------------------
 */

/*
 * The settings that input functions look at, and the one by which
 * transformAExprOp() (parse_expr.c) reads "= NULL".
 */
const char *const baton_literal_settings[] = {
	"DateStyle", "IntervalStyle", "TimeZone", "timezone_abbreviations",
	"array_nulls", "xmloption", "lc_monetary", "default_text_search_config",
	"transform_null_equals"
};
const int	baton_literal_settings_count = lengthof(baton_literal_settings);

/* The analysis that runs under described settings, if any. */
static ParseState *analysis = NULL;
static PlanSettings *analysis_settings = NULL;
static int	analysis_nest_level = 0;

/*
 * Might the text hold a literal, or compare something with NULL, or does it
 * name a precision that analysis reduces with a WARNING
 * (anytimestamp_typmod_check, timestamp.c)? Parameters are a dollar sign
 * followed by a digit.
 */
static bool
has_literal(const char *query)
{
	for (const char *at = strpbrk(query, "'$"); at != NULL; at = strpbrk(at + 1, "'$"))
	{
		if (*at == '\'' || at[1] < '0' || at[1] > '9')
			return true;
	}
	for (const char *at = strchr(query, '('); at != NULL; at = strchr(at + 1, '('))
		if (strtol(at + 1, NULL, 10) > MAX_TIMESTAMP_PRECISION)
			return true;
	if (strchr(query, '=') == NULL)
		return false;
	for (const char *at = strpbrk(query, "nN"); at != NULL; at = strpbrk(at + 1, "nN"))
		if (pg_strncasecmp(at, "null", 4) == 0)
			return true;
	return false;
}

/* The settings in force, as one string, in the current context. */
static char *
settings_in_force(void)
{
	static struct config_generic *records[lengthof(baton_literal_settings)];
	StringInfoData result;

	initStringInfo(&result);
	for (int i = 0; i < (int) lengthof(baton_literal_settings); i++)
	{
		config_var_value value;

		/* built in, so the records do not move */
		if (records[i] == NULL)
			records[i] = baton_guc_find(baton_literal_settings[i]);
		value = baton_guc_active(records[i]);
		baton_guc_append_text(records[i], &value, &result);
		/* these values contain no newline */
		appendStringInfoChar(&result, '\n');
	}
	return result.data;
}

static void
apply(const char *settings)
{
	const char *rest = settings;

	for (int i = 0; i < (int) lengthof(baton_literal_settings); i++)
	{
		const char *end = strchr(rest, '\n');
		const char *now = GetConfigOption(baton_literal_settings[i], true, false);
		char	   *then;

		if (end == NULL)
			return;
		then = pnstrdup(rest, end - rest);
		rest = end + 1;
		if (now != NULL && strcmp(now, then) != 0)
			(void) set_config_option(baton_literal_settings[i], then, PGC_SUSET,
									 PGC_S_SESSION, GUC_ACTION_SAVE,
									 true, LOG, false);
		pfree(then);
	}
}

/*
 * The session got the warnings of the analysis when it prepared the statement,
 * and so did the log.
 */
static void
hold_back_warnings(void)
{
	if (client_min_messages < ERROR)
		(void) set_config_option("client_min_messages", "error", PGC_SUSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, LOG, false);
	/* LOG comes after ERROR there */
	if (log_min_messages < ERROR && log_min_messages != LOG)
		(void) set_config_option("log_min_messages", "error", PGC_SUSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, LOG, false);
}

/* The plan's context may live long: settings must not accumulate in it. */
static void
forget_settings(PlanSettings *own)
{
	if (own->settings != NULL && !own->shared)
		pfree(unconstify(char *, own->settings));
	own->settings = NULL;
	own->shared = false;
}

/*
 * After an error the memory of the ParseState is freed; another one may then
 * have the same address.
 */
static void
analysis_has_gone(void *argument)
{
	if (analysis == (ParseState *) argument)
		analysis = NULL;
}

/* The parser setup callback: analysis of the plan begins. */
static void
analysis_begins(ParseState *pstate, void *argument)
{
	PlanSettings *own = (PlanSettings *) argument;
	MemoryContextCallback *callback;

	/* as parse_analyze_fixedparams() does */
	if (own->plan->num_params > 0)
		setup_parse_fixed_parameters(pstate, own->plan->param_types,
									 own->plan->num_params);

	if (own->armed && baton_search_path_matches(&own->path))
	{
		/* armed until it ends: it may fail, for want of a lock for example */
		callback = palloc(sizeof(MemoryContextCallback));
		callback->func = analysis_has_gone;
		callback->arg = pstate;
		MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
		analysis = pstate;
		analysis_settings = own;
		analysis_nest_level = NewGUCNestLevel();
		apply(own->settings);
		hold_back_warnings();
	}
	else
	{
		MemoryContext caller = MemoryContextSwitchTo(own->plan->context);
		char	   *now = settings_in_force();

		/* the search path may have changed, too */
		own->armed = false;
		own->changed = true;
		forget_settings(own);
		own->settings = now;
		MemoryContextSwitchTo(caller);
	}
}

void
baton_settings_analysis_ends(const ParseState *pstate)
{
	baton_environment_look_at_role();
	if (analysis == pstate)
	{
		analysis = NULL;
		analysis_settings->armed = false;
		AtEOXact_GUC(true, analysis_nest_level);
	}
}

/* NULL if the text of the plan holds no literal. */
static PlanSettings *
settings_find(const CachedPlanSource *plan)
{
	if (plan->parserSetup != analysis_begins)
		return NULL;
	return (PlanSettings *) plan->parserSetupArg;
}

/* Only statements that are analysed, and have a literal, need settings. */
static PlanSettings *
look_after(CachedPlanSource *plan)
{
	PlanSettings *own;

	if (plan->raw_parse_tree == NULL ||
		!stmt_requires_parse_analysis(plan->raw_parse_tree) ||
		!has_literal(plan->query_string))
		return NULL;
	own = MemoryContextAllocZero(plan->context, sizeof(PlanSettings));
	own->plan = plan;
	baton_plan_set_parser(plan, analysis_begins, own);
	return own;
}

/*
 * The plan's next analysis shall run under its settings, if the search path is
 * this one then.
 */
static void
arm(PlanSettings *own, List *schemas, bool add_catalog, bool add_temp)
{
	own->path.schemas = list_copy(schemas);
	own->path.addCatalog = add_catalog;
	own->path.addTemp = add_temp;
	own->path.generation = 0;
	own->armed = true;
}

void
baton_settings_note(CachedPlanSource *plan)
{
	PlanSettings *own = look_after(plan);
	MemoryContext caller;

	if (own == NULL || !plan->is_valid)
		return;
	caller = MemoryContextSwitchTo(plan->context);
	own->settings = settings_in_force();
	MemoryContextSwitchTo(caller);
}

/*
 * The plan was made from a description with these settings (NULL: none), and
 * not analysed.
 */
static void
settings_attach(CachedPlanSource *plan, const char *described,
				const BatonSearchPath *path)
{
	PlanSettings *own = look_after(plan);
	MemoryContext caller;

	if (own == NULL || described == NULL)
		return;
	caller = MemoryContextSwitchTo(plan->context);
	own->settings = pstrdup(described);
	arm(own, path->schemas, path->addCatalog, path->addTemp);
	MemoryContextSwitchTo(caller);
}

bool
baton_settings_changed(CachedPlanSource *plan)
{
	PlanSettings *own = settings_find(plan);
	bool		result;

	if (own == NULL)
		return false;
	if (own->settings != NULL && !own->armed && !plan->is_valid)
	{
		forget_settings(own);
		own->changed = true;
	}
	result = own->changed;
	own->changed = false;
	return result;
}

void
baton_settings_make_common(CachedPlanSource *common)
{
	PlanSettings *own = settings_find(common);
	MemoryContext caller;

	if (own == NULL || own->settings == NULL || own->armed)
		return;

	/* it was analysed: this is the path that was described */
	Assert(common->search_path != NULL);
	caller = MemoryContextSwitchTo(common->context);
	arm(own, common->search_path->schemas, common->search_path->addCatalog,
		common->search_path->addTemp);
	MemoryContextSwitchTo(caller);
}

void
baton_settings_share(CachedPlanSource *plan, const CachedPlanSource *common)
{
	PlanSettings *described = settings_find(common);
	PlanSettings *own;

	if (described == NULL)
		return;
	own = MemoryContextAllocZero(plan->context, sizeof(PlanSettings));
	*own = *described;
	own->plan = plan;
	own->shared = true;
	own->armed = described->armed && !plan->is_valid;
	own->changed = false;
	baton_plan_set_parser(plan, analysis_begins, own);
}

void
baton_settings_rearm(CachedPlanSource *plan, const CachedPlanSource *common)
{
	PlanSettings *own = settings_find(plan);
	const PlanSettings *described = settings_find(common);

	if (own != NULL && described != NULL && own->shared)
		own->armed = described->armed;
}

bool
baton_settings_fit(const CachedPlanSource *plan, const CachedPlanSource *common)
{
	PlanSettings *described = settings_find(common);
	const BatonSearchPath *path = plan->search_path;

	if (described == NULL)
		return true;
	return described->settings != NULL && path != NULL &&
		path->addCatalog == described->path.addCatalog &&
		path->addTemp == described->path.addTemp &&
		equal(path->schemas, described->path.schemas);
}

void
baton_settings_disarm(CachedPlanSource *plan)
{
	PlanSettings *own = settings_find(plan);

	if (own == NULL || !own->armed)
		return;
	own->armed = false;
	forget_settings(own);
	own->changed = true;
}

/* ----------------------------------------------------------------
 *		A prepared statement as bytes: the value of a STATEMENT or UNNAMED item.
 *
 * Equal statements have equal bytes, so that the dispatcher keeps them once,
 * and a backend can compare its statement with a description.
 *
 * The text alone does not say which statement is meant, nor how it was read:
 * - The text of SQL's PREPARE is the whole string that the client sent; the
 *   position of the statement in it is described, too.
 * - The raw parser depends on standard_conforming_strings. The value under
 *   which the text was read is found by reading it again and comparing trees.
 * - Parse analysis reads literals by DateStyle and the like, so a text that
 *   may hold a literal is described with these settings.
 * ----------------------------------------------------------------
 */

#define DESCRIPTION_FORMAT 1

/* Upper bound of a description's size without the text. */
#define DESCRIPTION_SPARE (1024 * 1024)

typedef struct ResultHead
{
	int32		columns;
	Oid			type;
	int32		typmod;
} ResultHead;

/* What equalTupleDescs() compares of a column of a query's result. */
typedef struct ResultColumn
{
	NameData	name;
	Oid			type;
	Oid			collation;
	int32		typmod;
	int32		stattarget;
	int32		dimensions;
	int32		inhcount;
	int16		length;
	char		by_value;
	char		align;
	char		storage;
	char		compression;
	char		not_null;
	char		has_default;
	char		identity;
	char		generated;
	char		dropped;
	char		local;
} ResultColumn;

/*
 * Reading a text again must not repeat its notices (truncated identifiers,
 * escape string warnings), above all not to the client.
 *
 * Errors must be reported as before: errstart() (elog.c) decides by these
 * settings where an error goes when it is raised. An error that goes nowhere
 * (out of memory, for example) would leave the client with a ReadyForQuery as
 * the only answer. LOG passes where ERROR does, so what pg_parse_query() and
 * pg_analyze_and_rewrite_*() (postgres.c) log at that level is switched off.
 */
static void
quiet_begin(Quiet *quiet)
{
	quiet->client_min_messages = client_min_messages;
	quiet->log_min_messages = log_min_messages;
	quiet->debug_print_parse = Debug_print_parse;
	quiet->debug_print_rewritten = Debug_print_rewritten;
	quiet->log_parser_stats = log_parser_stats;
	client_min_messages = ERROR;
	log_min_messages = ERROR;
	Debug_print_parse = false;
	Debug_print_rewritten = false;
	log_parser_stats = false;
}

static void
quiet_end(const Quiet *quiet)
{
	client_min_messages = quiet->client_min_messages;
	log_min_messages = quiet->log_min_messages;
	Debug_print_parse = quiet->debug_print_parse;
	Debug_print_rewritten = quiet->debug_print_rewritten;
	log_parser_stats = quiet->log_parser_stats;
}

/* NIL if the text cannot be read, for any reason except want of memory. */
static List *
parse_readable(const char *text)
{
	List	   *volatile trees = NIL;
	MemoryContext caller = CurrentMemoryContext;
	uint32		held_off = QueryCancelHoldoffCount;

	PG_TRY();
	{
		trees = raw_parser(text, RAW_PARSE_DEFAULT);
	}
	PG_CATCH();
	{
		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		QueryCancelHoldoffCount = held_off; /* the error has set it to zero */
		trees = NIL;
	}
	PG_END_TRY();
	return trees;
}

/*
 * Raw parse trees of a text, read as the first time. scan.l looks at these
 * three variables only. NIL if it cannot be read.
 */
static List *
parse_text(const char *text, bool old_strings)
{
	List	   *volatile trees = NIL;
	bool		saved_standard = standard_conforming_strings;
	bool		saved_warning = escape_string_warning;
	int			saved_quote = backslash_quote;
	Quiet		quiet;

	quiet_begin(&quiet);
	standard_conforming_strings = !old_strings;
	escape_string_warning = false;
	backslash_quote = BACKSLASH_QUOTE_ON;
	PG_TRY();
	{
		trees = parse_readable(text);
	}
	PG_FINALLY();
	{
		standard_conforming_strings = saved_standard;
		escape_string_warning = saved_warning;
		backslash_quote = saved_quote;
		quiet_end(&quiet);
	}
	PG_END_TRY();
	return trees;
}

/*
 * The statement at the described position of a text.
 *
 * The text of SQL's PREPARE is the whole string that the client sent, with all
 * its statements, and PrepareQuery() (prepare.c) gives the statement within
 * PREPARE the position of the PREPARE itself. Only that part is read, with
 * blanks in place of the text before it: so the positions in nodes do not
 * change, and a string of many PREPAREs is not read as a whole for each.
 */
static RawStmt *
parse_statement(const char *text, bool from_sql, int location, int length, bool old_strings)
{
	List	   *trees;
	RawStmt    *tree;

	if (from_sql && location >= 0)
	{
		Size		end = strlen(text);
		char	   *part;

		if ((Size) location > end || length < 0 || (Size) length > end - location)
			return NULL;
		if (length > 0)
			end = location + length;
		part = palloc(end + 1);
		memset(part, ' ', location);
		memcpy(part + location, text +location, end - location);
		part[end] = '\0';
		trees = parse_text(part, old_strings);
		pfree(part);
	}
	else
		trees = parse_text(text, old_strings);
	if (list_length(trees) != 1)
		return NULL;

	tree = linitial_node(RawStmt, trees);
	if (from_sql)
	{
		if (!IsA(tree->stmt, PrepareStmt))
			return NULL;
		tree->stmt = ((PrepareStmt *) tree->stmt)->query;
	}
	tree->stmt_location = location;
	tree->stmt_len = length;
	return tree;
}

/* Was the text read with standard_conforming_strings off? */
static bool
read_with_old_strings(const CachedPlanSource *plan, bool from_sql)
{
	const RawStmt *own = plan->raw_parse_tree;
	MemoryContext scratch;
	MemoryContext caller;
	RawStmt    *tree;
	bool		result;

	/* only a backslash is read differently (U&'' is refused when off) */
	if (strchr(plan->query_string, '\\') == NULL)
		return false;

	scratch = AllocSetContextCreate(CurrentMemoryContext, "pg_baton parse",
									ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(scratch);
	tree = parse_statement(plan->query_string, from_sql, own->stmt_location, own->stmt_len, false);
	result = tree == NULL || !equal(tree->stmt, own->stmt);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	return result;
}

/*
 * The raw parse tree of the statement; NULL if it cannot be made. Needs no
 * transaction: the raw parser looks at no catalog.
 */
static RawStmt *
statement_parse(const Description *description)
{
	const DescriptionHead *head = &description->head;
	bool		from_sql = (head->flags & STATEMENT_FROM_SQL) != 0;
	bool		old_strings = (head->flags & STATEMENT_OLD_STRINGS) != 0;

	return parse_statement(description->text, from_sql, head->location, head->length, old_strings);
}

static void
append_result(StringInfo value, TupleDesc result)
{
	ResultHead	head;

	memset(&head, 0, sizeof(head));
	head.columns = result->natts;
	head.type = result->tdtypeid;
	head.typmod = result->tdtypmod;
	appendBinaryStringInfo(value, (char *) &head, sizeof(head));

	for (int i = 0; i < result->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(result, i);
		ResultColumn column;

		memset(&column, 0, sizeof(column));
		strlcpy(NameStr(column.name), NameStr(attribute->attname), NAMEDATALEN);
		column.type = attribute->atttypid;
		column.collation = attribute->attcollation;
		column.typmod = attribute->atttypmod;
		column.stattarget = baton_attribute_stattarget(attribute);
		column.dimensions = attribute->attndims;
		column.inhcount = attribute->attinhcount;
		column.length = attribute->attlen;
		column.by_value = attribute->attbyval;
		column.align = attribute->attalign;
		column.storage = attribute->attstorage;
		column.compression = attribute->attcompression;
		column.not_null = attribute->attnotnull;
		column.has_default = attribute->atthasdef;
		column.identity = attribute->attidentity;
		column.generated = attribute->attgenerated;
		column.dropped = attribute->attisdropped;
		column.local = attribute->attislocal;
		appendBinaryStringInfo(value, (char *) &column, sizeof(column));
	}
}

/* May the word "unknown" be in this string, in whichever case? */
static bool
has_unknown(const char *string)
{
	/* a search for a rare letter is much faster than strcasestr() */
	while ((string = strpbrk(string, "kK")) != NULL)
	{
		if (pg_strncasecmp(string, "known", 5) == 0)
			return true;
		string++;
	}
	return false;
}

static bool
casts_parameter_to_unknown(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, TypeCast) && IsA(((TypeCast *) node)->arg, ParamRef))
	{
		List	   *names = ((TypeCast *) node)->typeName->names;

		if (names != NIL && strcmp(strVal(llast(names)), "unknown") == 0)
			return true;
	}
	return raw_expression_tree_walker(node, casts_parameter_to_unknown, context);
}

/*
 * Does the first analysis alone accept the statement? The analysis of
 * "$1::unknown" leaves the parameter without a type, and what is around it (at
 * least resolveTargetListUnknowns(), parse_target.c) gives it one. Then no
 * conversion to unknown is found for that type by RevalidateCachedQuery(),
 * which in stock happens after DISCARD PLANS only.
 */
static bool
is_analysed_only_once(const CachedPlanSource *plan)
{
	Node	   *statement = plan->raw_parse_tree == NULL ? NULL : plan->raw_parse_tree->stmt;

	if (plan->num_params == 0 || statement == NULL || !has_unknown(plan->query_string))
		return false;
	switch (nodeTag(statement))
	{
		case T_SelectStmt:
		case T_InsertStmt:
		case T_UpdateStmt:
		case T_DeleteStmt:
		case T_MergeStmt:
			return casts_parameter_to_unknown(statement, NULL);
		default:
			/* raw_expression_tree_walker() knows no others */
			return false;
	}
}

bool
baton_statement_is_describable(const CachedPlanSource *plan)
{
	return baton_delta_size() != DELTA_TOO_LARGE &&
		strlen(plan->query_string) < MaxAllocSize - DESCRIPTION_SPARE &&
		!is_analysed_only_once(plan);
}

void
baton_statement_describe(StringInfo value, const CachedPlanSource *plan,
						 bool from_sql)
{
	DescriptionHead head;
	PlanSettings *own = settings_find(plan);
	const BatonSearchPath *path = NULL;
	const char *settings = NULL;
	List	   *schemas = NIL;
	ListCell   *cell;

	memset(&head, 0, sizeof(head));
	head.format = DESCRIPTION_FORMAT;
	if (from_sql)
		head.flags |= STATEMENT_FROM_SQL;
	if (plan->fixed_result)
		head.flags |= STATEMENT_FIXED_RESULT;
	if (plan->resultDesc != NULL)
		head.flags |= STATEMENT_HAS_RESULT;
	if (plan->raw_parse_tree == NULL)
		head.flags |= STATEMENT_EMPTY;
	else
	{
		head.location = plan->raw_parse_tree->stmt_location;
		head.length = plan->raw_parse_tree->stmt_len;
		if (read_with_old_strings(plan, from_sql))
			head.flags |= STATEMENT_OLD_STRINGS;
	}

	/* a plan that will be analysed again anyway needs no settings */
	if (own != NULL && own->settings != NULL)
	{
		if (own->armed)
			path = &own->path;
		else if (plan->is_valid)
			path = plan->search_path;
	}
	if (path != NULL)
	{
		settings = own->settings;
		head.flags |= STATEMENT_HAS_SETTINGS;
		head.settings_length = strlen(settings) + 1;
		schemas = path->schemas;
		head.path_schemas = list_length(schemas);
		if (path->addCatalog)
			head.path_flags |= PATH_ADD_CATALOG;
		if (path->addTemp)
			head.path_flags |= PATH_ADD_TEMP;
	}
	head.cursor_options = plan->cursor_options;
	head.parameters = plan->num_params;
	head.text_length = strlen(plan->query_string) + 1;

	appendBinaryStringInfo(value, (char *) &head, sizeof(head));
	if (plan->num_params > 0)
		appendBinaryStringInfo(value, (char *) plan->param_types,
							   plan->num_params * sizeof(Oid));
	if (plan->resultDesc != NULL)
		append_result(value, plan->resultDesc);
	foreach(cell, schemas)
		appendBinaryStringInfo(value, (char *) &lfirst_oid(cell), sizeof(Oid));
	if (settings != NULL)
		appendBinaryStringInfo(value, settings, head.settings_length);
	appendBinaryStringInfo(value, plan->query_string, head.text_length);
}

/* Takes the next bytes of a value; returns false if there are too few. */
static bool
take(const char **value, Size *length, void *target, Size size)
{
	if (*length < size)
		return false;
	if (size > 0)
		memcpy(target, *value, size);
	*value += size;
	*length -= size;
	return true;
}

static TupleDesc
take_result(const char **value, Size *length)
{
	ResultHead	head;
	TupleDesc	result;

	if (!take(value, length, &head, sizeof(head)) ||
		head.columns < 0 || head.columns > MaxTupleAttributeNumber)
		return NULL;
	result = CreateTemplateTupleDesc(head.columns);
	result->tdtypeid = head.type;
	result->tdtypmod = head.typmod;
	for (int i = 0; i < head.columns; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(result, i);
		ResultColumn column;

		if (!take(value, length, &column, sizeof(column)))
			return NULL;
		memset(attribute, 0, ATTRIBUTE_FIXED_PART_SIZE);
		attribute->attname = column.name;
		attribute->attnum = i + 1;
		attribute->atttypid = column.type;
		attribute->attcollation = column.collation;
		attribute->atttypmod = column.typmod;
		baton_attribute_set_stattarget(attribute, column.stattarget);
		attribute->attndims = column.dimensions;
		attribute->attinhcount = column.inhcount;
		attribute->attlen = column.length;
		attribute->attbyval = column.by_value;
		attribute->attalign = column.align;
		attribute->attstorage = column.storage;
		attribute->attcompression = column.compression;
		attribute->attnotnull = column.not_null;
		attribute->atthasdef = column.has_default;
		attribute->attidentity = column.identity;
		attribute->attgenerated = column.generated;
		attribute->attisdropped = column.dropped;
		attribute->attislocal = column.local;
		baton_attribute_is_complete(result, i);
	}
	return result;
}

/*
 * Parses a description, in the current context. Returns false if it is not a
 * description.
 */
static bool
statement_understand(Description *description, const char *value, Size length)
{
	DescriptionHead *head = &description->head;

	memset(description, 0, sizeof(*description));
	if (!take(&value, &length, head, sizeof(*head)) ||
		head->format != DESCRIPTION_FORMAT ||
		head->parameters < 0 || head->path_schemas < 0 ||
		head->settings_length < 0 || head->text_length <= 0 ||
		(Size) head->parameters > length / sizeof(Oid))
		return false;
	if (head->parameters > 0)
	{
		description->parameter_types = palloc(head->parameters * sizeof(Oid));
		if (!take(&value, &length, description->parameter_types,
				  head->parameters * sizeof(Oid)))
			return false;
	}
	if (head->flags & STATEMENT_HAS_RESULT)
	{
		description->result = take_result(&value, &length);
		if (description->result == NULL)
			return false;
	}
	for (int i = 0; i < head->path_schemas; i++)
	{
		Oid			schema;

		if (!take(&value, &length, &schema, sizeof(schema)))
			return false;
		description->path_schemas = lappend_oid(description->path_schemas, schema);
	}
	if (length != (Size) head->settings_length + (Size) head->text_length)
		return false;
	if (head->settings_length > 0)
	{
		description->settings = value;
		value += head->settings_length;
		if (value[-1] != '\0')
			return false;
	}
	description->text = value;
	return value[head->text_length - 1] == '\0';
}

/* A value need not be aligned. */
static uint8
flags_of(const char *value, Size length)
{
	DescriptionHead head;

	if (length < sizeof(head))
		return 0;
	memcpy(&head, value, sizeof(head));
	return head.flags;
}

bool
baton_statement_is_from_sql(const char *value, Size length)
{
	return (flags_of(value, length) & STATEMENT_FROM_SQL) != 0;
}

bool
baton_statement_has_settings(const char *value, Size length)
{
	return (flags_of(value, length) & STATEMENT_HAS_SETTINGS) != 0;
}

/* ----------------------------------------------------------------
 *		Making a prepared statement from its description.
 *
 * A description contains what plancache.c needs to analyse the statement
 * again, and what it must keep when it does: text, position in the text,
 * parameter types, options, and the description of its result. plancache.c
 * does the analysis: a statement is made *invalid*, and
 * RevalidateCachedQuery() (plancache.c) analyses it when it is first used,
 * under the locks, snapshot, role and search_path of that moment. The server
 * does that with any statement after an invalidation message, so the client
 * gets the server's own errors, "cached plan must not change result type"
 * included, and statements that are never used here cost only a raw parse.
 *
 * Two things differ from an invalidation:
 * - Statements that need no parse analysis (stmt_requires_parse_analysis())
 *   are never revalidated, so their single Query node is made here.
 * - A literal is read when its statement is analysed: '1/2/2020'::date by the
 *   DateStyle of that moment. So a text that holds a literal is described with
 *   the settings under which it was analysed, and its first analysis here runs
 *   under these.
 * ----------------------------------------------------------------
 */

CachedPlanSource *
baton_statement_make(const char *value, Size length, bool *from_sql)
{
	Description description;
	BatonSearchPath path = {0};
	RawStmt    *tree = NULL;
	CachedPlanSource *plan;
	Quiet		quiet;

	if (!statement_understand(&description, value, length))
		return NULL;
	*from_sql = (description.head.flags & STATEMENT_FROM_SQL) != 0;

	if ((description.head.flags & STATEMENT_EMPTY) == 0)
	{
		tree = statement_parse(&description);
		if (tree == NULL)
			return NULL;
	}
	plan = CreateCachedPlan(tree, description.text,
							tree == NULL ? CMDTAG_UNKNOWN : CreateCommandTag(tree->stmt));
	quiet_begin(&quiet);
	PG_TRY();
	{
		baton_plan_complete(plan, description.parameter_types, description.head.parameters,
							description.head.cursor_options,
							(description.head.flags & STATEMENT_FIXED_RESULT) != 0,
							description.result);
	}
	PG_FINALLY();
	{
		quiet_end(&quiet);
	}
	PG_END_TRY();
	path.schemas = description.path_schemas;
	path.addCatalog = (description.head.path_flags & PATH_ADD_CATALOG) != 0;
	path.addTemp = (description.head.path_flags & PATH_ADD_TEMP) != 0;
	settings_attach(plan, description.settings, &path);
	return plan;
}

bool
baton_statement_refill(CachedPlanSource *plan, const char *value, Size length)
{
	CachedPlanSource *made;
	bool		from_sql;

	made = baton_statement_make(value, length, &from_sql);
	if (made == NULL)
		return false;
	baton_plan_become(plan, made);
	return true;
}
