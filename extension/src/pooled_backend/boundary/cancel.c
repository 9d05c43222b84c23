/*-------------------------------------------------------------------------
 *
 * cancel.c
 *		Whose cancel requests this backend obeys.
 *
 * A cancel must reach the session it names and no other.  The dispatcher
 * writes the session's id into the backend slot, then sends SIGUSR2; the
 * signal handler takes the word and acts only if that session is still here.
 * pg_cancel_backend() with a session's number does the same with the session's
 * own word, if it finds a backend that holds it, and else asks the dispatcher.
 * SIGUSR2 means nothing else in a backend (PostgresMain, postgres.c, 15 to 18,
 * ignores it unless it is a walsender), and nothing by itself: one that comes
 * late, or twice, finds no word.
 * A SIGINT comes from pg_cancel_backend() with the number of the process, or
 * from a timeout (StatementTimeoutHandler and LockTimeoutHandler, postgres.c,
 * signal their own process), which mean whoever is served now, as in stock.
 *
 * That a session shall be ended (pg_terminate_backend() with its number) stands
 * in its BatonIdentity, and holds until it has ended: where the session goes,
 * whoever owns it looks there after it has written the owner, and whoever wrote
 * it looks at the owner after that.  The signal only hurries.
 *
 * A cancel for a session that waits for a backend is a flag in its session
 * slot.  The backend that takes it arms a cancel which fires when the first
 * thing it runs is analysed or started, a utility statement by
 * hooks.c, a function that a message calls by taint_watch.c:
 * PostgresMain throws away cancels that arrive before a command has been read,
 * so it cannot be raised earlier.
 *
 * Putting a session in place takes longer than stock's reading of a message
 * that is there.  If it was handed over because it has asked something, a
 * cancel that names it and comes before anything of that runs means it, and is
 * kept until then; PostgresMain throws away one that is raised before it has
 * read the message.  Not so for one that idles in place: whatever is in its
 * socket when we come to look may have been sent after the cancel.
 *
 * session_signal() and the order of the words it reads are modelled with the
 * dispatcher's side in dispatcher/src/shell/link/handshake/model.rs: who
 * changes the one changes the other.
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
#include "storage/latch.h"
#include "parser/analyze.h"
#include "tcop/tcopprot.h"

#include "control.h"
#include "identity.h"
#include "pooled_state.h"
#include "session_pid.h"

static void
session_signal(SIGNAL_ARGS)
{
	int			save_errno = errno;
	uint64		here = pg_atomic_read_u64(baton_atomic_u64(BatonSelf.slot->session));
	uint64		session;
	bool		cancelled;

	/* nothing may be thrown here */
	if ((uint32) here >= BatonControlMade.session_slots)
		here = 0;
	session = pg_atomic_exchange_u64(baton_atomic_u64(BatonSelf.slot->cancel), 0);
	cancelled = session != 0 && session == here;
	if (here != 0)
	{
		BatonIdentity *identity = baton_identity((uint32) here);

		session = here;
		if (pg_atomic_compare_exchange_u64(baton_atomic_u64(identity->cancel), &session, 0))
			cancelled = true;
	}
	if (cancelled)
	{
		if (BatonServed.cancel.has_spoken)
			BatonServed.cancel.held_back = true;
		else if (!BatonSelf.holds_cancels)
			StatementCancelHandler(SIGINT);
	}
	if (here != 0 && baton_pid_is_terminated(here))
	{
		if (!BatonSelf.holds_cancels)
			die(SIGTERM);
		else
			SetLatch(MyLatch);	/* the wait looks again */
	}

	errno = save_errno;
}

void
baton_cancel_hold(void)
{
	BatonSelf.holds_cancels = true;
}

void
baton_cancel_unhold(void)
{
	BatonSelf.holds_cancels = false;
	if (BatonServed.session != 0 && baton_pid_is_terminated(BatonServed.session))
		die(SIGTERM);
}

void
baton_terminate_check(uint64 session)
{
	if (session == 0 || likely(!baton_pid_is_terminated(session)))
		return;
	die(SIGTERM);
	CHECK_FOR_INTERRUPTS();
}

void
baton_cancel_session_asks(bool asks)
{
	BatonServed.cancel.has_spoken = asks;
	BatonServed.cancel.held_back = false;
}

void
baton_cancel_attach(void)
{
	pqsignal(SIGUSR2, session_signal);
}

void
baton_cancel_arm(void)
{
	BatonServed.cancel.armed = true;
}

void
baton_cancel_disarm(void)
{
	baton_cancel_session_asks(false);
	BatonServed.cancel.armed = false;
}

void
baton_cancel_fire(void)
{
	if (likely(!BatonServed.cancel.has_spoken && !BatonServed.cancel.armed))
		return;
	/* a message of ours */
	if (BatonSelf.holds_cancels)
		return;
	/* from here on the handler raises it itself */
	BatonServed.cancel.has_spoken = false;
	if (BatonServed.cancel.held_back || BatonServed.cancel.armed)
	{
		BatonServed.cancel.held_back = false;
		BatonServed.cancel.armed = false;
		QueryCancelPending = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}
