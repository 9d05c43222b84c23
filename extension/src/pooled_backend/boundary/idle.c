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
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>

#include "access/xact.h"
#include "commands/async.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "attach.h"
#include "backend_state.h"
#include "channel.h"
#include "client_input.h"
#include "context.h"
#include "dispatcher_loss.h"
#include "handover.h"
#include "idle.h"
#include "identity.h"
#include "majors.h"
#include "message_timeout.h"
#include "self_check.h"
#include "socket_switch.h"

pg_noreturn static void retire(const char *why);

static bool retire_wanted = false;
static bool just_taken = false; /* the held session came to speak, and has not
								 * been listened to yet */
static bool installed = false;	/* it was put in place since it last spoke */
static bool input_is_whole = false; /* what the client says now was seen to
									 * its end */
static bool input_is_timed = false; /* it was seen not to be whole, and shall
									 * not take for ever */

static bool
migration_forced(void)
{
	return BatonControlMemory->force_migration != 0;
}

/* --------------------------------
 *		the ready queue
 * --------------------------------
 */

/*
 * Takes the session that was sent, giving back the one in place.  If that one
 * cannot leave, it is the new one that goes elsewhere; one that has ended on its
 * way goes nowhere.  The slot must be BUSY.
 */
static void
take_instead(const BatonIncoming *incoming)
{
	uint64		session = incoming->frame.session;

	/* from here on it is given back if this process ends */
	baton_session_received(session);

	/* the kernel drops a descriptor that the process has no number for */
	if (incoming->descriptor_count != 1)
	{
		if (baton_session_held() != 0)
			(void) baton_session_release(BATON_BACKEND_BUSY, false);
		elog(FATAL, "could not receive a client's socket");
	}
	if (!baton_session_is_named(session) ||
		(baton_session_held() != 0 && !baton_session_release(BATON_BACKEND_BUSY, false)))
	{
		baton_session_bounce(session, incoming->descriptors[0]);
		return;
	}
	baton_session_take(session, incoming->descriptors[0]);
	just_taken = true;
	installed = true;
}

/*
 * Takes the next session from the queue, giving back the one in place.  The
 * slot must be BUSY.  False if there was none after all.
 */
static bool
take_from_queue(void)
{
	BatonIncoming incoming;

	if (baton_channel_receive(BatonSelf.queue, &incoming) != BATON_RECEIVED_FRAME)
		return false;
	pg_atomic_fetch_sub_u32(baton_atomic_u32(BatonSelf.pool->queued), 1);
	if (incoming.frame.type != BATON_MSG_ASSIGN)
		elog(FATAL, "the ready queue holds a message that is not understood");

	take_instead(&incoming);
	return true;
}

/* --------------------------------
 *		the client
 * --------------------------------
 */

/*
 * The session's next message is there: PostgresMain shall read it.  True if
 * `messages` must be read before.
 */
static bool
session_runs(StringInfo messages)
{
	BatonSessionSlot *slot = baton_session_slot(baton_session_held());
	bool		check_unnamed = installed;
	const char *first_bytes;
	Size		length;

	if (!input_is_whole || client_connection_check_interval > 0)
		baton_socket_expect_waits();
	just_taken = false;
	installed = false;
	slot->state = BATON_STATE_ACTIVE;
	slot->state_since_us = GetCurrentTimestamp();
	if (unlikely(slot->flags & BATON_SESSION_LOOKED_AT))
		pg_atomic_fetch_and_u32(baton_atomic_u32(slot->flags),
								~(uint32) BATON_SESSION_LOOKED_AT);
	if (unlikely(input_is_timed))
		baton_message_timeout_begin(false);

	/* one that has stayed here has its unnamed statement here */
	first_bytes = baton_input_peeked(&length);
	return check_unnamed &&
		baton_context_unnamed(baton_session_held(), first_bytes, length, messages);
}

/*
 * The held session is idle after all.  A cancel that came as it waited for a
 * backend must not wait on for its next statement.
 */
static void
asks_nothing(void)
{
	BatonSessionSlot *slot = baton_session_slot(baton_session_held());

	just_taken = false;
	baton_session_void_cancel();
	slot->state = BATON_STATE_IDLE;
	slot->state_since_us = GetCurrentTimestamp();
}

