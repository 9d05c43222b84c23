/*-------------------------------------------------------------------------
 *
 * idle.c
 *		A pooled backend between two transactions: it waits for the client of
 *		the session it holds, for the ready queue, and for the dispatcher, and
 *		passes the baton when somebody else waits.
 *
 * The backend slot's state (baton_shared.h) is what backend and dispatcher
 * agree by: while it is IDLE or LINGER the dispatcher may take the backend
 * with a compare-and-swap to ASSIGNED; the backend claims itself by a
 * compare-and-swap to BUSY.  Whoever loses obeys.  A backend with nothing to
 * do sleeps on one wait set; nothing here polls, and when the dispatcher's
 * end is closed the backend leaves it for good.
 *
 * pass_baton() and the wait are modelled with the dispatcher's side, alone and
 * with a second backend at the queue, in
 * dispatcher/src/shell/link/handshake/model.rs: who changes the one changes
 * the other.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/async.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/sinval.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "assignments.h"
#include "backend_state.h"
#include "batch_scheduling.h"
#include "cache_memory.h"
#include "channel.h"
#include "context.h"
#include "context_unnamed.h"
#include "control.h"
#include "dispatcher_loss.h"
#include "guc_table.h"
#include "handover.h"
#include "held_client.h"
#include "hold_limit.h"
#include "identity.h"
#include "idle.h"
#include "majors.h"
#include "message_timeout.h"
#include "own_statistics.h"
#include "pooled_state.h"
#include "socket_switch.h"
#include "statement_held.h"
#include "taint.h"

#define LACKS_MEMORY_LOOK_MS 1000

/* What PostgresMain's wait for a command would process. */
static void
handle_interrupts(void)
{
	CHECK_FOR_INTERRUPTS();

	/* ProcessInterrupts does this only while it knows of a command being read */
	if (IdleStatsUpdateTimeoutPending && !IsTransactionOrTransactionBlock())
	{
		IdleStatsUpdateTimeoutPending = false;
		pgstat_report_stat(true);
		baton_own_statistics_reported();
	}
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
	if (notifyInterruptPending)
		ProcessNotifyInterrupt(true);
	if (ConfigReloadPending)
		baton_context_reload();
}

/*
 * Sleeps until there is something to look at, or for so long.  True if that is the client's
 * socket, and nothing else has happened that might have changed whose it is.
 */
static bool
sleep_idle(uint32 cause, long timeout_ms)
{
	WaitEvent	events[FeBeWaitSetNEvents + 1];
	int			count;
	bool		client_ready = true;

	baton_socket_expect_sleep();
	count = WaitEventSetWait(baton_socket_idle_set(), timeout_ms, events, lengthof(events),
							 WAIT_EVENT_CLIENT_READ);
	baton_batch_scheduling_woken();
	for (int i = 0; i < count; i++)
	{
		if (events[i].events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			handle_interrupts();
			client_ready = false;
		}
		else if (events[i].pos == BATON_IDLE_CONTROL_POS)
		{
			baton_assignments_handle(cause);
			client_ready = false;
		}
	}
	return client_ready && count > 0;
}

/*
 * The held session is idle in a transaction: it stays, but its client may
 * leave, which shall cost the transaction and not the backend.  Returns true
 * when the client speaks, false when the session has ended.
 */
static bool
wait_in_transaction(void)
{
	bool		ready = false;

	while (BatonSelf.control >= 0)
	{
		baton_terminate_check(baton_session_held());
		if (InterruptPending)
			handle_interrupts();

		/*
		 * Replay waits for us to give way.  ProcessInterrupts lets go of an
		 * idle transaction only where a command is being read, which is
		 * PostgresMain's to know (DoingCommandRead, static in postgres.c).
		 */
		if (MyProc->recoveryConflictPending)
		{
			InterruptPending = true;
			return true;
		}

		if (ready || !baton_socket_expects_sleep())
		{
			ClientSays	says = baton_client_listen(ready, false);

			if (says == CLIENT_SPEAKS)
				return true;
			if (says == CLIENT_LEAVES)
			{
				baton_client_lost('T');
				return false;
			}
			if (says == CLIENT_SENDS_NOOP)
			{
				ready = false;
				continue;
			}
		}
		ready = sleep_idle(BATON_CAUSE_OTHER, -1);
	}
	return true;
}

