/*-------------------------------------------------------------------------
 *
 * idle.c
 *		A pooled backend between two transactions: it waits for its client, the
 *		ready queue and the dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "access/xact.h"
#include "commands/async.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/sinval.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "client_input.h"
#include "client_socket.h"
#include "context.h"
#include "delta.h"
#include "dispatcher_link.h"
#include "handover.h"
#include "held_client.h"
#include "identity.h"
#include "idle.h"
#include "majors.h"
#include "parameters.h"
#include "pg_guc.h"
#include "pooled_state.h"
#include "session_pid.h"
#include "session_statements.h"
#include "taint.h"
#include "tally.h"
#include "unnamed_statement.h"
#include "views.h"

/* ----------------------------------------------------------------
 *		Whether a pooled backend that is woken may interrupt a running process.
 *
 * If there are more backends than processors, the process that wakes a backend
 * (a client, a TLS relay, the dispatcher) usually has more work and is woken
 * again itself a moment later. The kernel may let the woken backend interrupt
 * that process, which costs more than the rest of its work. A process with the
 * policy SCHED_BATCH (sched(7)) interrupts no other process: it runs when the
 * waker sleeps, which is some ten microseconds later.
 *
 * Where other processes compute for milliseconds, a SCHED_BATCH backend would
 * wait for them. The dispatcher measures the waits of its own threads, which
 * run on the same processors, and decides for all (batch_scheduling.rs).
 *
 * Any policy other than these two was set on purpose and stays. The usual
 * policy stays where the kernel refuses the change. The nice value is not
 * touched.
 * ----------------------------------------------------------------
 */

/* Wake-ups between two looks at the dispatcher's decision under the usual policy. */
#define WAKES_A_LOOK 16

/* This process has set SCHED_BATCH itself. */
static bool is_batch = false;

static void
set_policy(bool batch)
{
	struct sched_param no_priority = {0};
	int			from = batch ? SCHED_OTHER : SCHED_BATCH;
	int			to = batch ? SCHED_BATCH : SCHED_OTHER;

	is_batch = sched_getscheduler(0) == from &&
		sched_setscheduler(0, to, &no_priority) == 0 &&
		batch;
}

/* The backend has slept between two transactions. */
static void
batch_scheduling_woken(void)
{
	static int	wakes_left = WAKES_A_LOOK;
	bool		batch;

	if (!is_batch && --wakes_left > 0)
		return;
	wakes_left = WAKES_A_LOOK;
	batch = (uint64) baton_monotonic_us() < BatonControlMemory->batch_until_us;
	if (batch != is_batch)
		set_policy(batch);
}

void
baton_batch_scheduling_end(void)
{
	if (is_batch)
		set_policy(false);
}

/* ----------------------------------------------------------------
 *		A pooled backend whose dispatcher has died.
 *
 * The dispatcher's end of the control socket is closed. A backend without a
 * session exits. A backend with a session serves it as an ordinary backend
 * would, until the next dispatcher has adopted both (adopt.rs). Then it
 * connects again, gives the session back as soon as that can be shared, and
 * exits: the new ARENA is not mapped here. If the next dispatcher could not
 * adopt them, the session stays until it ends. Changes of sessions that were
 * given back, and that the dispatcher had not stored, are told to the next
 * one in the same way.
 * ----------------------------------------------------------------
 */

/* How long a backend without a session waits for the next dispatcher. */
#define PATIENCE_US (60 * USECS_PER_SEC)

/* When the dispatcher's end was found closed. */
static int64 gone_since_us = 0;

static void
let_go(int *descriptor)
{
	if (*descriptor < 0)
		return;					/* it is adopted */
	close(*descriptor);
	ReleaseExternalFD();
	*descriptor = -1;
}

/*
 * The dispatcher's end of the control socket is closed: disconnects, or exits.
 *
 * Sessions that are still in its ready queue are lost: their clients see the
 * connections close when the last backend has closed the queue.
 */
static void
dispatcher_gone(void)
{
	let_go(&BatonSelf.control);
	let_go(&BatonSelf.queue);
	while (BatonSelf.epoll_count > 0)
		let_go(&BatonSelf.epolls[--BatonSelf.epoll_count]);
	baton_batch_scheduling_end();
	if (baton_session_held() == 0 && !baton_unheard_any())
		proc_exit(0);
	gone_since_us = baton_monotonic_us();
	baton_session_orphaned();
	BatonSelf.tally->hands_over = 0;
}