/*
 * The client of the held session has sent part of a message: it is idle, and
 * the dispatcher waits for the rest.  False: the session cannot leave.
 */
static bool
leave_begun(void)
{
	asks_nothing();
	pg_atomic_fetch_or_u32(baton_atomic_u32(baton_session_slot(baton_session_held())->flags),
						   BATON_SESSION_BEGUN);
	if (!baton_session_release(BATON_BACKEND_IDLE, migration_forced()))
	{
		pg_atomic_fetch_and_u32(baton_atomic_u32(baton_session_slot(baton_session_held())->flags),
								~(uint32) BATON_SESSION_BEGUN);
		return false;
	}
	baton_socket_clear();
	return true;
}

/*
 * The client of the held session has gone.  True if the backend is clean.
 * False: it must exit.
 */
static bool
client_left(uint32 cause, uint32 how)
{
	bool		clean = true;

	if (cause != BATON_CAUSE_NONE || baton_unpooled())
		clean = baton_taint_clean();
	baton_session_end(how, clean ? BATON_BACKEND_IDLE : BATON_BACKEND_RETIRING);
	return clean;
}

static void
retire(const char *why)
{
	uint32		length = strlen(why);
	StringInfoData payload;

	baton_state_set(BATON_BACKEND_RETIRING);
	if (BatonSelf.control >= 0)
	{
		initStringInfo(&payload);
		appendBinaryStringInfo(&payload, (char *) &length, sizeof(length));
		appendBinaryStringInfo(&payload, why, length);
		(void) baton_channel_send(BatonSelf.control, BATON_MSG_RETIRING, 0,
								  payload.data, payload.len);
	}
	proc_exit(0);
}

/* --------------------------------
 *		the dispatcher
 * --------------------------------
 */

/*
 * The held session, dedicated and between two transactions, ends: those like it
 * have taken what others need.
 */
static void
evict(uint32 cause)
{
	ErrorData	edata;

	memset(&edata, 0, sizeof(edata));
	edata.sqlerrcode = ERRCODE_TOO_MANY_CONNECTIONS;
	edata.message = _("too many sessions keep their backends");
	edata.detail = _("The session is dedicated, and others waited in vain for a backend.");
	edata.hint = _("Raise pg_baton.max_dedicated, or max_connections.");
	baton_session_send_fatal(&edata);
	baton_input_discard_unread();
	if (!client_left(cause, BATON_END_ERROR))
		retire("a session left something that cannot be cleaned");
}

/* Reads what the dispatcher has sent; returns when there is no more. */
static void
handle_control(uint32 cause)
{
	BatonIncoming incoming;

	for (;;)
	{
		switch (baton_channel_receive(BatonSelf.control, &incoming))
		{
			case BATON_RECEIVED_NOTHING:
				return;
			case BATON_RECEIVED_CLOSED:
				baton_dispatcher_gone();
				return;
			case BATON_RECEIVED_FRAME:
				break;
		}
		switch (incoming.frame.type)
		{
			case BATON_MSG_ASSIGN:
				baton_state_set(BATON_BACKEND_BUSY);
				take_instead(&incoming);
				return;
			case BATON_MSG_RETIRE:
				/* wakes us; what it means is in our slot */
				break;
			case BATON_MSG_RECALL:
				if (cause == BATON_CAUSE_NONE &&
					baton_session_held() == incoming.frame.session &&
					baton_state_claim(BATON_BACKEND_BUSY))
				{
					if (baton_session_release(BATON_BACKEND_IDLE, true))
						baton_socket_clear();
				}
				break;
			case BATON_MSG_EVICT:
				if (cause != BATON_CAUSE_NONE && !IsTransactionOrTransactionBlock() &&
					baton_session_held() == incoming.frame.session)
				{
					evict(cause);
					return;
				}
				break;
			case BATON_MSG_POKE:
				/* before the queue is looked at: the next one may be sent */
				pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->poked), 0);
				pg_memory_barrier();
				break;
			default:
				break;
		}
	}
}

/* --------------------------------
 *		waiting
 * --------------------------------
 */

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
	}
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
	if (notifyInterruptPending)
		ProcessNotifyInterrupt(true);
	if (ConfigReloadPending)
		baton_context_reload();
}

/*
 * Sleeps until there is something to look at.  True if that is the client's
 * socket, and nothing else has happened that might have changed whose it is.
 */
