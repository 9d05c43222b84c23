/*-------------------------------------------------------------------------
 *
 * session_pid.h
 *		A session's process ID: the process that serves it, the SQL functions
 *		that return or take process IDs, and signals to sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SESSION_PID_H
#define BATON_SESSION_PID_H

#include "fmgr.h"

#include "dispatcher_link.h"

/* ----------------------------------------------------------------
 *		A session's process ID, and the process that serves it.
 * ----------------------------------------------------------------
 */

/* The process ID of the session in place in this process; 0: none. */
extern int	baton_my_pid;

/* Can the number be a session's?  No process has such a number. */
#define baton_pid_is_session(pid) ((pid) >= BATON_FIRST_PID)

/* The live session that has this number; 0 if none has. */
extern uint64 baton_pid_find(int pid);

/* Copies the identity of a live session; false if it has ended. */
extern bool baton_identity_read(uint64 session, BatonIdentity *copy);

/*
 * Copies the identity of the session in that slot, with its last query (query
 * may be NULL).
 */
extern bool baton_identity_read_slot(uint32 index, BatonIdentity *copy, char *query);

/* The process that serves a session now; 0 if none does. */
extern int	baton_pid_process(uint64 session);

/* --------------------------------
 *		in the backend
 * --------------------------------
 */

/*
 * Called when a session is put in place; its slot's owner is this backend
 * already.  Whether the session must be terminated, baton_pid_is_terminated()
 * says.
 */
extern void baton_pid_take(uint64 session);

/*
 * Called before a session is given back, or when it has ended: stores what the
 * views show of it meanwhile.
 */
extern void baton_pid_leave(uint64 session, bool goes_on);

/*
 * The session's application_name for the line of its end: called before its
 * context is removed.
 */
extern void baton_pid_note_name(uint64 session);

/*
 * Must this session, which is in place or has just been given back, be
 * terminated?  A full barrier must lie between the store of its owner and this
 * call.
 */
extern bool baton_pid_is_terminated(uint64 session);

/* --------------------------------
 *		which session a process served
 */

/* The pooled backends at one moment; palloc'd. */
typedef struct BatonServing BatonServing;

extern BatonServing *baton_serving_read(void);

/*
 * The process ID that SQL shows for that process: for a pooled backend that of
 * the session in place, 0 if there is none; for any other process its own.
 */
extern int	baton_serving_pid(const BatonServing *serving, int process);

/*
 * As above, for the session that ran the local transaction `lxid` there.
 * Exact while at most BATON_BACKEND_SERVED sessions have been served since.
 */
extern int	baton_serving_pid_at(const BatonServing *serving, int process, uint32 lxid);

/* Did this process serve the same session throughout? */
extern bool baton_serving_same(const BatonServing *one, const BatonServing *other, int process);

/* ----------------------------------------------------------------
 *		SQL functions that return or take process IDs, replaced for the pool's
 *		sessions.
 */

/*
 * Called by _PG_init: puts the replacements in place of the server's
 * functions.
 */
extern void baton_pids_init(void);

/*
 * Are the replacements in place?  Otherwise process IDs are those of
 * processes.
 */
extern bool baton_pids_active(void);

/* session_pid.c */
extern Datum baton_sql_cancel_backend(PG_FUNCTION_ARGS);
extern Datum baton_sql_terminate_backend(PG_FUNCTION_ARGS);
extern Datum baton_sql_log_memory_contexts(PG_FUNCTION_ARGS);

/* pid_columns.c */
extern Datum baton_sql_backend_subxact(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_io(PG_FUNCTION_ARGS);
extern Datum baton_sql_backend_wal(PG_FUNCTION_ARGS);
extern Datum baton_sql_reset_backend_stats(PG_FUNCTION_ARGS);

/* pid_messages.c */
extern Datum baton_sql_notify(PG_FUNCTION_ARGS);

/* pid_views.c */
extern Datum baton_sql_activity(PG_FUNCTION_ARGS);

/* pid_columns.c */
extern Datum baton_sql_progress(PG_FUNCTION_ARGS);
extern Datum baton_sql_replication_slots(PG_FUNCTION_ARGS);
extern Datum baton_sql_aios(PG_FUNCTION_ARGS);

/* pid_columns.c */
extern Datum baton_sql_lock_status(PG_FUNCTION_ARGS);
extern Datum baton_sql_blocking_pids(PG_FUNCTION_ARGS);
extern Datum baton_sql_safe_snapshot_blocking_pids(PG_FUNCTION_ARGS);
extern Datum baton_sql_isolation_is_blocked(PG_FUNCTION_ARGS);

/* pid_views.c */
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

#endif							/* BATON_SESSION_PID_H */