/*
 * Has this dispatcher adopted this backend?  The socket's peer is the process
 * that listens, which may be a later one.
 */
static bool
is_adopter(int fd)
{
	struct ucred peer;
	socklen_t	length = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
		pg_atomic_read_u64(baton_atomic_u64(BatonSelf.slot->attach_token)) == (uint64) peer.pid;
}

/*
 * The dispatcher has died.  Returns true if another one has adopted this
 * backend, which is a pooled one again from here on.
 */
static bool
is_adopted(void)
{
	BatonBackendSlot *slot = BatonSelf.slot;
	StringInfoData hello;
	bool		is_sent;
	int			fd;

	if (slot->pid != (uint32) MyProcPid || slot->attach_token == 0)
		return false;
	/* a full backlog: at the next boundary */
	fd = baton_channel_try();
	if (fd < 0)
		return false;
	initStringInfo(&hello);
	baton_wire_u32(&hello, BATON_LAYOUT_VERSION);
	baton_wire_u32(&hello, BatonSelf.slot_index);
	baton_unheard_sessions(&hello);
	is_sent = is_adopter(fd) &&
		baton_channel_send(fd, BATON_MSG_HELLO_AGAIN, baton_session_held(), hello.data, hello.len);
	pfree(hello.data);
	if (!is_sent)
	{
		close(fd);
		return false;
	}
	BatonSelf.control = fd;
	ReserveExternalFD();
	/* the numbers of pools and tenants are the new dispatcher's */
	BatonSelf.pool = baton_pool_slot(slot->pool);
	if (baton_session_held() != 0 && slot->tenant != 0)
	{
		uint32		tenant = slot->tenant - 1;

		BatonServed.tenant = baton_tenant_slot(tenant);
		baton_tally_of(tenant, BatonServed.tenant->serial);
	}
	BatonSelf.retire_wanted = true;
	baton_socket_control_is_new();
	baton_unheard_tell(fd);
	return true;
}

/*
 * Must be checked before a session is given back or taken: a dead dispatcher
 * can do neither, and the next dispatcher has the same slots.
 *
 * The next dispatcher adopts the sessions that no backend holds. Before it
 * looks which ones these are, it waits until no backend hands over: one that
 * has not written that before its dispatcher's end was closed sees that it is
 * closed (wait_for_backends, adopt.rs).
 */
static bool
dispatcher_is_there(void)
{
	struct pollfd end = {.fd = BatonSelf.control};

	BatonSelf.tally->hands_over = 1;
	pg_memory_barrier();
	/* POLLHUP comes without being asked for, whatever is still to be read */
	if (poll(&end, 1, 0) <= 0 || (end.revents & (POLLHUP | POLLERR)) == 0)
		return true;
	dispatcher_gone();
	return false;
}

/* ----------------------------------------------------------------
 *		The dispatcher's messages to a pooled backend, mostly sessions, through
 *		the ready queue and the control socket.
 * ----------------------------------------------------------------
 */

/*
 * Takes the session that was sent, giving back the one in place. If the
 * session in place cannot leave, the new one is bounced. A session that ended
 * on its way is bounced, too. The slot must be BUSY.
 */
static void
take_instead(const BatonIncoming *incoming, bool from_queue)
{
	uint64		session = incoming->frame.session;
	BatonTakenBy why = BATON_TAKEN_IDLE;
	int64		given_us = 0;

	if (likely(incoming->frame.length == sizeof(given_us)))
		memcpy(&given_us, incoming->payload, sizeof(given_us));
	if (from_queue)
		why = BATON_TAKEN_FROM_QUEUE;
	else if (baton_session_held() != 0)
		why = BATON_TAKEN_LINGERING;

	/* from here on the session is given back if this process ends */
	baton_session_received(session);

	/* the kernel drops a descriptor if the process has no free number */
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
	baton_session_take(session, incoming->descriptors[0], why, given_us);
}

/*
 * Takes the next session from the ready queue, giving back the one in place.
 * The slot must be BUSY. Returns false if the queue was empty after all.
 */
static bool
assignments_take_next(void)
{
	BatonIncoming incoming;

	if (baton_channel_receive(BatonSelf.queue, &incoming) != BATON_RECEIVED_FRAME)
		return false;
	if ((int32) pg_atomic_sub_fetch_u32(baton_atomic_u32(BatonSelf.pool->queued), 1) <= 0)
		baton_queue_is_low();
	if (incoming.frame.kind != BATON_MSG_ASSIGN)
		elog(FATAL, "the ready queue holds a message that is not understood");

	take_instead(&incoming, true);
	return true;
}