/*
 * Has the held session made but one transaction?  Many clients connect for
 * no more than that, and the dispatcher sees one leave without waking us.
 * For a client that stays it costs one more hand-over in its life.
 */
static bool
is_newcomer(void)
{
	return baton_session_slot(baton_session_held())->transactions == 1;
}

/*
 * Gives the held session back, or takes another, if it is time to.  The held
 * session, if any, is shareable and silent, and the slot is BUSY, IDLE or
 * LINGER.  False: nothing to do but to wait for the session or for another.
 */
static bool
pass_baton(void)
{
	uint32		state;

	/* what the last two say would make the sessions that come next wait */
	if (!BatonSelf.retire_wanted &&
		(baton_retire_asked() || baton_guc_table_is_overgrown() || baton_held_are_many()))
		BatonSelf.retire_wanted = true;

	/*
	 * Straight from one session to the queue's next, without being IDLE in
	 * between: the dispatcher would have to wake us for it.
	 */
	if (!BatonSelf.retire_wanted && (baton_session_held() == 0 || !baton_migration_forced()) &&
		baton_queue_has_some())
	{
		if (!baton_dispatcher_is_there())
			return true;

		/*
		 * If the dispatcher was first its ASSIGN comes over the control
		 * socket.
		 */
		if (!baton_state_claim(BATON_BACKEND_BUSY))
			return false;
		if (baton_assignments_take_next())
			return true;
	}

	if (baton_session_held() != 0 &&
		(baton_migration_forced() || BatonSelf.retire_wanted || IdleSessionTimeout > 0 ||
		 baton_session_is_counted() || is_newcomer()))
	{
		/* idle_session_timeout is the dispatcher's to watch, hence not kept */
		if (!baton_dispatcher_is_there())
			return true;
		if (!baton_state_claim(BATON_BACKEND_BUSY))
			return false;
		/* IDLE, who shall exit might be assigned another at once */
		if (baton_session_release(BatonSelf.retire_wanted ? BATON_BACKEND_RETIRING : BATON_BACKEND_IDLE,
								  baton_migration_forced()))
			baton_socket_clear();
		return true;
	}

	if (baton_session_held() == 0 && BatonSelf.retire_wanted && baton_state_claim(BATON_BACKEND_RETIRING))
		baton_backend_retire(BATON_RETIRES_ASKED, "");

	/*
	 * From here on the dispatcher may assign.  Full barrier (in set_state),
	 * then the queue again: the dispatcher sends and then looks for backends
	 * in these states to poke, so either it sees our state or we see its
	 * message.  The counter alone must not keep us awake: it is raised before
	 * the message is there, and for good if the dispatcher dies in between.
	 *
	 * A state that we cannot be in here has been written by somebody else,
	 * and nobody would ever assign anything.
	 */
	state = pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state));
	if (state != BATON_BACKEND_IDLE && state != BATON_BACKEND_LINGER &&
		state != BATON_BACKEND_ASSIGNED)
		baton_state_set(baton_session_held() != 0 ? BATON_BACKEND_LINGER : BATON_BACKEND_IDLE);
	if (!baton_queue_has_some())
		baton_queue_is_low();
	return baton_queue_has_some() && baton_queue_is_readable() &&
		pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state)) != BATON_BACKEND_ASSIGNED;
}

/*
 * Shall the held session keep this backend, though nothing of it is here: the
 * dispatcher has said so for its tenant, or for all.  Not from one moment to the
 * next while the slot shows it to be free, for then it may have been claimed.
 */
static inline uint32
told_to_keep(void)
{
	uint32		cause = pg_atomic_read_u32(baton_atomic_u32(BatonServed.tenant->keeps_sessions));

	if (cause == BATON_CAUSE_NONE)
		cause = pg_atomic_read_u32(baton_atomic_u32(BatonControlMemory->keeps_sessions));
	/* anybody could have written it, and what is none is not for us to tell */
	if (likely(cause == BATON_CAUSE_NONE) || cause >= BATON_CAUSE_COUNT)
		return BATON_CAUSE_NONE;
	if (pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state)) != BATON_BACKEND_BUSY)
		return BATON_CAUSE_NONE;
	return cause;
}