static bool
sleep_idle(uint32 cause)
{
	WaitEvent	events[FeBeWaitSetNEvents + 1];
	int			count;
	bool		client_ready = true;

	baton_socket_expect_sleep();
	count = WaitEventSetWait(baton_socket_idle_set(), -1, events, lengthof(events),
							 WAIT_EVENT_CLIENT_READ);
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
			handle_control(cause);
			client_ready = false;
		}
	}
	return client_ready && count > 0;
}

/*
 * Something of the held session was read to be ignored, and exactly so far.
 * What lies behind it may begin: a packet that is read in part holds all of
 * its memory, and the window may be closed (__tcp_select_window,
 * net/ipv4/tcp_output.c) though there are but some bytes to wait for.
 */
static void
rest_may_begin(void)
{
	if (baton_input_unread() > 0)
		pg_atomic_fetch_or_u32(baton_atomic_u32(baton_session_slot(baton_session_held())->flags),
							   BATON_SESSION_LOOKED_AT);
}

/* Too little to be read, and nobody has said otherwise? */
static bool
only_begins(void)
{
	return !baton_input_may_begin() &&
		(baton_session_slot(baton_session_held())->flags & BATON_SESSION_LOOKED_AT) == 0;
}

/*
 * What does the client of the held session say?  `ready`: its socket is known
 * to be readable.  `may_leave`: it may be served elsewhere, and shall not keep
 * the backend for half a message.  The backend is claimed before anything is
 * taken out of the socket: if the dispatcher was first this is CLIENT_NOTHING.
 */
static ClientSays
listen_to_client(bool ready, bool may_leave)
{
	ClientSays	says;
	bool		read = ready && !installed && !may_leave;

	/*
	 * An installed session's first message must stay in the socket until it
	 * is known whether its unnamed statement must be made before; and that of
	 * one that may leave, in case it leaves.
	 */
	input_is_timed = false;
	if (read)
	{
		if (!baton_state_claim(BATON_BACKEND_BUSY))
			return CLIENT_NOTHING;
		says = baton_input_read();
	}
	else
	{
		says = baton_input_peek();
		if (says != CLIENT_NOTHING && !baton_state_claim(BATON_BACKEND_BUSY))
			return CLIENT_NOTHING;
		input_is_whole = says == CLIENT_SPEAKS && baton_input_is_whole();
		if (unlikely(may_leave && !input_is_whole &&
					 (says == CLIENT_SPEAKS || says == CLIENT_SENDS_NOOP)))
		{
			if (only_begins())
				return CLIENT_BEGINS;
			input_is_timed = true;
		}
	}

	if (unlikely(says == CLIENT_SENDS_NOOP))
	{
		bool		skipped;

		if (input_is_timed)
			baton_message_timeout_begin(true);
		skipped = baton_input_skip();
		baton_message_timeout_end();
		if (!skipped)
			return CLIENT_LEAVES;
		if (baton_input_is_buffered())
			return baton_input_ends_session() ? CLIENT_LEAVES : CLIENT_SPEAKS;
	}
	return says;
}

