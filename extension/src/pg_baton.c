/*-------------------------------------------------------------------------
 *
 * pg_baton.c
 *		The library's entry, and all hooks and callbacks of the server, with the
 *		order of their watchers.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "libpq/auth.h"
#include "miscadmin.h"
#include "optimizer/planner.h"
#include "parser/analyze.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/elog.h"
#include "utils/resowner.h"

#include "attach.h"
#include "boundary.h"
#include "catalog_watch.h"
#include "database_access.h"
#include "dispatcher_link.h"
#include "function_table.h"
#include "held_client.h"
#include "identity.h"
#include "launcher.h"
#include "log_writer.h"
#include "parameter_table.h"
#include "parameters.h"
#include "pg_baton.h"
#include "pg_catalogs.h"
#include "pg_guc.h"
#include "pg_hba.h"
#include "pg_plancache.h"
#include "pg_program.h"
#include "pg_roles.h"
#include "pid_messages.h"
#include "program.h"
#include "self_check.h"
#include "session_pid.h"
#include "session_start.h"
#include "session_tls.h"
#include "statement_description.h"
#include "statement_environment.h"
#include "statement_names.h"
#include "statement_tracking.h"
#include "taint_watch.h"
#include "views.h"

/* ----------------------------------------------------------------
 *		The server's hooks and callbacks, all of them, and for each the order
 *		of its watchers.
 *
 * Installed in the postmaster, they run in every process of the server: a
 * watcher for pooled backends tests itself whether this process is one.
 * `next_` is the hook of the library that was loaded before.
 *
 * Not here: hooks of parameters (internals/pg_guc.c), and PqCommMethods,
 * which a process replaces for itself (boundary.c, pid_messages.c).
 */

static shmem_request_hook_type next_shmem_request = NULL;
static shmem_startup_hook_type next_shmem_startup = NULL;
static ClientAuthentication_hook_type next_client_authentication = NULL;
static ProcessUtility_hook_type next_process_utility = NULL;
static post_parse_analyze_hook_type next_post_parse_analyze = NULL;
static planner_hook_type next_planner = NULL;
static ExecutorStart_hook_type next_executor_start = NULL;
static object_access_hook_type next_object_access = NULL;
static fmgr_hook_type next_fmgr = NULL;
static emit_log_hook_type next_emit_log = NULL;

/* --------------------------------
 *		start of a server and of a backend
 */

static void
request_shmem(void)
{
	if (next_shmem_request)
		next_shmem_request();
	baton_notify_request_shmem();
}

static void
start_shmem(void)
{
	if (next_shmem_startup)
		next_shmem_startup();
	baton_control_restore();
	baton_notify_start_shmem();
}

static void
client_authentication(Port *port, int status)
{
	if (baton_others_are_overruled())
	{
		/*
		 * called among the other libraries' hooks: pg_baton's own work is
		 * done around them
		 */
		if (next_client_authentication)
			next_client_authentication(port, status);
		return;
	}
	baton_attach_authentication_ends();
	if (next_client_authentication)
		next_client_authentication(port, status);
	baton_attach_authenticated(port, status);
}

/* Replaces the hook in a backend that the dispatcher opens. */
static void
overruling_client_authentication(Port *port, int status)
{
	baton_attach_authentication_ends();
	baton_others_tell(port, status);
	baton_attach_authenticated(port, status);
}

/* --------------------------------
 *		a statement
 * --------------------------------
 */

/*
 * All utility statements pass through ProcessUtility() in utility.c, including
 * those of SPI, functions and DO blocks.
 *
 * Errors: the watchers do not learn of a statement that fails, and that may
 * still have done something that stays.  So changes that must not be missed
 * are noted before the statement runs, and an unnecessary note must do no
 * harm.  Watchers that can fail come after those that cannot.
 *
 * Statements nest (a function's, CREATE SCHEMA's elements), so the state
 * between a statement's beginning and its end is on the stack.
 */
