/*-------------------------------------------------------------------------
 *
 * pid_signal.c
 *		pg_cancel_backend(), pg_terminate_backend() and
 *		pg_log_backend_memory_contexts() for sessions of the pool, wherever
 *		each is.
 *
 * A session that runs is cancelled by a word that names it, and a signal to its
 * backend.  Where no backend holds it, it is the dispatcher's business, as for
 * clients' own cancel requests (cancel.rs): it knows whether the session waits,
 * and is answered at once.
 *
 * To end a session its BatonIdentity is told so first, and holds until it has
 * ended (cancel.c says who looks).  Then whoever owns it is hurried: a backend
 * by a signal, the dispatcher by a question.
 *
 * Sessions that outlived their dispatcher have a backend for life; there nobody
 * else is asked.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/fmgrprotos.h"
#include "utils/wait_event.h"

#include "pid_functions.h"
#include "pooled_state.h"
#include "question.h"
#include "session_pid.h"
#include "signal_permission.h"

/* A dispatcher that says nothing for so long is not well. */
#define ANSWER_TIMEOUT_MS 10000

#define WAIT_STEP_MS 100

/* Has the dispatcher do it.  Waits until it has.  False if there is none. */
static bool
ask_dispatcher(uint32 what, uint64 session)
{
	StringInfoData hello;
	BatonIncoming incoming;
	volatile bool done = false;
	int			fd = baton_channel_connect();

	if (fd < 0)
		return false;
	ReserveExternalFD();
	PG_TRY();
	{
		baton_question_init(&hello, what);
		done = baton_channel_send(fd, BATON_MSG_HELLO_QUERY, session, hello.data, hello.len) &&
			baton_answer_next(fd, ANSWER_TIMEOUT_MS, &incoming) == BATON_RECEIVED_FRAME &&
			incoming.frame.type == BATON_MSG_DONE;
	}
	PG_FINALLY();
	{
		close(fd);
		ReleaseExternalFD();
	}
	PG_END_TRY();
	return done;
}

/* Signals the backend that holds the session now; false if none does. */
static bool
signal_backend(uint64 session, bool cancel)
{
	int			process = baton_pid_process(session);

	if (process == 0)
		return false;
	if (cancel)
		pg_atomic_write_u64(baton_atomic_u64(baton_identity((uint32) session)->cancel), session);
	(void) kill(process, SIGUSR2);
	return true;
}

/*
 * May the caller not signal a session of this role?  Of his own session the
 * server's function shall say so itself, with its place in the server's source:
 * asked about this very process, which is of the same role for life, it comes
 * to the same (pg_signal_backend, signalfuncs.c).  Another session's process is
 * not named to it, as it may have gone by then.
 */
static void
check_permission(uint64 session, Oid role, PGFunction original,
				 void (*check) (Oid))
{
	if (session == baton_session_held() && !baton_may_signal(role))
		(void) DirectFunctionCall2(original, Int32GetDatum(MyProcPid), Int64GetDatum(0));
	check(role);
}

Datum
baton_sql_cancel_backend(PG_FUNCTION_ARGS)
{
	uint64		session = baton_pid_find(PG_GETARG_INT32(0));
	BatonIdentity identity;

	if (session == 0 || !baton_identity_read(session, &identity))
		return pg_cancel_backend(fcinfo);
	check_permission(session, identity.role_oid, pg_cancel_backend,
					 baton_check_may_cancel);
	PG_RETURN_BOOL(signal_backend(session, true) ||
				   ask_dispatcher(BATON_QUERY_CANCEL, session));
}

/* Is nothing of the session left, and nothing in the backend that it ended with? */
static bool
has_ended(uint64 session, int process)
{
	BatonIdentity identity;

	if (baton_identity_read(session, &identity))
		return false;
	return process == 0 || kill(process, 0) != 0;
}

static bool
wait_until_ended(uint64 session, int process, int pid, int64 timeout_ms)
{
	int64		left_ms = timeout_ms;

	while (!has_ended(session, process))
	{
		int64		step_ms = Min(left_ms, WAIT_STEP_MS);

		if (left_ms <= 0)
		{
			ereport(WARNING,
					(errmsg_plural("backend with PID %d did not terminate within %lld millisecond",
								   "backend with PID %d did not terminate within %lld milliseconds",
								   timeout_ms,
								   pid, (long long int) timeout_ms)));
			return false;
		}
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 step_ms, WAIT_EVENT_BACKEND_TERMINATION);
		ResetLatch(MyLatch);
		left_ms -= step_ms;
	}
	return true;
}

Datum
baton_sql_terminate_backend(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	int64		timeout_ms = PG_GETARG_INT64(1);
	uint64		session = baton_pid_find(pid);
	BatonIdentity identity;
	int			process;

	/* which refuses a negative time before it looks at the number */
	if (session == 0 || timeout_ms < 0 || !baton_identity_read(session, &identity))
		return pg_terminate_backend(fcinfo);
	check_permission(session, identity.role_oid, pg_terminate_backend,
					 baton_check_may_terminate);

	pg_atomic_write_u64(baton_atomic_u64(baton_identity((uint32) session)->terminate), session);
	pg_memory_barrier();

	/* its locks are there until the process has ended */
	process = baton_pid_process(session);
	if (!signal_backend(session, false))
		(void) ask_dispatcher(BATON_QUERY_TERMINATE, session);
	PG_RETURN_BOOL(timeout_ms == 0 || wait_until_ended(session, process, pid, timeout_ms));
}

Datum
baton_sql_log_memory_contexts(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	uint64		session = baton_pid_find(pid);
	int			process;

	if (session == 0)
		return pg_log_backend_memory_contexts(fcinfo);
	process = baton_pid_process(session);
	if (process == 0)
	{
		ereport(WARNING,
				(errmsg("session with PID %d has no memory contexts, as no backend serves it", pid)));
		PG_RETURN_BOOL(false);
	}
	return DirectFunctionCall1(pg_log_backend_memory_contexts, Int32GetDatum(process));
}
