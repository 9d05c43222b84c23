/*-------------------------------------------------------------------------
 *
 * pid_functions.h
 *		SQL's functions that give or take process IDs, as they are for the
 *		pool's sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_FUNCTIONS_H
#define BATON_PID_FUNCTIONS_H

#include "fmgr.h"

/* From _PG_init: puts them in the place of the server's. */
extern void baton_pids_init(void);

/* Is it so?  Else process IDs are those of processes, as ever. */
extern bool baton_pids_active(void);

/* pid_signal.c */
extern Datum baton_sql_cancel_backend(PG_FUNCTION_ARGS);
extern Datum baton_sql_terminate_backend(PG_FUNCTION_ARGS);
extern Datum baton_sql_log_memory_contexts(PG_FUNCTION_ARGS);

/* pid_statistics.c */
extern Datum baton_sql_backend_subxact(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_io(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_wal(PG_FUNCTION_ARGS);
extern Datum baton_sql_reset_backend_stats(PG_FUNCTION_ARGS);

/* pid_notify.c */
extern Datum baton_sql_notify(PG_FUNCTION_ARGS);

/* pid_activity.c */
extern Datum baton_sql_activity(PG_FUNCTION_ARGS);

/* pid_columns.c */
extern Datum baton_sql_progress(PG_FUNCTION_ARGS);
extern Datum baton_sql_replication_slots(PG_FUNCTION_ARGS);
extern Datum baton_sql_aios(PG_FUNCTION_ARGS);

/* pid_locks.c */
extern Datum baton_sql_lock_status(PG_FUNCTION_ARGS);
extern Datum baton_sql_blocking_pids(PG_FUNCTION_ARGS);
extern Datum baton_sql_safe_snapshot_blocking_pids(PG_FUNCTION_ARGS);
extern Datum baton_sql_isolation_is_blocked(PG_FUNCTION_ARGS);

/* pid_backend_numbers.c */
extern bool baton_number_is_idle(int number);	/* of a session that no
												 * backend serves */
extern Datum baton_sql_backend_idset(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_pid(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_dbid(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_userid(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_activity(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_wait_event_type(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_wait_event(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_activity_start(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_xact_start(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_start(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_client_addr(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_client_port(PG_FUNCTION_ARGS);

#endif							/* BATON_PID_FUNCTIONS_H */
