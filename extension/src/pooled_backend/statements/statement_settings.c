/*-------------------------------------------------------------------------
 *
 * statement_settings.c
 *		The settings that literals of a prepared statement were read by.
 *
 * Parse analysis turns '1/2/2020'::date into a constant, by the DateStyle of
 * that moment; a prepared statement keeps that constant until it is analysed
 * again.  A statement that is made again on another backend is analysed again
 * when it is first used there (statement_make.c), at which time the session
 * may have set another DateStyle.  So that analysis is done under the settings
 * of the first, unless the server would have analysed it again anyway, which it
 * does if the search path is another by then (RevalidateCachedQuery,
 * plancache.c).
 *
 * How: the plan gets a parser setup callback, which plancache.c calls as
 * analysis begins (parse_analyze_withcb, analyze.c) and which is a plan's
 * ordinary means to resolve parameters; it raises the GUC nest level and sets.
 * post_parse_analyze_hook, called with the same ParseState as analysis ends,
 * goes back.  If analysis fails, the end of the (sub)transaction goes back
 * (AtEOXact_GUC).  Later analyses, after an invalidation, are the server's own
 * and go by its rules; the callback only notes the settings in force, for these
 * are the statement's from then on.  Whether an invalidation was the session's
 * doing (its DDL, DISCARD PLANS) is asked when it is captured; of what happens
 * while it is away nothing is kept.
 *
 * Constants that are the time itself ('now', 'today') are read again, as the
 * server does after any invalidation.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "parser/analyze.h"
#include "parser/parse_param.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "guc_value.h"
#include "plan_source.h"
#include "statement_environment.h"
#include "statement_settings.h"

/*
 * What input functions look at, and the one that transformAExprOp()
 * (parse_expr.c) reads "= NULL" by.
 */
const char *const baton_literal_settings[] = {
	"DateStyle", "IntervalStyle", "TimeZone", "timezone_abbreviations",
	"array_nulls", "xmloption", "lc_monetary", "default_text_search_config",
	"transform_null_equals"
};
const int	baton_literal_settings_count = lengthof(baton_literal_settings);

/* The analysis that runs under settings of ours, if any. */
static ParseState *analysis = NULL;
static PlanSettings *analysis_settings = NULL;
static int	analysis_nest_level = 0;


/*
 * May the text hold a literal, or compare something with NULL?  Parameters are
 * dollars followed by a digit.
 */
static bool
has_literal(const char *query)
{
	for (const char *at = strpbrk(query, "'$"); at != NULL; at = strpbrk(at + 1, "'$"))
	{
		if (*at == '\'' || at[1] < '0' || at[1] > '9')
			return true;
	}
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

		/* built in, so the records stay where they are */
		if (records[i] == NULL)
			records[i] = baton_guc_find(baton_literal_settings[i]);
		value = baton_guc_active(records[i]);
		baton_guc_append_text(records[i], &value, &result);
		/* values of these hold no newline */
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

/* The plan's context may live long: do not pile up in it. */
static void
forget_settings(PlanSettings *own)
{
	if (own->settings != NULL && !own->shared)
		pfree(unconstify(char *, own->settings));
	own->settings = NULL;
	own->shared = false;
}

/*
 * The memory that the ParseState lies in goes, after an error: another one
 * may come to lie at the same address.
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
		/* armed until it ends: it may fail, for want of a lock, say */
		callback = palloc(sizeof(MemoryContextCallback));
		callback->func = analysis_has_gone;
		callback->arg = pstate;
		MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
		analysis = pstate;
		analysis_settings = own;
		analysis_nest_level = NewGUCNestLevel();
		apply(own->settings);
	}
	else
	{
		MemoryContext caller = MemoryContextSwitchTo(own->plan->context);
		char	   *now = settings_in_force();

		/* the search path may be another, too */
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

PlanSettings *
baton_settings_find(const CachedPlanSource *plan)
{
	if (plan->parserSetup != analysis_begins)
		return NULL;
	return (PlanSettings *) plan->parserSetupArg;
}

/* Only statements that are analysed, and have a literal, are looked after. */
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
 * From now on its next analysis is to be by its settings, if the search path
 * is this one then.
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

void
baton_settings_attach(CachedPlanSource *plan, const char *described,
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
	PlanSettings *own = baton_settings_find(plan);
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
	PlanSettings *own = baton_settings_find(common);
	MemoryContext caller;

	if (own == NULL || own->settings == NULL || own->armed)
		return;

	/* analysed: this is the path that was described */
	Assert(common->search_path != NULL);
	caller = MemoryContextSwitchTo(common->context);
	arm(own, common->search_path->schemas, common->search_path->addCatalog,
		common->search_path->addTemp);
	MemoryContextSwitchTo(caller);
}

void
baton_settings_share(CachedPlanSource *plan, const CachedPlanSource *common)
{
	PlanSettings *described = baton_settings_find(common);
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
	PlanSettings *own = baton_settings_find(plan);
	const PlanSettings *described = baton_settings_find(common);

	if (own != NULL && described != NULL && own->shared)
		own->armed = described->armed;
}

bool
baton_settings_fit(const CachedPlanSource *plan, const CachedPlanSource *common)
{
	PlanSettings *described = baton_settings_find(common);
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
	PlanSettings *own = baton_settings_find(plan);

	if (own == NULL || !own->armed)
		return;
	own->armed = false;
	forget_settings(own);
	own->changed = true;
}
