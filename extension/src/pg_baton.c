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

#include "control.h"
#include "hooks.h"
#include "launcher.h"
#include "log_settings.h"
#include "parameter_table.h"
#include "parameters.h"
#include "opening.h"
#include "own_statistics.h"
#include "pid_functions.h"
#include "self_check.h"
#include "system_user.h"
#include "server_rules.h"
#include "taint_watch.h"

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
	baton_rules_init(BATON_LAUNCHER_FUNCTION);
	baton_log_settings_init();
	baton_opening_init();
	baton_taint_watch_init();
	baton_pids_init();
	baton_system_user_init();
	baton_own_statistics_init();
	baton_hooks_install();
	baton_launcher_register();
}
