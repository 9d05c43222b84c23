/*-------------------------------------------------------------------------
 *
 * pid_deadlock.h
 *		Reports of deadlocks name sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_DEADLOCK_H
#define BATON_PID_DEADLOCK_H

/* From emit_log_hook (hooks.c): for backends that are no pooled ones. */
extern void baton_deadlock_log(ErrorData *edata);

/* At each boundary: PostgresMain forgets it with every error. */
extern void baton_deadlock_watch(void);

#endif							/* BATON_PID_DEADLOCK_H */
