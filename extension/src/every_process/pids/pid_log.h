/*-------------------------------------------------------------------------
 *
 * pid_log.h
 *		Lines of the server's log bear their session's ID.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_LOG_H
#define BATON_PID_LOG_H

/* From emit_log_hook (hooks.c): writes the line, if it is a session's. */
extern void baton_pid_log(ErrorData *edata);

#endif							/* BATON_PID_LOG_H */