void
baton_idle_client_lost(char status)
{
	if (status != 'I')
	{
		baton_idle_timeouts_end();
		AbortOutOfAnyTransaction();
		/* PostgresMain has shown it as idle in transaction */
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	if (!client_left(baton_taint(), BATON_END_CLIENT_CLOSED))
		retire("a session left something that cannot be cleaned");
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
			ClientSays	says = listen_to_client(ready, false);

			if (says == CLIENT_SPEAKS)
				return true;
			if (says == CLIENT_LEAVES)
			{
				baton_idle_client_lost('T');
				return false;
			}
			if (says == CLIENT_SENDS_NOOP)
			{
				ready = false;
				continue;
			}
		}
		ready = sleep_idle(BATON_CAUSE_OTHER);
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
	if (!retire_wanted && baton_retire_asked())
		retire_wanted = true;

	/*
	 * Straight from one session to the queue's next, without being IDLE in
	 * between: the dispatcher would have to wake us for it.
	 */
	if (!retire_wanted && (baton_session_held() == 0 || !migration_forced()) &&
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
		if (take_from_queue())
			return true;
	}

	if (baton_session_held() != 0 &&
		(migration_forced() || retire_wanted || IdleSessionTimeout > 0 || is_newcomer()))
	{
		/* idle_session_timeout is the dispatcher's to watch, hence not kept */
		if (!baton_dispatcher_is_there())
			return true;
		if (!baton_state_claim(BATON_BACKEND_BUSY))
			return false;
		/* IDLE, who shall exit might be assigned another at once */
		if (baton_session_release(retire_wanted ? BATON_BACKEND_RETIRING : BATON_BACKEND_IDLE,
								  migration_forced()))
			baton_socket_clear();
		return true;
	}

	if (baton_session_held() == 0 && retire_wanted && baton_state_claim(BATON_BACKEND_RETIRING))
		retire("asked to");

	/*
	 * From here on the dispatcher may assign.  Full barrier (in set_state),
	 * then the queue again: the dispatcher sends and then looks for backends
	 * in these states to poke, so either it sees our state or we see its
	 * message.  The counter alone must not keep us awake: it is raised before
	 * the message is there, and for good if the dispatcher dies in between.
	 */
	if (pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state)) == BATON_BACKEND_BUSY)
		baton_state_set(baton_session_held() != 0 ? BATON_BACKEND_LINGER : BATON_BACKEND_IDLE);
	return baton_queue_has_some() && baton_queue_is_readable() &&
		pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state)) != BATON_BACKEND_ASSIGNED;
}

/*
 * Shall the held session keep this backend, though nothing of it is here: the
 * dispatcher has said so for its pool, or for all.  Not from one moment to the
 * next while the slot shows it to be free, for then it may have been claimed.
 */
static inline uint32
told_to_keep(void)
{
	uint32		cause = BatonSelf.pool->keeps_sessions;

	if (pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state)) != BATON_BACKEND_BUSY)
		return BATON_CAUSE_NONE;
	return cause != BATON_CAUSE_NONE ? cause : BatonControlMemory->keeps_sessions;
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

		if (baton_session_held() == 0)
		{
			cause = BATON_CAUSE_NONE;
			look_for_cause = true;
			just_taken = false;
		}
		else if (look_for_cause && !just_taken)
		{
			cause = baton_taint();
			if (cause == BATON_CAUSE_NONE && baton_session_is_too_large())
				cause = BATON_CAUSE_CONTEXT_MEMORY;
			if (cause == BATON_CAUSE_NONE)
				cause = told_to_keep();
			baton_session_note_cause(cause);
			look_for_cause = false;
		}

		if (cause == BATON_CAUSE_NONE && !just_taken && pass_baton())
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
			(ready || just_taken || !baton_socket_expects_sleep()))
		{
			switch (listen_to_client(ready, cause == BATON_CAUSE_NONE))
			{
				case CLIENT_SPEAKS:
					/* ProcessClientReadInterrupt does, after a read */
					if (notifyInterruptPending)
						ProcessNotifyInterrupt(true);
					return;
				case CLIENT_LEAVES:
					if (!client_left(cause, BATON_END_CLIENT_CLOSED))
						retire("a session left something that cannot be cleaned");
					ready = false;
					continue;
				case CLIENT_SENDS_NOOP:
					asks_nothing();
					rest_may_begin();
					ready = false;
					continue;
				case CLIENT_BEGINS:
					if (!baton_dispatcher_is_there())
						continue;
					if (!leave_begun())
						look_for_cause = true;
					ready = false;
					continue;
				case CLIENT_NOTHING:
					break;
			}
			if (just_taken)
			{
				/* greeted, or its message went elsewhere */
				asks_nothing();
				continue;
			}
		}

		/* who has been given back is not shown by a backend that sleeps */
		if (baton_session_held() == 0)
			baton_identity_clear();
		ready = sleep_idle(cause);
		look_for_cause = true;	/* it may be another session now */
	}
}

void
baton_idle_start(void)
{
	baton_session_start();
	baton_message_timeout_start();
	baton_state_set(BATON_BACKEND_IDLE);

	/* "I am idle": whoever waits for a backend may have this one */
	(void) baton_channel_send(BatonSelf.control, BATON_MSG_RELEASE, 0, NULL, 0);
}

bool
baton_idle_wait(char status, StringInfo messages)
{
	baton_message_timeout_end();
	input_is_whole = false;
	if (status == 'I' || !wait_in_transaction())
		wait_for_session();
	return session_runs(messages);
}
