/*-------------------------------------------------------------------------
 *
 * utility_hook.c
 *		The one ProcessUtility hook, and the order of its watchers.
 *
 * ProcessUtility() in utility.c is the only way in for utility statements,
 * those of SPI, functions and DO blocks included.  The hook is installed in
 * the postmaster and runs in every process of the server; watchers that mean
 * pooled backends only know by themselves whether this is one.
 *
 * Errors: a statement that fails is not told to anybody, and may still have
 * done something that stays.  So what must not be missed is noted before it
 * runs, and to note too much must do no harm.  Watchers that can fail
 * themselves come after those that cannot.
 *
 * Statements nest (a function's, CREATE SCHEMA's elements), so whatever lies
 * between a statement's beginning and its end is on the stack, in
 * BatonUtility.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "tcop/utility.h"

#include "database_leave.h"
#include "function_table.h"
#include "identity.h"
#include "login_watch.h"
#include "pid_notify.h"
#include "settings_watch.h"
#include "statement_notice.h"
#include "taint_watch.h"
#include "utility_hook.h"

static ProcessUtility_hook_type previous_process_utility = NULL;

static void
watch_process_utility(PlannedStmt *statement, const char *query_string,
					  bool read_only_tree, ProcessUtilityContext context,
					  ParamListInfo parameters, QueryEnvironment *environment,
					  DestReceiver *destination, QueryCompletion *completion)
{
	BatonUtility utility = {
		.statement = statement->utilityStmt,
		.top_level = context == PROCESS_UTILITY_TOPLEVEL
	};

	baton_login_utility_begins(&utility);
	baton_notice_utility_begins(&utility);
	baton_taint_utility_begins(&utility);
	baton_functions_utility_begins(&utility);
	baton_notify_utility_begins(&utility);
	/* reads a catalog */
	baton_settings_utility_begins(&utility);
	/* fails if the client has cancelled what it runs */
	baton_cancel_fire();
	/* waits for others to leave, and fails if they do not */
	baton_database_utility_begins(&utility);

	if (previous_process_utility)
		previous_process_utility(statement, query_string, read_only_tree, context,
								 parameters, environment, destination, completion);
	else
		standard_ProcessUtility(statement, query_string, read_only_tree, context,
								parameters, environment, destination, completion);
	utility.statement = NULL;

	baton_taint_utility_done(&utility);
	baton_notice_utility_done(&utility);
	baton_settings_utility_done(&utility);
}

void
baton_utility_init(void)
{
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = watch_process_utility;
}