static void
process_utility(PlannedStmt *statement, const char *query_string,
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
	baton_role_check();
	/* these read catalogs */
	baton_kept_functions_renew();
	baton_settings_utility_begins(&utility);
	if (!IsA(utility.statement, TransactionStmt) && !IsA(utility.statement, VariableSetStmt))
		baton_role_caches_write();
	/* fails if the client has cancelled what it runs */
	baton_cancel_fire();
	/* waits for other sessions to leave, and fails if they do not */
	baton_database_utility_begins(&utility);

	if (next_process_utility)
		next_process_utility(statement, query_string, read_only_tree, context,
							 parameters, environment, destination, completion);
	else
		standard_ProcessUtility(statement, query_string, read_only_tree, context,
								parameters, environment, destination, completion);
	utility.statement = NULL;

	baton_taint_utility_done(&utility);
	baton_notice_utility_done(&utility);
	baton_settings_utility_done(&utility);
}

static void
post_parse_analyze(ParseState *pstate, Query *query, JumbleState *jstate)
{
	baton_settings_analysis_ends(pstate);
	if (!baton_analysed_for_once(pstate))
	{
		baton_names_query_analysed(query);
		baton_functions_analysed(pstate, query);
	}
	baton_role_check();
	baton_kept_functions_renew();
	baton_cancel_fire();
	if (next_post_parse_analyze)
		next_post_parse_analyze(pstate, query, jstate);
}

static PlannedStmt *
planner_behind(Query *parse, const char *query_string, int cursor_options,
			   ParamListInfo parameters)
{
	return next_planner ?
		next_planner(parse, query_string, cursor_options, parameters) :
		standard_planner(parse, query_string, cursor_options, parameters);
}

static PlannedStmt *
plan(Query *parse, const char *query_string, int cursor_options,
	 ParamListInfo parameters)
{
	return baton_planning_run(parse, query_string, cursor_options, parameters,
							  planner_behind);
}

static void
executor_start(QueryDesc *query_desc, int eflags)
{
	baton_role_check();
	baton_kept_functions_renew();
	baton_cancel_fire();
	if (query_desc->operation != CMD_SELECT || query_desc->plannedstmt->hasModifyingCTE)
		baton_role_caches_write();
	if (next_executor_start)
		next_executor_start(query_desc, eflags);
	else
		standard_ExecutorStart(query_desc, eflags);
}

static void
object_access(ObjectAccessType access, Oid class, Oid object, int sub, void *argument)
{
	if (next_object_access)
		next_object_access(access, class, object, sub, argument);
	if (access == OAT_FUNCTION_EXECUTE)
	{
		baton_role_check();
		baton_kept_functions_renew();
		baton_cancel_fire();
	}
	baton_taint_object_access(access, class, object, sub);
	baton_functions_object_access(access, object);
	if (access == OAT_FUNCTION_EXECUTE)
	{
		baton_catalog_age_function(object);
		baton_role_caches_function(object);
	}
	baton_settings_object_access(access, class, object, argument);
}

/* --------------------------------
 *		a function
 * --------------------------------
 */

/*
 * Called when a function is looked up, except for functions with clauses of
 * their own.
 */
static bool
needs_fmgr(Oid function)
{
	bool		needed;

	/*
	 * must not be called by its address, which would bypass the table
	 * (pg_program.c)
	 */
	if (baton_builtin_is_replaced(function))
		return true;
	baton_catalog_age_function(function);
	baton_role_caches_function(function);
	baton_planning_looks_up(function);
	needed = baton_taint_function(function);
	needed |= baton_others_need_calls(function);
	return baton_functions_need_calls(function) || needed;
}

