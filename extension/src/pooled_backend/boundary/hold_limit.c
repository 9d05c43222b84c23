/*-------------------------------------------------------------------------
 *
 * hold_limit.c
 *		A limit on how long a transaction may hold a shared backend.
 *
 * Others wait for it, or will: so it counts whether somebody waits at the
 * moment or not, and what a client is told does not depend on others.  A session
 * that keeps its backend anyway (dedicated, native) has none.
 *
 * It means what transaction_timeout of 17 does, with the same error: from when a
 * transaction's first message is there, until it has ended; commands that make
 * several (VACUUM, CALL) begin anew with each.  15 and 16 have no such timeout,
 * and ProcessInterrupts (postgres.c, 15 to 18) no hook.  So the handler asks it to
 * end the connection, as SIGTERM does, and an error context callback, which
 * errfinish (elog.c) calls before anything is written or sent, gives the error
 * its own words.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/timeout.h"

#include "control.h"
#include "handover.h"
#include "hold_limit.h"

/* ERRCODE_TRANSACTION_TIMEOUT, which 17 has brought */
#define TRANSACTION_TIMEOUT_CODE MAKE_SQLSTATE('2', '5', 'P', '0', '4')

int			baton_transaction_timeout_ms;

static TimeoutId timeout;
static bool runs = false;
static volatile sig_atomic_t is_over = false;

/* A signal handler. */
static void
over(void)
{
	if (!runs)
		return;
	is_over = true;
	ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

static int
say_why(void)
{
	errcode(TRANSACTION_TIMEOUT_CODE);
	errmsg("terminating connection due to transaction timeout");
	return errdetail("It held a backend that others share for longer than \"%s\".",
					 "pg_baton.transaction_timeout");
}

static void
watch_errors(void *argument)
{
	if (unlikely(is_over) && geterrcode() == ERRCODE_ADMIN_SHUTDOWN)
		(void) say_why();
}

/*
 * Each error that reaches PostgresMain takes the stack away (postgres.c), and the
 * end of each PG_TRY what was put on it within.
 */
void
baton_hold_limit_watch(void)
{
	static ErrorContextCallback callback = {.callback = watch_errors};

	for (ErrorContextCallback *each = error_context_stack; each != NULL; each = each->previous)
	{
		if (each == &callback)
			return;
	}
	callback.previous = error_context_stack;
	error_context_stack = &callback;
}

void
baton_hold_limit_start(void)
{
	timeout = RegisterTimeout(USER_TIMEOUT, over);
}

void
baton_hold_limit_begin(void)
{
	if (likely(baton_transaction_timeout_ms <= 0))
		return;
	if (BatonSelf.control < 0 || baton_session_held() == 0 ||
		baton_session_slot(baton_session_held())->dedicated_cause != BATON_CAUSE_NONE)
		return;
	runs = true;
	enable_timeout_after(timeout, baton_transaction_timeout_ms);
}

void
baton_hold_limit_end(void)
{
	if (likely(!runs))
		return;
	runs = false;
	disable_timeout(timeout, false);

	/* too late to be told from a SIGTERM of others; nobody else may get it */
	if (is_over)
		ereport(FATAL, (say_why()));
}

void
baton_hold_limit_transaction(XactEvent event)
{
	if (likely(!runs))
		return;
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	/* the transaction may have turned the limit off */
	if (baton_transaction_timeout_ms > 0)
		enable_timeout_after(timeout, baton_transaction_timeout_ms);
	else
		disable_timeout(timeout, false);
}
