/*-------------------------------------------------------------------------
 *
 * session_pid.h
 *		A session's process ID, and the process that serves it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SESSION_PID_H
#define BATON_SESSION_PID_H

#include "control.h"

/* That of the session in place in this process; 0 if there is none. */
extern int	baton_my_pid;

/* Could it be a session's?  No process has such a number. */
#define baton_pid_is_session(pid) ((pid) >= BATON_FIRST_PID)

/* The live session that has this number; 0 if none has. */
extern uint64 baton_pid_find(int pid);

/* A copy of who a live session is; false if it has ended. */
extern bool baton_identity_read(uint64 session, BatonIdentity *copy);

/* Of whatever session is in that slot, with its last query (query may be NULL). */
extern bool baton_identity_read_slot(uint32 index, BatonIdentity *copy, char *query);

/* The process that serves a session now; 0 if none does. */
extern int	baton_pid_process(uint64 session);

/* --------------------------------
 *		in the backend
 * --------------------------------
 */

/*
 * A session comes: its slot's owner is this backend already.  A session that
 * shall be ended says so at baton_pid_is_terminated().
 */
extern void baton_pid_take(uint64 session);

/*
 * It is about to be given back, or has ended: what others shall see of it
 * meanwhile is written down.
 */
extern void baton_pid_leave(uint64 session);

/*
 * Shall this session, which is in place or has just been given back, be ended?
 * A full barrier must lie between the writing of its owner and this.
 */
extern bool baton_pid_is_terminated(uint64 session);

/* --------------------------------
 *		who served whom
 * --------------------------------
 */

/* The pooled backends at one moment; palloc'd. */
typedef struct BatonServing BatonServing;

extern BatonServing *baton_serving_read(void);

/*
 * The process ID by which SQL knows who runs in that process: the session's
 * that is in place in a pooled backend, 0 if none is; of any other process its
 * own.
 */
extern int	baton_serving_pid(const BatonServing *serving, int process);

/*
 * As above, of who had the local transaction `lxid` there.  Exact, while no
 * more than BATON_BACKEND_SERVED sessions have come since.
 */
extern int	baton_serving_pid_at(const BatonServing *serving, int process, uint32 lxid);

/* Is it a pooled backend's process? */
extern bool baton_serving_is_pooled(const BatonServing *serving, int process);

/* Did this process go on serving whom it served? */
extern bool baton_serving_same(const BatonServing *one, const BatonServing *other, int process);

#endif							/* BATON_SESSION_PID_H */
