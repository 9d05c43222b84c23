/*-------------------------------------------------------------------------
 *
 * boundary.c
 *		The point between two transactions at which the baton goes on.
 *
 * PostgresMain (postgres.c, all versions) calls ReadyForQuery before it reads
 * the next command; ReadyForQuery (dest.c) puts a 'Z' message with the
 * transaction status and flushes.  Both go through PqCommMethods, the vtable
 * that pqcomm.c exports for parallel workers.  Our wrapper sees the 'Z', and
 * the flush after it is the boundary: the client has its whole answer, no
 * transaction is open if the status is 'I', and PostgresMain will next read
 * from MyProcPort.  Whatever session is in place when we return, its next
 * message is what PostgresMain reads.
 *
 * Waiting itself is idle.c's.  Cancels are held off and thrown away at the end, as PostgresMain throws away those that
 * arrive while no command runs; else a stray one would send an extra error
 * and shift every later answer by one.
 *
 * An error in here ends the backend: it must never unwind into PostgresMain,
 * which would report it to whatever client is in place.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "attach.h"
#include "boundary.h"
#include "context.h"
#include "handover.h"
#include "idle.h"
#include "identity.h"
#include "socket_switch.h"

static const PQcommMethods *socket_methods = NULL;	/* pqcomm.c's own */
static PQcommMethods boundary_methods;

static bool attached = false;
static bool in_boundary = false;	/* what is sent now is the boundary's own */
static bool ready_sent = false; /* a 'Z' was put since the last flush */
static char ready_status;		/* its status */
static bool injecting = false;	/* what runs are messages of ours: the client
								 * must not see the answers */

static void boundary(char status);

/* --------------------------------
 *		the vtable
 * --------------------------------
 */

/* Is this message an answer to what we injected? */
static bool
swallowed(char type)
{
	if (!injecting)
		return false;

	/* ParameterStatus and notifications are the client's in any case. */
	return type != 'S' && type != 'A';
}

static int
boundary_putmessage(char type, const char *s, size_t len)
{
	if (!in_boundary)
	{
		if (type == 'Z')
		{
			ready_sent = true;
			ready_status = len > 0 ? s[0] : 'I';
		}
		else if (attached)
			baton_context_note_message(type);
	}

	if (swallowed(type))
		return 0;
	return socket_methods->putmessage(type, s, len);
}

static void
boundary_putmessage_noblock(char type, const char *s, size_t len)
{
	if (swallowed(type))
		return;
	socket_methods->putmessage_noblock(type, s, len);
}

static int
boundary_flush(void)
{
	int			result = 0;

	if (!injecting)
		result = socket_methods->flush();
	if (ready_sent)
	{
		ready_sent = false;
		boundary(ready_status);
	}
	return result;
}

void
baton_boundary_install(void)
{
	if (socket_methods != NULL)
		return;
	socket_methods = PqCommMethods;
	boundary_methods = *PqCommMethods;
	boundary_methods.putmessage = boundary_putmessage;
	boundary_methods.putmessage_noblock = boundary_putmessage_noblock;
	boundary_methods.flush = boundary_flush;
	PqCommMethods = &boundary_methods;
}

static void
boundary(char status)
{
	MemoryContext caller = CurrentMemoryContext;
	uint32		holdoff = QueryCancelHoldoffCount;
	BatonSessionSlot *slot;

	if (injecting)
	{
		/* Our messages are done; the client's own comes next. */
		injecting = false;
		baton_socket_resume();
		baton_session_arm_cancel();
		return;
	}

	if (attached && baton_session_held() != 0)
	{
		baton_cancel_disarm();
		slot = baton_session_slot(baton_session_held());
		BatonSelf.slot->xact_status = status;
		if (status != 'I')
			slot->state = BATON_STATE_IDLE_IN_TRANSACTION;
		else
		{
			slot->state = BATON_STATE_IDLE;
			slot->transactions++;
			BatonSelf.slot->transactions++;
			pg_atomic_fetch_add_u64(baton_atomic_u64(BatonSelf.pool->completed), 1);
		}
		slot->state_since_us = GetCurrentTimestamp();
		if (pq_buffer_has_data())
		{
			slot->state = BATON_STATE_ACTIVE;
			return;
		}
		if (BatonSelf.control < 0)
			return;				/* an ordinary connection for good */
	}

	QueryCancelHoldoffCount = holdoff + 1;
	in_boundary = true;
	PG_TRY();
	{
		StringInfoData messages;

		if (!attached)
		{
			baton_attach();
			baton_idle_start();
			attached = true;
		}
		initStringInfo(&messages);
		if (baton_idle_wait(status, &messages))
		{
			baton_socket_inject(messages.data, messages.len);
			injecting = true;
		}
		pfree(messages.data);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(caller);
		edata = CopyErrorData();
		FlushErrorState();
		ereport(FATAL,
				(errcode(edata->sqlerrcode),
				 errmsg_internal("%s", edata->message),
				 edata->detail ? errdetail_internal("%s", edata->detail) : 0,
				 edata->hint ? errhint("%s", edata->hint) : 0,
				 edata->context ? errcontext("%s", edata->context) : 0));
	}
	PG_END_TRY();

	in_boundary = false;
	if (!injecting)
		baton_session_arm_cancel();

	/* By assignment: PG_CATCH of anything below us sets it to zero. */
	QueryCancelHoldoffCount = holdoff;
	QueryCancelPending = false;
	MemoryContextSwitchTo(caller);
}