/*
 * If dropping a large unnamed statement lets the held session be shared again,
 * gives the session back.
 */
static bool
gives_way(uint32 cause)
{
	if (!baton_session_lacks(cause) ||
		!baton_unnamed_give_up(baton_session_held()) ||
		!baton_state_claim(BATON_BACKEND_BUSY) ||
		!baton_session_release(BATON_BACKEND_IDLE, true))
		return false;
	baton_socket_clear();
	return true;
}

/*
 * Ends the held session, which is dedicated and between two transactions:
 * dedicated sessions have taken what other sessions need.
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
	if (!baton_client_left(cause, BATON_END_ERROR))
		baton_backend_retire(BATON_RETIRES_UNCLEAN, "a session left something that cannot be cleaned");
}

/*
 * The held session has been idle in its transaction for longer than the
 * dispatcher allows (10 seconds), a role without a backend waits, and no more
 * backends may be started. As idle_in_transaction_session_timeout does, this
 * ends the process, too: the other role needs its place.
 */
static void
end_idle(const BatonIncoming *incoming)
{
	BatonSessionSlot *slot;
	int64		since;

	if (!IsTransactionOrTransactionBlock() || incoming->frame.session == 0 ||
		baton_session_held() != incoming->frame.session ||
		incoming->frame.length != sizeof(since))
		return;
	memcpy(&since, incoming->payload, sizeof(since));
	slot = baton_session_slot(baton_session_held());
	if (slot->state != BATON_STATE_IDLE_IN_TRANSACTION || slot->state_since_us != since)
		return;					/* its client has sent something meanwhile */
	ereport(FATAL,
			(errcode(ERRCODE_IDLE_IN_TRANSACTION_SESSION_TIMEOUT),
			 errmsg("terminating connection due to idle-in-transaction timeout"),
			 errdetail("It kept a backend idle, and others waited in vain for one.")));
}

/*
 * Reads and processes what has come through the control socket. Returns when
 * nothing is left, or when another session, or none, is in place. `cause`: why
 * the session in place is dedicated.
 */
static void
assignments_handle(uint32 cause)
{
	BatonIncoming incoming;

	for (;;)
	{
		switch (baton_channel_receive(BatonSelf.control, &incoming))
		{
			case BATON_RECEIVED_NOTHING:
				return;
			case BATON_RECEIVED_CLOSED:
				dispatcher_gone();
				return;
			case BATON_RECEIVED_FRAME:
				break;
		}
		/* only an ASSIGN carries descriptors */
		if (incoming.frame.kind != BATON_MSG_ASSIGN)
			baton_incoming_close(&incoming);
		switch (incoming.frame.kind)
		{
			case BATON_MSG_ASSIGN:
				if (unlikely(IsTransactionOrTransactionBlock()))
					ereport(FATAL,
							(errcode(ERRCODE_INTERNAL_ERROR),
							 errmsg("pg_baton's dispatcher gave a session to a backend in a transaction")));
				BatonSelf.tally->hands_over = 1;
				pg_memory_barrier();
				baton_state_set(BATON_BACKEND_BUSY);
				take_instead(&incoming, false);
				return;
			case BATON_MSG_RETIRE:
				/* only wakes the backend; the slot holds the request */
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
				/* a request that is read in part, or held, is not idle */
				if (cause != BATON_CAUSE_NONE && !IsTransactionOrTransactionBlock() &&
					baton_session_held() == incoming.frame.session &&
					!baton_input_is_buffered())
				{
					if (!gives_way(cause))
						evict(cause);
					return;
				}
				break;
			case BATON_MSG_END_IDLE:
				end_idle(&incoming);
				break;
			case BATON_MSG_POKE:
				/* before the queue is looked at: allows the next POKE */
				pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->poked), 0);
				pg_memory_barrier();
				break;
			default:
				break;
		}
	}
}

/* ----------------------------------------------------------------
 *		A pooled backend between two transactions: it waits for the client of
 *		the session it holds, for the ready queue, and for the dispatcher, and
 *		changes sessions when another session waits.
 *
 * Backend and dispatcher agree by the backend slot's state
 * (baton_control_memory.h): while it is IDLE or LINGER, the dispatcher may
 * take the backend with a compare-and-swap to ASSIGNED; the backend claims
 * itself by a compare-and-swap to BUSY. The side whose compare-and-swap fails
 * obeys the other. A backend with nothing to do sleeps on one wait set;
 * nothing here polls. When the dispatcher's end is closed, the backend waits
 * here for its client and for the next dispatcher (is_adopted).
 *
 * pass_baton() and the wait are modelled with the dispatcher's side, alone and
 * with a second backend at the queue, in
 * dispatcher/src/shell/link/handshake/model.rs. A change here requires the
 * same change there.
 * ----------------------------------------------------------------
 */

