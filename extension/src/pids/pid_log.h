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

/* From _PG_init, in the postmaster. */
extern void baton_pid_log_init(void);

#endif							/* BATON_PID_LOG_H */
