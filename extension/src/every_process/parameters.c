/*-------------------------------------------------------------------------
 *
 * parameters.c
 *		The variables of parameters pg_baton.* that are of no single file.
 *
 * parameter_table.c defines them, and says what each means.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "context_guc.h"
#include "parameters.h"

int			baton_port;
char	   *baton_listen_addresses;
int			baton_max_backends;
int			baton_min_backends;
int			baton_max_dedicated;
int			baton_max_extra_backends;
int			baton_extra_idle_timeout_ms;
int			baton_sharing_threshold;
int			baton_dispatchers;
int			baton_backend_idle_timeout_ms;
int			baton_backend_lifetime_ms;
int			baton_batch_scheduling_wait_us;
int			baton_session_wait_timeout_ms;
int			baton_max_sessions;
int			baton_session_memory_kb;
int			baton_max_login_rate;
int			baton_max_login_rate_per_address;
int			baton_max_sessions_per_address;
int			baton_max_sessions_per_user;
int			baton_max_unauthenticated;
int			baton_handshake_timeout_ms;
int			baton_login_step_timeout_ms;
int			baton_max_login_kb;
bool		baton_force_migration;
bool		baton_force_role_changes;
bool		baton_enabled;
int			baton_login;
int			baton_gss_encryption;
char	   *baton_native_dbuser_names;
int			baton_native_when_waiting;
bool		baton_session_pids;
char	   *baton_attach_option;
char	   *baton_dispatcher_program;
char	   *baton_dispatcher_log;
bool		baton_log_scheduling;

const char *const baton_start_only[BATON_START_ONLY_COUNT] = {
	"session_preload_libraries", "local_preload_libraries", "temp_buffers"
};

void
baton_parameters_forget_attach(void)
{
	if (!baton_guc_blank("pg_baton.attach"))
		elog(FATAL, "parameter \"%s\" is not as expected", "pg_baton.attach");
}
