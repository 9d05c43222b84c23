/*-------------------------------------------------------------------------
 *
 * statement_make.c
 *		Making a prepared statement from its description.
 *
 * A statement is described by what plancache.c needs to analyse it again, and
 * by what it must not forget when it does: text, place in the text, parameter
 * types, options, and the description of its result.  Analysis itself is left
 * to plancache.c: a statement is made *invalid*, and RevalidateCachedQuery()
 * (plancache.c) analyses it when it is first used, under the locks, snapshot,
 * role and search_path of that moment.  That is what the server does with any
 * statement after an invalidation message, so the client gets the server's own
 * errors, "cached plan must not change result type" included, and statements
 * that are never used here cost a raw parse only.
 *
 * Two things are not as after an invalidation:
 *	- Statements that need no parse analysis (stmt_requires_parse_analysis())
 *	  are never revalidated, so their one Query node is made here.
 *	- A literal is read when its statement is analysed: '1/2/2020'::date by the
 *	  DateStyle of that moment.  So a text that holds a literal is described
 *	  with the settings it was analysed under, and its first analysis here is done
 *	  under these (statement_settings.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "plan_source.h"
#include "statement_description.h"
#include "statement_make.h"
#include "statement_settings.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/memutils.h"

CachedPlanSource *
baton_statement_make(const char *value, Size length, bool *from_sql)
{
	Description description;
	BatonSearchPath path = {0};
	RawStmt    *tree = NULL;
	CachedPlanSource *plan;
	Quiet		quiet;

	if (!baton_statement_understand(&description, value, length))
		return NULL;
	*from_sql = (description.head.flags & STATEMENT_FROM_SQL) != 0;

	if ((description.head.flags & STATEMENT_EMPTY) == 0)
	{
		tree = baton_statement_parse(&description);
		if (tree == NULL)
			return NULL;
	}
	plan = CreateCachedPlan(tree, description.text,
							tree == NULL ? CMDTAG_UNKNOWN : CreateCommandTag(tree->stmt));
	baton_quiet_begin(&quiet);
	PG_TRY();
	{
		baton_plan_complete(plan, description.parameter_types, description.head.parameters,
							description.head.cursor_options,
							(description.head.flags & STATEMENT_FIXED_RESULT) != 0,
							description.result);
	}
	PG_FINALLY();
	{
		baton_quiet_end(&quiet);
	}
	PG_END_TRY();
	path.schemas = description.path_schemas;
	path.addCatalog = (description.head.path_flags & PATH_ADD_CATALOG) != 0;
	path.addTemp = (description.head.path_flags & PATH_ADD_TEMP) != 0;
	baton_settings_attach(plan, description.settings, &path);
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