static void
call_function(FmgrHookEventType event, FmgrInfo *function, Datum *argument)
{
	BatonCall  *call = baton_functions_call(event, function, argument);

	if (call != NULL && event != FHET_START)
		baton_functions_call_ends(function, call);
	if (call == NULL || baton_functions_call_is_others(call))
	{
		baton_taint_call(event, function);
		if (next_fmgr)
			next_fmgr(event, function,
					  call != NULL ? baton_functions_call_argument(call) : argument);
	}
	/* last, since it must not fail once it has counted the call */
	if (call != NULL && event == FHET_START)
		baton_functions_call_begins(function, call);
}

/* --------------------------------
 *		a transaction
 * --------------------------------
 */

static void
transaction(XactEvent event, void *argument)
{
	baton_boundary_transaction(event);
	baton_hold_limit_transaction(event);
	baton_notify_transaction(event);
	baton_login_transaction(event);
	baton_settings_transaction(event);
	baton_environment_transaction();
	baton_functions_transaction();
	baton_taint_transaction(event);
}

static void
subtransaction(SubXactEvent event, SubTransactionId self, SubTransactionId parent,
			   void *argument)
{
	baton_environment_transaction();
	baton_taint_subtransaction(event);
}

static void
release(ResourceReleasePhase phase, bool is_commit, bool is_top, void *argument)
{
	baton_login_release(phase, is_commit, is_top);
	baton_database_release(phase, is_top);
}

/* --------------------------------
 *		a message
 * --------------------------------
 */

static void
emit_log(ErrorData *edata)
{
	baton_log_writer_level(edata);
	/* may not return */
	baton_overruled_log(edata);
	baton_opening_notices_log(edata);
	baton_tls_log(edata);
	if (next_emit_log)
		next_emit_log(edata);
	/* writes the line itself, unless another hook has turned output off */
	baton_pid_log(edata);
}

void
baton_hooks_install(void)
{
	next_shmem_request = shmem_request_hook;
	shmem_request_hook = request_shmem;
	next_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = start_shmem;
	next_client_authentication = ClientAuthentication_hook;
	ClientAuthentication_hook = client_authentication;

	next_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	next_post_parse_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = post_parse_analyze;
	next_planner = planner_hook;
	planner_hook = plan;
	next_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	next_object_access = object_access_hook;
	object_access_hook = object_access;
	baton_others_were(needs_fmgr_hook, next_client_authentication, client_authentication,
					  overruling_client_authentication);
	needs_fmgr_hook = needs_fmgr;
	next_fmgr = fmgr_hook;
	fmgr_hook = call_function;

	next_emit_log = emit_log_hook;
	emit_log_hook = emit_log;

	RegisterXactCallback(transaction, NULL);
	RegisterSubXactCallback(subtransaction, NULL);
	RegisterResourceReleaseCallback(release, NULL);
}

/* ----------------------------------------------------------------
 *		The library's entry: the setup when the postmaster loads it.
 *
 * Everything needs shared_preload_libraries: all processes must inherit the
 * CONTROL memory.  Loaded in any other way the library defines its functions
 * and does nothing.
 */

#ifdef PG_MODULE_MAGIC_EXT
PG_MODULE_MAGIC_EXT(.name = "pg_baton",.version = PG_BATON_VERSION);
#else
PG_MODULE_MAGIC;
#endif

PG_FUNCTION_INFO_V1(pg_baton_version);

void		_PG_init(void);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	baton_parameters_define();

	/* a standalone backend has no dispatcher and no clients */
	if (!IsPostmasterEnvironment)
		return;

	baton_control_create(baton_max_sessions);
	baton_program_keep();
	baton_self_check_init();
	baton_rules_init(BATON_LAUNCHER_FUNCTION);
	baton_log_settings_init();
	baton_opening_init();
	baton_taint_watch_init();
	baton_pids_init();
	baton_system_user_init();
	baton_own_statistics_init();
	baton_hooks_install();
	baton_launcher_register();
	baton_log_writer_register();
}

/* The library's version, which may differ from the extension's after an upgrade. */
Datum
pg_baton_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(PG_BATON_VERSION));
}
