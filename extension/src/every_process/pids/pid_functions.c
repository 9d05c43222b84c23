/*-------------------------------------------------------------------------
 *
 * pid_functions.c
 *		Which of SQL's functions give or take process IDs, and what stands in
 *		their place.
 *
 * A session of the pool has one process ID for its life (session_pid.c), while
 * processes come and go beneath it.  Ours call the server's own function with
 * the process's number, and give the session's for what comes back; a number
 * that is no session's goes to the server's function as it is.  So it is for
 * all backends, those on the server's own port included.
 *
 * docs/design/session-pids.md has the whole of it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "builtin_table.h"
#include "later_functions.h"
#include "parameters.h"
#include "pid_functions.h"
#include "self_check.h"
#include "session_pid.h"

static bool active = false;

static Datum
baton_sql_my_pid(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(baton_my_pid != 0 ? baton_my_pid : MyProcPid);
}

static const BatonBuiltin builtins[] =
{
	{F_PG_BACKEND_PID, "pg_backend_pid", pg_backend_pid, baton_sql_my_pid},
	{F_PG_CANCEL_BACKEND, "pg_cancel_backend", pg_cancel_backend, baton_sql_cancel_backend},
	{F_PG_TERMINATE_BACKEND, "pg_terminate_backend", pg_terminate_backend, baton_sql_terminate_backend},
	{F_PG_LOG_BACKEND_MEMORY_CONTEXTS, "pg_log_backend_memory_contexts", pg_log_backend_memory_contexts, baton_sql_log_memory_contexts},
	{F_PG_NOTIFY, "pg_notify", pg_notify, baton_sql_notify},
	{F_PG_STAT_GET_ACTIVITY, "pg_stat_get_activity", pg_stat_get_activity, baton_sql_activity},
	{F_PG_STAT_GET_PROGRESS_INFO, "pg_stat_get_progress_info", pg_stat_get_progress_info, baton_sql_progress},
	{F_PG_GET_REPLICATION_SLOTS, "pg_get_replication_slots", pg_get_replication_slots, baton_sql_replication_slots},
	{F_PG_LOCK_STATUS, "pg_lock_status", pg_lock_status, baton_sql_lock_status},
	{F_PG_BLOCKING_PIDS, "pg_blocking_pids", pg_blocking_pids, baton_sql_blocking_pids},
	{F_PG_SAFE_SNAPSHOT_BLOCKING_PIDS, "pg_safe_snapshot_blocking_pids", pg_safe_snapshot_blocking_pids, baton_sql_safe_snapshot_blocking_pids},
	{F_PG_ISOLATION_TEST_SESSION_IS_BLOCKED, "pg_isolation_test_session_is_blocked", pg_isolation_test_session_is_blocked, baton_sql_isolation_is_blocked},
	{F_PG_STAT_GET_BACKEND_IDSET, "pg_stat_get_backend_idset", pg_stat_get_backend_idset, baton_sql_backend_idset},
	{F_PG_STAT_GET_BACKEND_PID, "pg_stat_get_backend_pid", pg_stat_get_backend_pid, baton_sql_backend_pid},
	{F_PG_STAT_GET_BACKEND_DBID, "pg_stat_get_backend_dbid", pg_stat_get_backend_dbid, baton_sql_backend_dbid},
	{F_PG_STAT_GET_BACKEND_USERID, "pg_stat_get_backend_userid", pg_stat_get_backend_userid, baton_sql_backend_userid},
	{F_PG_STAT_GET_BACKEND_ACTIVITY, "pg_stat_get_backend_activity", pg_stat_get_backend_activity, baton_sql_backend_activity},
	{F_PG_STAT_GET_BACKEND_WAIT_EVENT_TYPE, "pg_stat_get_backend_wait_event_type", pg_stat_get_backend_wait_event_type, baton_sql_backend_wait_event_type},
	{F_PG_STAT_GET_BACKEND_WAIT_EVENT, "pg_stat_get_backend_wait_event", pg_stat_get_backend_wait_event, baton_sql_backend_wait_event},
	{F_PG_STAT_GET_BACKEND_ACTIVITY_START, "pg_stat_get_backend_activity_start", pg_stat_get_backend_activity_start, baton_sql_backend_activity_start},
	{F_PG_STAT_GET_BACKEND_XACT_START, "pg_stat_get_backend_xact_start", pg_stat_get_backend_xact_start, baton_sql_backend_xact_start},
	{F_PG_STAT_GET_BACKEND_START, "pg_stat_get_backend_start", pg_stat_get_backend_start, baton_sql_backend_start},
	{F_PG_STAT_GET_BACKEND_CLIENT_ADDR, "pg_stat_get_backend_client_addr", pg_stat_get_backend_client_addr, baton_sql_backend_client_addr},
	{F_PG_STAT_GET_BACKEND_CLIENT_PORT, "pg_stat_get_backend_client_port", pg_stat_get_backend_client_port, baton_sql_backend_client_port},
	{F_PG_STAT_GET_BACKEND_SUBXACT, "pg_stat_get_backend_subxact", pg_stat_get_backend_subxact, baton_sql_backend_subxact},
	{F_PG_STAT_GET_BACKEND_IO, "pg_stat_get_backend_io", pg_stat_get_backend_io, baton_sql_backend_io},
	{F_PG_STAT_GET_BACKEND_WAL, "pg_stat_get_backend_wal", pg_stat_get_backend_wal, baton_sql_backend_wal},
	{F_PG_STAT_RESET_BACKEND_STATS, "pg_stat_reset_backend_stats", pg_stat_reset_backend_stats, baton_sql_reset_backend_stats},
	{F_PG_GET_AIOS, "pg_get_aios", pg_get_aios, baton_sql_aios},
};

bool
baton_pids_active(void)
{
	return active;
}

void
baton_pids_init(void)
{
	const char *problem;

	if (!baton_session_pids)
		return;
	if (baton_self_check_is_broken("process_ids"))
		problem = "broken on purpose";
	else
		problem = baton_builtins_replace(builtins, lengthof(builtins));
	active = problem == NULL;
	if (!active)
		baton_self_check_failed(BATON_COSTS_PIDS, problem);
}