#define LACKS_MEMORY_LOOK_MS 1000

/* No message wakes the backend when the dispatcher has stored what it was told. */
#define UNHEARD_LOOK_MS 1

/*
 * SIGTERM ends this process. The session in place, which is between two
 * transactions, need not end with it: it is given back if it can be shared. So
 * a stop of the server costs it nothing if the next server gets it
 * (pg_baton.hold_sessions).
 */
static void
give_back_before_the_end(void)
{
	uint64		session = baton_session_held();

	if (session == 0 || BatonSelf.control < 0 || IsTransactionOrTransactionBlock() ||
		baton_input_is_buffered() || baton_pid_is_terminated(session))
		return;
	HOLD_INTERRUPTS();
	/* what its client has sent is still in the socket, for another backend */
	if (BatonServed.input.just_taken)
		baton_client_asks_nothing();
	if (baton_taint() == BATON_CAUSE_NONE &&
		baton_session_lacks_memory() == BATON_CAUSE_NONE &&
		dispatcher_is_there() && baton_state_claim(BATON_BACKEND_BUSY) &&
		baton_session_release(BATON_BACKEND_RETIRING, false))
		baton_socket_clear();
	RESUME_INTERRUPTS();
}

/* Processes what PostgresMain's wait for a command would process. */
static void
handle_interrupts(void)
{
	if (unlikely(ProcDiePending))
		give_back_before_the_end();
	CHECK_FOR_INTERRUPTS();

	/*
	 * ProcessInterrupts does this only while it knows that a command is being
	 * read
	 */
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
 * Sleeps until an event or the timeout. Returns true if the client's socket is
 * readable and no other event came that might have changed the session in
 * place.
 */
static bool
sleep_idle(uint32 cause, long timeout_ms)
{
	WaitEvent	events[FeBeWaitSetNEvents + 1];
	int			count;
	bool		client_ready = true;

	BatonSelf.tally->hands_over = 0;
	/* a session that was greeted here has asked for nothing yet */
	BatonServed.request_since_us = 0;
	if (!IsTransactionOrTransactionBlock())
		BatonServed.transaction_since_us = 0;
	baton_socket_expect_sleep();
	count = WaitEventSetWait(baton_socket_idle_set(), timeout_ms, events, lengthof(events),
							 WAIT_EVENT_CLIENT_READ);
	batch_scheduling_woken();
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
			assignments_handle(cause);
			client_ready = false;
		}
	}
	return client_ready && count > 0;
}

/*
 * The held session is idle in a transaction. It stays, but if its client
 * disconnects, only the transaction shall be lost, and not the backend.
 * Returns true when the client sends something, false when the session has
 * ended.
 */
