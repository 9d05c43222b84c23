/*-------------------------------------------------------------------------
 *
 * assignments.c
 *		What the dispatcher sends to a pooled backend, by the ready queue and by
 *		the control socket: sessions, above all.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "assignments.h"
#include "backend_state.h"
#include "channel.h"
#include "client_input.h"
#include "context_unnamed.h"
#include "dispatcher_loss.h"
#include "handover.h"
#include "held_client.h"
#include "socket_switch.h"

/*
 * Takes the session that was sent, giving back the one in place.  If that one
 * cannot leave, it is the new one that goes elsewhere; one that has ended on its
 * way goes nowhere.  The slot must be BUSY.
 */
static void
take_instead(const BatonIncoming *incoming, bool from_queue)
{
	uint64		session = incoming->frame.session;
	BatonTakenBy why = BATON_TAKEN_IDLE;

	if (from_queue)
		why = BATON_TAKEN_FROM_QUEUE;
	else if (baton_session_held() != 0)
		why = BATON_TAKEN_LINGERING;

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
	baton_session_take(session, incoming->descriptors[0], why);
}

bool
baton_assignments_take_next(void)
{
	BatonIncoming incoming;

	if (baton_channel_receive(BatonSelf.queue, &incoming) != BATON_RECEIVED_FRAME)
		return false;
	if ((int32) pg_atomic_sub_fetch_u32(baton_atomic_u32(BatonSelf.pool->queued), 1) <= 0)
		baton_queue_is_low();
	if (incoming.frame.type != BATON_MSG_ASSIGN)
		elog(FATAL, "the ready queue holds a message that is not understood");

	take_instead(&incoming, true);
	return true;
}

/*
 * Can the held session be shared again, once it has no large unnamed statement?
 * Then it is given back.
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
	if (!baton_client_left(cause, BATON_END_ERROR))
		baton_backend_retire(BATON_RETIRES_UNCLEAN, "a session left something that cannot be cleaned");
}

/*
 * The held session has been idle in its transaction for longer than
 * pg_baton.extra_idle_timeout, a role without a backend waits, and no more may be
 * started.  As idle_in_transaction_session_timeout would, it ends the process, too:
 * its place is what the other role needs.
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
		return;					/* it has spoken meanwhile */
	ereport(FATAL,
			(errcode(ERRCODE_IDLE_IN_TRANSACTION_SESSION_TIMEOUT),
			 errmsg("terminating connection due to idle-in-transaction timeout"),
			 errdetail("It kept a backend idle for longer than \"%s\", and others waited in vain for one.",
					   "pg_baton.extra_idle_timeout")));
}

void
baton_assignments_handle(uint32 cause)
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
		/* of them all an ASSIGN alone carries any */
		if (incoming.frame.type != BATON_MSG_ASSIGN)
			baton_incoming_close(&incoming);
		switch (incoming.frame.type)
		{
			case BATON_MSG_ASSIGN:
				baton_state_set(BATON_BACKEND_BUSY);
				take_instead(&incoming, false);
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
					if (!gives_way(cause))
						evict(cause);
					return;
				}
				break;
			case BATON_MSG_END_IDLE:
				end_idle(&incoming);
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
