/*-------------------------------------------------------------------------
 *
 * function_records.c
 *		The types that plans of PL/pgSQL functions were made for.
 *
 * A RECORD has the type of what was last assigned to it, and plpgsql plans an
 * expression for the types that its records have at that moment.  With another
 * type the same plan fails ("type of parameter ... does not match that when
 * preparing the plan", exec_eval_datum, pl_exec.c): once a session for stock, but
 * for every session to come on a backend of a pool.  So it is with NEW and OLD
 * after ALTER TABLE, and with the variable of CASE.
 *
 * So as a statement begins that another session has planned, the types noted at
 * its analysis are compared with those at hand, and where they differ the plan is
 * made invalid: plancache.c analyses it again, with plpgsql's own callbacks,
 * which look at the records of the running call.  What this session has planned
 * is left alone: the error is stock's.
 *
 * Statements are seen by a PLpgSQL_plugin, in place only while a function runs that
 * has such variables.  Where another library has claimed it (a debugger, a
 * profiler), such functions are compiled for each session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi_priv.h"
#include "nodes/memnodes.h"
#include "plpgsql.h"
#include "utils/expandedrecord.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "function_records.h"
#include "plan_source.h"

/* What a query was analysed for. */
typedef struct NotedType
{
	int			dno;
	Oid			type;			/* InvalidOid: none was known */
	int32		typmod;
	Oid			collation;
	uint64		shape;			/* of a named row type, as a whole; else 0 */
} NotedType;

typedef struct NotedQuery
{
	const PLpgSQL_expr *expr;	/* the key */
	int			count;
	NotedType  *types;			/* in the function's memory, as is what
								 * follows */
} NotedQuery;

/* A statement of a function. */
typedef struct Statement
{
	uint64		checked;		/* the stay that it was looked at for */
	const NotedQuery *last;		/* of its queries, the one found last */
} Statement;

/* Lies in the memory of a compiled function. */
typedef struct FunctionRecords
{
	MemoryContextCallback callback;
	PLpgSQL_function *function;
	bool		has;
	List	   *queries;		/* keys in `noted` */
	Statement  *statements;		/* by their numbers */
} FunctionRecords;

#define CASE_VARIABLE "__Case__Variable_"

/* Of a statement whose queries have no variables that may change. */
#define HAS_NONE PG_UINT64_MAX

static void statement_begins(PLpgSQL_execstate *estate, PLpgSQL_stmt *statement);

static PLpgSQL_plugin plugin = {.stmt_beg = statement_begins};
static PLpgSQL_plugin **place = NULL;
static ParseParamRefHook param_hook = NULL; /* plpgsql's, once it was seen */
static HTAB *noted = NULL;
static FunctionRecords *last_found = NULL;
static uint64 stay = 1;			/* of a session, in one environment */

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

/* The type that an expression would be analysed for now; false: it has none. */
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

/* Is it a query of a function's own?  In doubt it is. */
bool
baton_function_records_is_own(const ParseState *pstate)
{
	return param_hook == NULL || pstate->p_paramref_hook == param_hook;
}

/* A query has got variables that may change: no statement is known to have none. */
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
	NotedQuery *query;
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
	query = hash_search(noted, &expr, HASH_ENTER, &found);
	if (!found)
	{
		MemoryContext caller = MemoryContextSwitchTo(expr->func->fn_cxt);

		query->count = 0;
		query->types = NULL;
		records->queries = lappend(records->queries, expr);
		MemoryContextSwitchTo(caller);
	}
	while ((dno = bms_next_member(expr->paramnos, dno)) >= 0)
		count += may_change(estate->datums[dno]);
	if (count > query->count)
	{
		look_at_all(records);
		if (query->types != NULL)
			pfree(query->types);
		query->count = 0;
		query->types = MemoryContextAlloc(expr->func->fn_cxt, count * sizeof(NotedType));
	}
	query->count = 0;
	dno = -1;
	while ((dno = bms_next_member(expr->paramnos, dno)) >= 0)
		if (may_change(estate->datums[dno]))
		{
			NotedType  *type = &query->types[query->count++];

			if (!type_of(estate, dno, type))
				type->type = InvalidOid;
		}
}

/* A statement that is looked at. */
typedef struct Looking
{
	PLpgSQL_execstate *estate;
	Statement  *statement;
	bool		has_none;		/* of its queries, which all are planned, none
								 * has variables that may change */
} Looking;

/* What is noted goes with the function only. */
static const NotedQuery *
query_of(Statement *within, const PLpgSQL_expr *expr)
{
	if (within->last == NULL || within->last->expr != expr)
		within->last = hash_search(noted, &expr, HASH_FIND, NULL);
	return within->last;
}

/* A variable of CASE has the type that its expression has, case_type. */
static bool
same_types(Looking *looking, const PLpgSQL_expr *expr, Oid case_type)
{
	PLpgSQL_execstate *estate = looking->estate;
	const NotedQuery *query = NULL;
	int			dno = -1;

	while ((dno = bms_next_member(expr->paramnos, dno)) >= 0)
	{
		NotedType	now;
		int			at = 0;

		if (!may_change(estate->datums[dno]))
			continue;
		looking->has_none = false;
		if (query == NULL)
			query = query_of(looking->statement, expr);
		if (query == NULL || !type_of(estate, dno, &now))
			return false;
		if (estate->datums[dno]->dtype == PLPGSQL_DTYPE_VAR)
			now.type = case_type;
		while (at < query->count && query->types[at].dno != dno)
			at++;
		if (at == query->count || memcmp(&query->types[at], &now, sizeof(now)) != 0)
			return false;
	}
	return true;
}

/* plpgsql's callback for parameters, by which its queries are known. */
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

/* The type of an expression as it is planned; invalid if it is not. */
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

/* What the statement itself evaluates, not those within it. */
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
			return;				/* DO, which is not kept */
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