/*
 * How long to sleep.  Nobody wakes a backend whose session lacks memory when
 * others have begun to wait, or there is room.
 */
static long
sleep_time(uint32 cause)
{
	return baton_session_lacks(cause) ? LACKS_MEMORY_LOOK_MS : baton_cache_memory_sleep();
}

/*
 * The held session, if any, is between two transactions.  Returns when the
 * session in place has begun to speak.
 */
static void
wait_for_session(void)
{
	uint32		cause = BATON_CAUSE_NONE;
	bool		look_for_cause = true;
	bool		ready = false;

	baton_cache_memory_used();
	for (;;)
	{
		if (BatonSelf.control < 0)
		{
			if (baton_session_held() == 0)
				proc_exit(0);
			return;				/* an ordinary connection from now on */
		}
		baton_terminate_check(baton_session_held());

		/* a wait for room to write may have reset the latch of any of them */
		if (InterruptPending || catchupInterruptPending || notifyInterruptPending ||
			ConfigReloadPending)
			handle_interrupts();
		baton_cache_memory_look();

		if (baton_session_held() == 0)
		{
			cause = BATON_CAUSE_NONE;
			look_for_cause = true;
		}
		else if (look_for_cause && !BatonServed.input.just_taken)
		{
			cause = baton_taint();
			if (cause == BATON_CAUSE_NONE)
				cause = baton_session_lacks_memory();
			if (cause == BATON_CAUSE_NONE)
				cause = told_to_keep();
			if (baton_session_lacks(cause) && baton_queue_has_some() &&
				baton_unnamed_give_up(baton_session_held()))
				continue;
			baton_session_note_cause(cause);
			look_for_cause = false;
		}

		if (cause == BATON_CAUSE_NONE && !BatonServed.input.just_taken && pass_baton())
		{
			look_for_cause = true;
			ready = false;
			continue;
		}

		/*
		 * One that has just been answered has nothing to say yet, as a rule:
		 * the look is left out where the wait is free.
		 */
		if (baton_session_held() != 0 &&
			(ready || BatonServed.input.just_taken || !baton_socket_expects_sleep()))
		{
			switch (baton_client_listen(ready, cause == BATON_CAUSE_NONE))
			{
				case CLIENT_SPEAKS:
					/* ProcessClientReadInterrupt does, after a read */
					if (notifyInterruptPending)
						ProcessNotifyInterrupt(true);
					return;
				case CLIENT_LEAVES:
					if (!baton_client_left(cause, BATON_END_CLIENT_CLOSED))
						baton_backend_retire(BATON_RETIRES_UNCLEAN, "a session left something that cannot be cleaned");
					ready = false;
					continue;
				case CLIENT_SENDS_NOOP:
					baton_client_asks_nothing();
					baton_client_rest_may_begin();
					ready = false;
					continue;
				case CLIENT_BEGINS:
					if (!baton_dispatcher_is_there())
						continue;
					if (!baton_client_waits_for_rest())
						look_for_cause = true;
					ready = false;
					continue;
				case CLIENT_NOTHING:
					break;
			}
			if (BatonServed.input.just_taken)
			{
				/* greeted, or its message went elsewhere */
				baton_client_asks_nothing();
				continue;
			}
		}

		/* who has been given back is not shown by a backend that sleeps */
		if (baton_session_held() == 0)
			baton_identity_clear();
		ready = sleep_idle(cause, sleep_time(cause));
		look_for_cause = true;	/* it may be another session now */
	}
}

void
baton_idle_start(void)
{
	baton_session_start();
	baton_cache_memory_start();
	baton_message_timeout_start();
	baton_hold_limit_start();
	baton_state_set(BATON_BACKEND_IDLE);

	/* "I am idle": whoever waits for a backend may have this one */
	(void) baton_channel_send(BatonSelf.control, BATON_MSG_RELEASE, 0, NULL, 0);
}

bool
baton_idle_wait(char status, StringInfo messages)
{
	baton_message_timeout_end();
	BatonServed.input.is_whole = false;
	if (status == 'I' || !wait_in_transaction())
	{
		baton_hold_limit_end();
		wait_for_session();
		baton_hold_limit_begin();
	}
	return baton_client_runs(messages);
}