static bool
wait_in_transaction(void)
{
	bool		ready = false;

	for (;;)
	{
		if (BatonSelf.control < 0)
			(void) is_adopted();
		baton_terminate_check(baton_session_held());
		if (InterruptPending)
			handle_interrupts();

		/*
		 * Replay waits for this backend to give way. ProcessInterrupts ends
		 * an idle transaction only while a command is being read, which only
		 * PostgresMain can tell it (DoingCommandRead, static in postgres.c).
		 */
		if (MyProc->recoveryConflictPending)
		{
			InterruptPending = true;
			baton_input_give_noop_back();
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
}

/*
 * Has the held session completed exactly one transaction? Many clients connect
 * for a single transaction, and the dispatcher notices their end without
 * waking a backend. For a client that stays this costs one more hand-over in
 * its life.
 */
static bool
is_newcomer(void)
{
	return baton_session_slot(baton_session_held())->transactions == 1;
}

/*
 * An immediate shutdown ends this process at once, and the session in place
 * with it. If sessions are to outlive the server, an idle one does not stay.
 */
#define LONGEST_LINGER_MS 1000L

static bool
has_lingered(void)
{
	return baton_hold_sessions_ms > 0 &&
		baton_monotonic_us() - baton_session_slot(baton_session_held())->state_since_us >=
		LONGEST_LINGER_MS * 1000;
}

/*
 * Gives the held session back, or takes another, if it is time to. The held
 * session, if any, is shareable and its client is silent, and the slot is
 * BUSY, IDLE or LINGER. Returns false if the backend can only wait for the
 * session or for another.
 */
static bool
pass_baton(void)
{
	uint32		state;

	/* the last two conditions would delay the following sessions */
	if (!BatonSelf.retire_wanted &&
		(baton_retire_asked() || baton_guc_table_is_overgrown() || baton_held_are_many()))
		BatonSelf.retire_wanted = true;

	/*
	 * Goes straight from one session to the queue's next without being IDLE
	 * in between, in which case the dispatcher would have to wake this
	 * backend.
	 */
	if (!BatonSelf.retire_wanted && (baton_session_held() == 0 || !baton_migration_forced()) &&
		baton_queue_has_some())
	{
		if (!dispatcher_is_there())
			return true;

		/*
		 * If the dispatcher was first, its ASSIGN comes through the control
		 * socket.
		 */
		if (!baton_state_claim(BATON_BACKEND_BUSY))
			return false;
		if (assignments_take_next())
			return true;
	}

	if (baton_session_held() != 0 &&
		(baton_migration_forced() || BatonSelf.retire_wanted || IdleSessionTimeout > 0 ||
		 baton_session_is_counted() || is_newcomer() || has_lingered()))
	{
		/*
		 * the dispatcher watches idle_session_timeout, so the session is not
		 * kept
		 */
		if (!dispatcher_is_there())
			return true;
		if (!baton_state_claim(BATON_BACKEND_BUSY))
			return false;

		/*
		 * if it were IDLE, a retiring backend might be assigned another
		 * session at once
		 */
		if (baton_session_release(BatonSelf.retire_wanted ? BATON_BACKEND_RETIRING : BATON_BACKEND_IDLE,
								  baton_migration_forced()))
			baton_socket_clear();
		return true;
	}

	/*
	 * what the dispatcher has not stored yet, this process may have to tell
	 * again
	 */
	if (baton_session_held() == 0 && BatonSelf.retire_wanted && !baton_unheard_any() &&
		baton_state_claim(BATON_BACKEND_RETIRING))
		baton_backend_retire(BATON_RETIRES_ASKED, "");

	/*
	 * From here on the dispatcher may assign. A full barrier (in set_state),
	 * then the queue again: the dispatcher sends and then looks for backends
	 * in these states to poke, so either it sees our state or we see its
	 * message. The counter alone must not keep the backend awake: it is
	 * raised before the message is sent, and stays raised if the dispatcher
	 * dies in between.
	 *
	 * A state that is impossible here was written by another process; with it
	 * the dispatcher would never assign a session.
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
 * Must the held session keep this backend although it has no local cause? The
 * dispatcher sets that for its tenant, or for all. It does not apply while the
 * slot shows the backend as free, which the dispatcher may then have claimed.
 */
static inline uint32
told_to_keep(void)
{
	uint32		cause = pg_atomic_read_u32(baton_atomic_u32(BatonServed.tenant->keeps_sessions));

	if (cause == BATON_CAUSE_NONE)
		cause = pg_atomic_read_u32(baton_atomic_u32(BatonControlMemory->keeps_sessions));
	/* any process could have written this; an invalid cause is not reported */
	if (likely(cause == BATON_CAUSE_NONE) || cause >= BATON_CAUSE_COUNT)
		return BATON_CAUSE_NONE;
	if (pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state)) != BATON_BACKEND_BUSY)
		return BATON_CAUSE_NONE;
	return cause;
}

/*
 * How long to sleep. If the session lacks memory, no message wakes the backend
 * when other sessions begin to wait, or when there is room.
 */
static long
sleep_time(uint32 cause)
{
	if (baton_session_held() == 0 && baton_unheard_any())
	{
		if (BatonSelf.control < 0)
			return PATIENCE_US / 1000;
		if (BatonSelf.retire_wanted)
			return UNHEARD_LOOK_MS;
	}
	if (baton_session_lacks(cause))
		return LACKS_MEMORY_LOOK_MS;
	if (baton_hold_sessions_ms > 0 && baton_session_held() != 0 && cause == BATON_CAUSE_NONE)
		return LONGEST_LINGER_MS;
	return baton_cache_memory_sleep();
}

/*
 * The limit on the rest of a message applies as long as its session is one that
 * could leave.
 */
static void
time_noop(bool timed)
{
	if (likely(timed == BatonServed.message.is_timed))
		return;
	if (timed)
		baton_message_timeout_begin(true);
	else
		baton_message_timeout_end();
}

/*
 * Shows the session, which keeps this backend, as active. Returns false if it
 * is paused: its request must wait. The state comes before the look: if the
 * dispatcher has seen another state after it had paused the session, the look
 * finds that (is_in_the_way, pause.rs). A cancel ends the wait: the request
 * runs, and is cancelled at once.
 */
static bool
may_run(BatonSessionSlot *slot)
{
	slot->state = BATON_STATE_ACTIVE;
	pg_memory_barrier();
	return likely(!baton_session_is_paused(slot->flags)) || BatonSelf.control < 0 ||
		BatonServed.cancel.held_back;
}

/*
 * The dispatcher wakes this process when a pause ends. It also puts the word
 * right once a second if another process has written it, and wakes nothing.
 */
#define PAUSE_LOOK_MS 1000L

/*
 * The client of a session that keeps this backend has sent a request. Waits
 * while the session is paused. Returns false if it has ended.
 */
static bool
wait_for_resume(uint32 cause)
{
	uint64		session = baton_session_held();
	BatonSessionSlot *slot = baton_session_slot(session);

	if (likely(may_run(slot)))
		return true;

	/* as after any message that PostgresMain reads */
	CHECK_FOR_INTERRUPTS();
	baton_idle_timeouts_end();
	/* from here on a cancel means this request */
	baton_cancel_session_asks(true);
	slot->state_since_us = baton_monotonic_us();
	while (baton_session_held() == session && !may_run(slot))
	{
		slot->state = BATON_STATE_WAITING;
		(void) WaitLatchOrSocket(MyLatch,
								 WL_LATCH_SET | WL_SOCKET_READABLE | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
								 BatonSelf.control, PAUSE_LOOK_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		baton_terminate_check(session);
		handle_interrupts();
		assignments_handle(cause);
	}
	return baton_session_held() == session;
}

/*
 * The held session, if any, is between two transactions. Returns when the
 * client of the session in place has begun to send.
 */
static void
wait_for_session(void)
{
	uint32		cause = BATON_CAUSE_NONE;
	bool		look_for_cause = true;
	bool		within_noop;
	bool		ready = false;

	baton_cache_memory_used();
	for (;;)
	{
		if (BatonSelf.control < 0)
		{
			look_for_cause = true;
			if (!is_adopted() && baton_session_held() == 0 &&
				(!baton_unheard_any() || baton_monotonic_us() - gone_since_us > PATIENCE_US))
				proc_exit(0);
		}
		baton_terminate_check(baton_session_held());

		/* a wait for room to write may have reset the latch of any of these */
		if (InterruptPending || catchupInterruptPending || notifyInterruptPending ||
			ConfigReloadPending)
			handle_interrupts();
		baton_cache_memory_look();

		if (BatonSelf.control < 0)
			cause = BATON_CAUSE_DISPATCHER_GONE;
		else if (baton_session_held() == 0)
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

		within_noop = baton_input_is_within_noop();
		time_noop(within_noop && cause == BATON_CAUSE_NONE);
		if (cause == BATON_CAUSE_NONE && !BatonServed.input.just_taken && !within_noop &&
			pass_baton())
		{
			look_for_cause = true;
			ready = false;
			continue;
		}

		/*
		 * A client that has just been answered usually has nothing to say
		 * yet: the look is omitted if waiting costs nothing.
		 */
		if (baton_session_held() != 0 &&
			(ready || BatonServed.input.just_taken || !baton_socket_expects_sleep()))
		{
			switch (baton_client_listen(ready, cause == BATON_CAUSE_NONE))
			{
				case CLIENT_SPEAKS:
					if (cause != BATON_CAUSE_NONE && !wait_for_resume(cause))
					{
						look_for_cause = true;
						ready = false;
						continue;
					}
					/* ProcessClientReadInterrupt does this after a read */
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
					if (!dispatcher_is_there())
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
				/* it was greeted, or another backend got its message */
				baton_client_asks_nothing();
				continue;
			}
		}

		/* a sleeping backend does not show a session that was given back */
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

	/* reports this backend as idle: a waiting session may have it */
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
	BatonSelf.tally->hands_over = 0;
	if (BatonServed.request_since_us == 0)
		baton_tally_request_begins(baton_monotonic_us());
	return baton_client_runs(messages);
}
