/*-------------------------------------------------------------------------
 *
 * cancel.c
 *		Whose cancel requests this backend obeys.
 *
 * A cancel must reach the session it names and no other.  The dispatcher
 * writes the session's id into the backend slot, then sends SIGINT; the
 * signal handler takes the word and acts only if that session is still here.
 * A SIGINT without a word comes from pg_cancel_backend() or from a timeout
 * (StatementTimeoutHandler and LockTimeoutHandler, postgres.c, signal their
 * own process), which mean whoever is served now, as in stock.
 *
 * A cancel for a session that waits for a backend is a flag in its session
 * slot.  The backend that takes it arms a cancel which fires when the first
 * thing it runs is analysed or started, a utility statement by
 * utility_hook.c, a function that a message calls by taint_watch.c:
 * PostgresMain throws away cancels that arrive before a command has been read,
 * so it cannot be raised earlier.
 *
 * Putting a session in place takes longer than stock's reading of a message
 * that is there.  If it was handed over because it has asked something, a
 * cancel that names it and comes meanwhile means that, and is armed as well.
 * Not so for one that idles in place: whatever is in its socket when we come
 * to look may have been sent after the cancel.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "executor/executor.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "tcop/tcopprot.h"

#include "control.h"
#include "identity.h"

static BatonBackendSlot *my_slot = NULL;
static bool cancel_armed = false;

/* In the boundary, or in messages of ours: nothing of the client's runs. */
static volatile sig_atomic_t holding = false;

/* The session in place came with a request. */
static volatile sig_atomic_t has_spoken = false;

/* A cancel came that means what the session has asked. */
static volatile sig_atomic_t held_back = false;

static post_parse_analyze_hook_type previous_post_parse_analyze = NULL;
static ExecutorStart_hook_type previous_executor_start = NULL;

static void
cancel_signal(SIGNAL_ARGS)
{
	int			save_errno = errno;
	uint64		session;

	session = pg_atomic_exchange_u64(baton_atomic_u64(my_slot->cancel), 0);
	if (session == 0)
		StatementCancelHandler(postgres_signal_arg);
	else if (session == my_slot->session)
	{
		if (!holding)
			StatementCancelHandler(postgres_signal_arg);
		else if (has_spoken)
			held_back = true;
	}

	errno = save_errno;
}

void
baton_cancel_hold(void)
{
	holding = true;
}

void
baton_cancel_unhold(void)
{
	holding = false;
	has_spoken = false;
	if (held_back)
	{
		held_back = false;
		cancel_armed = true;
	}
}

void
baton_cancel_session(bool spoken)
{
	has_spoken = spoken;
	held_back = false;
}

void
baton_identity_attach(BatonBackendSlot *slot)
{
	my_slot = slot;
	pqsignal(SIGINT, cancel_signal);
}

void
baton_cancel_arm(void)
{
	cancel_armed = true;
}

void
baton_cancel_disarm(void)
{
	cancel_armed = false;
}

void
baton_cancel_fire(void)
{
	if (unlikely(cancel_armed))
	{
		cancel_armed = false;
		QueryCancelPending = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}

static void
cancel_post_parse_analyze(ParseState *pstate, Query *query, JumbleState *jstate)
{
	baton_cancel_fire();
	if (previous_post_parse_analyze)
		previous_post_parse_analyze(pstate, query, jstate);
}

static void
cancel_executor_start(QueryDesc *query_desc, int eflags)
{
	baton_cancel_fire();
	if (previous_executor_start)
		previous_executor_start(query_desc, eflags);
	else
		standard_ExecutorStart(query_desc, eflags);
}

void
baton_cancel_init(void)
{
	previous_post_parse_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = cancel_post_parse_analyze;
	previous_executor_start = ExecutorStart_hook;
	ExecutorStart_hook = cancel_executor_start;
}
