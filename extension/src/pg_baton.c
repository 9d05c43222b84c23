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
#include "utils/builtins.h"

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

/* The library's version, which may differ from the extension's after an upgrade. */
Datum
pg_baton_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(PG_BATON_VERSION));
}
