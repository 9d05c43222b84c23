/*-------------------------------------------------------------------------
 *
 * pg_baton.c
 *		The library's entry: what is set up when the postmaster loads it.
 *
 * Everything needs shared_preload_libraries: the CONTROL memory must be
 * inherited by all processes.  Loaded in any other way the library defines
 * its functions and does nothing.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "attach.h"
#include "attach_origin.h"
#include "control.h"
#include "database_leave.h"
#include "function_table.h"
#include "identity.h"
#include "launcher.h"
#include "log_settings.h"
#include "login_watch.h"
#include "opening_notices.h"
#include "parameters.h"
#include "pid_deadlock.h"
#include "pid_functions.h"
#include "pid_log.h"
#include "pid_notify.h"
#include "self_check.h"
#include "settings_watch.h"
#include "statement_environment.h"
#include "statement_settings.h"
#include "taint_watch.h"
#include "utility_hook.h"

PG_MODULE_MAGIC;

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
	baton_self_check_init();
	baton_log_settings_init();
	baton_opening_notices_init();
	baton_attach_init();
	baton_attach_origin_init();
	baton_cancel_init();
	baton_taint_watch_init();
	baton_functions_init();
	baton_settings_init();
	baton_statement_environment_init();
	baton_settings_watch_init();
	baton_login_watch_init();
	baton_database_leave_init();
	baton_utility_init();
	baton_pids_init();
	baton_deadlock_init();
	baton_notify_init();
	baton_pid_log_init();
	baton_launcher_register();
}
