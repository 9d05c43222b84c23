/*-------------------------------------------------------------------------
 *
 * statement_description.c
 *		A prepared statement as bytes: the value of a STATEMENT or UNNAMED item.
 *
 * Equal statements have equal bytes, so that the dispatcher keeps them once,
 * and a backend can compare what it has with what is described.
 *
 * The text alone does not say which statement is meant, nor how it was read:
 *	- The text of SQL's PREPARE is the whole string that the client sent; the
 *	  place of the statement in it is described too.
 *	- The raw parser depends on standard_conforming_strings.  Which value the
 *	  text was read with is found by reading it again and comparing trees.
 *	- Parse analysis reads literals by DateStyle and the like, so a text that
 *	  may hold a literal is described with these settings.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "parser/parser.h"
#include "delta.h"
#include "majors.h"
#include "search_path.h"
#include "statement_description.h"
#include "statement_settings.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#define DESCRIPTION_FORMAT 1

/* More than all of a description but the text. */
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
 * escape string warnings), to the client least of all.
 *
 * Errors must stay what they are: errstart() (elog.c) decides by these settings
 * who is told of an error when it is raised, and one that nobody is told of
 * (for want of memory, say) would leave the client with a ReadyForQuery alone
 * for an answer.  LOG passes where ERROR does, hence what pg_parse_query() and
 * pg_analyze_and_rewrite_*() (postgres.c) tell at that level is switched off.
 */
void
baton_quiet_begin(Quiet *quiet)
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

void
baton_quiet_end(const Quiet *quiet)
{
	client_min_messages = quiet->client_min_messages;
	log_min_messages = quiet->log_min_messages;
	Debug_print_parse = quiet->debug_print_parse;
	Debug_print_rewritten = quiet->debug_print_rewritten;
	log_parser_stats = quiet->log_parser_stats;
}

/* NIL if the text cannot be read, for whatever reason but want of memory. */
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
 * Raw parse trees of a text, read as it was read first.  scan.l looks at these
 * three variables and at no other.  NIL if it cannot be read.
 */
static List *
parse_text(const char *text, bool old_strings)
{
	List	   *volatile trees = NIL;
	bool		saved_standard = standard_conforming_strings;
	bool		saved_warning = escape_string_warning;
	int			saved_quote = backslash_quote;
	Quiet		quiet;

	baton_quiet_begin(&quiet);
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
		baton_quiet_end(&quiet);
	}
	PG_END_TRY();
	return trees;
}

/*
 * The statement of a text that lies at the place described.
 *
 * The text of SQL's PREPARE is the whole string that the client sent, however many
 * statements there are in it, and PrepareQuery() (prepare.c) gives the statement
 * within PREPARE the place of the PREPARE itself.  Only that is read, behind
 * blanks in place of what comes before it: so what a node remembers of its place
 * is what it was, and many PREPAREs in one string do not cost a reading of it each.
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
 * Outside transactions, too: the raw parser looks at no catalog.
 */
RawStmt *
baton_statement_parse(const Description *description)
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

bool
baton_statement_is_describable(const CachedPlanSource *plan)
{
	return baton_delta_size() != DELTA_TOO_LARGE &&
		strlen(plan->query_string) < MaxAllocSize - DESCRIPTION_SPARE;
}

void
baton_statement_describe(StringInfo value, const CachedPlanSource *plan,
						 bool from_sql)
{
	DescriptionHead head;
	PlanSettings *own = baton_settings_find(plan);
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

/* Takes the next bytes of a value; false if there are not so many. */
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

/* Takes a description apart, in the current context. */
bool
baton_statement_understand(Description *description, const char *value, Size length)
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

/* A value lies at any address. */
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
