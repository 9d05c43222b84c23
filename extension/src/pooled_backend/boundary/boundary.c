/*-------------------------------------------------------------------------
 *
 * boundary.c
 *		The point between two transactions, at which a backend may change
 *		sessions.
 *
 * PostgresMain (postgres.c, all versions) calls ReadyForQuery before it reads
 * the next command; ReadyForQuery (dest.c) sends a 'Z' message with the
 * transaction status and flushes. Both go through PqCommMethods, the vtable
 * that pqcomm.c exports for parallel workers. Our wrapper sees the 'Z', and
 * the flush after it is the boundary: the client has its whole answer, no
 * transaction is open if the status is 'I', and PostgresMain will next read
 * from MyProcPort. It reads the next message of whatever session is in place
 * when the wrapper returns.
 *
 * Some drivers send a Flush outside of any batch, alone or after a Close,
 * usually after their Sync. PostgresMain flushes and reads on without
 * ReadyForQuery. That flush is a boundary as well if only CloseComplete was
 * sent since the last 'Z'. PostgresMain answers every other message with
 * something else, and no other code flushes without having sent something
 * (pq_flush's callers: dest.c, elog.c, copyfromparse.c, and async.c, which
 * does so in the middle of reading).
 *
 * idle.c does the waiting. Cancels are held off during the boundary and
 * discarded at its end, as PostgresMain discards those that arrive while no
 * command runs; otherwise a stray cancel would send an extra error and shift
 * every later answer by one. errfinish (elog.c) sets QueryCancelHoldoffCount
 * to zero at every error: code below us that catches an error must restore it.
 * Cancels are also held off while injected messages run: the session's
 * statement_timeout, which runs then, applies to its own statements. A cancel
 * that comes then applies to the client's next message.
 *
 * An error in this file ends the backend. It must never unwind into
 * PostgresMain, which would report it to whatever client is in place, with
 * another ReadyForQuery. Where no error is caught, ExitOnAnyError makes
 * errstart (elog.c) raise each error as FATAL.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "arena.h"
#include "boundary.h"
#include "client_input.h"
#include "context.h"
#include "unnamed_statement.h"
#include "dispatcher_link.h"
#include "handover.h"
#include "held_client.h"
#include "identity.h"
#include "idle.h"
#include "pg_process.h"
#include "majors.h"
#include "views.h"
#include "parameters.h"
#include "pid_messages.h"
#include "pooled_state.h"
#include "reset_values.h"
#include "tally.h"
#include "client_socket.h"

static const PQcommMethods *socket_methods = NULL;	/* pqcomm.c's own */
static PQcommMethods boundary_methods;

/*
 * bytes that certainly fit into pqcomm.c's send buffer (PQ_SEND_BUFFER_SIZE,
 * less one message's header)
 */
#define UNFLUSHED_MAX 8000

static BatonSelfBoundary *const self = &BatonSelf.boundary;

static void boundary(char status, bool ready);

/* --------------------------------
 *		the vtable
 * --------------------------------
 */

/*
 * internal_flush (pqcomm.c, 15 to 18) sets ClientConnectionLost when a write
 * fails, and the next CHECK_FOR_INTERRUPTS would end this process with FATAL.
 * Only the session shall end: the command that still runs is cancelled,
 * further messages are discarded, and the next boundary handles the lost
 * client.
 *
 * What the boundary itself writes (a greeting, a notification, an error) may
 * be for a session that is no longer in place when the boundary ends. The
 * socket of that session reports the loss; it is checked before another
 * session is served.
 */
static void
check_client(void)
{
	if (likely(!ClientConnectionLost) || !self->attached)
		return;
	ClientConnectionLost = 0;
	if (self->in_boundary)
		return;
	BatonServed.client_lost = true;
	if (!self->ready_sent)
	{
		QueryCancelPending = true;
		InterruptPending = true;
	}
}

/*
 * PostgresMain forgets a pending cancel when it reads the next message: the
 * rest of the lost client's batch would run, and commit. The batch therefore
 * ends at the latest with the Execute that has just been answered.
 */
static void
cancel_batch(char type)
{
	if (self->in_boundary || self->ready_sent || (type != 'C' && type != 'I' && type != 's'))
		return;
	QueryCancelPending = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

/*
 * A function may catch the cancel, and go on.  In stock the loss is FATAL,
 * which nothing catches.
 */
void
baton_boundary_transaction(XactEvent event)
{
	if (likely(!BatonServed.client_lost) || self->in_boundary || self->ready_sent)
		return;
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("connection to client lost")));
}

/*
 * Is there no client to read? Between two sessions a placeholder stands in the
 * client's place. What does not fit into its socket would wait in pqcomm.c's
 * buffer and reach the next client.
 */
static bool
no_client_reads(void)
{
	return BatonServed.client_lost || (self->in_boundary && self->attached && baton_session_held() == 0);
}

/*
 * The untranslated severity of an ErrorResponse or NoticeResponse: the second
 * field, after the translated one (send_message_to_frontend, elog.c).
 */
static const char *
severity_of(const char *s, size_t len)
{
	size_t		first = strnlen(s, len) + 1;

	return first < len && s[first] == 'V' ? s + first + 1 : "";
}

/*
 * Must this message not be sent? This holds for answers to injected messages,
 * for messages without a client, and for messages about the boundary's own
 * work (a transaction, for example), which client_min_messages would let pass
 * but which a direct connection does not have.
 */
static bool
swallowed(char type, const char *s, size_t len)
{
	if (no_client_reads())
		return true;
	if (unlikely(self->in_boundary && type == 'N'))
	{
		const char *severity = severity_of(s, len);

		/* NOTICE and WARNING of a greeting go to the client, as in stock */
		return strcmp(severity, "DEBUG") == 0 || strcmp(severity, "LOG") == 0;
	}
	if (!self->injecting)
		return false;

	/*
	 * A ParameterStatus (after a reload) is sent again with the client's
	 * answer.
	 */
	if (type == 'S')
		baton_context_withhold_report();

	/* Notifications always go to the client. */
	return type != 'A';
}

/*
 * Called before a message is sent: might it make PostgreSQL wait for the
 * client? socket_putmessage (pqcomm.c) flushes, and waits, only when its
 * buffer is full; both kinds of CopyInResponse make copyfromparse.c read; and
 * a statement before this message may have requested pq_check_connection.
 */
static void
expect_waits_for(char type, size_t length)
{
	if (baton_socket_expects_waits())
		return;
	self->unflushed += 1 + sizeof(uint32) + length;
	if (self->unflushed > UNFLUSHED_MAX || type == 'G' || type == 'W' ||
		client_connection_check_interval > 0)
		baton_socket_expect_waits();
}

/*
 * If the session that sent a notification is unknown (pid_messages.c), the
 * notification names a process. A listening session keeps its backend, so a
 * notification from this process is the session's own: it gets the process ID
 * that the client was told. Returns NULL if the notification came from another
 * process.
 */
static char *
own_notification(const char *s, size_t len)
{
	uint32		pid;
	char	   *own;

	if (!self->attached || baton_session_held() == 0 || len < sizeof(pid))
		return NULL;
	memcpy(&pid, s, sizeof(pid));
	if (pg_ntoh32(pid) != (uint32) MyProcPid)
		return NULL;
	own = palloc(len);
	memcpy(own, s, len);
	pid = pg_hton32((uint32) baton_record(baton_session_held())->cancel_pid);
	memcpy(own, &pid, sizeof(pid));
	return own;
}

static int
boundary_putmessage(char type, const char *s, size_t len)
{
	int			result = 0;
	char	   *own = NULL;

	if (!self->in_boundary)
	{
		if (type == 'Z')
		{
			self->ready_sent = true;
			self->ready_status = len > 0 ? s[0] : 'I';
			self->batch_begun = false;
		}
		else if (type == 'K' && !self->attached)
			baton_login_triggers_hold();
		else if (self->attached)
		{
			baton_context_note_message(type);
			if (type != '3')
				self->batch_begun = true;
			if (unlikely(BatonServed.message.is_timed))
				baton_message_timeout_end();
			if (unlikely(BatonServed.input.until_timeout > 0) && !self->injecting)
				baton_client_is_told(type);
		}
	}

	/* this process ends, and its client shall read the reason */
	if (unlikely(self->injecting && type == 'E') &&
		strcmp(severity_of(s, len), "ERROR") != 0)
	{
		self->injecting = false;
		baton_socket_resume();
	}

	if (!swallowed(type, s, len))
	{
		if (likely(self->attached))
			baton_tally_sent(type, s, len);
		expect_waits_for(type, len);
		if (unlikely(type == 'A'))
		{
			own = baton_notify_name_sender(s, len);
			if (own == NULL)
				own = own_notification(s, len);
		}
		if (self->in_boundary)
			baton_terminate_ends_write();
		result = socket_methods->putmessage(type, own ? own : s, len);
		if (self->in_boundary)
			baton_terminate_ends_no_write();
		if (unlikely(own != NULL))
			pfree(own);
		check_client();
	}
	if (unlikely(BatonServed.client_lost))
		cancel_batch(type);
	return result;
}

static void
boundary_putmessage_noblock(char type, const char *s, size_t len)
{
	if (swallowed(type, s, len))
		return;
	if (likely(self->attached))
		baton_tally_sent(type, s, len);
	expect_waits_for(type, len);
	socket_methods->putmessage_noblock(type, s, len);
}

static int
boundary_flush(void)
{
	int			result = 0;

	if (!self->injecting && !no_client_reads())
	{
		/* Wait only for what does not fit into the socket. */
		if (!baton_socket_expects_waits())
		{
			result = socket_methods->flush_if_writable();
			if (socket_methods->is_send_pending())
				baton_socket_expect_waits();
		}
		if (baton_socket_expects_waits())
		{
			if (self->in_boundary)
				baton_terminate_ends_write();
			result = socket_methods->flush();
			if (self->in_boundary)
				baton_terminate_ends_no_write();
		}
		self->unflushed = 0;
		check_client();
	}
	if (self->ready_sent)
	{
		self->ready_sent = false;
		boundary(self->ready_status, true);
	}
	else if (!self->batch_begun && !self->in_boundary && !self->injecting && self->attached &&
			 !pq_is_reading_msg())
		boundary(TransactionBlockStatusCode(), false);
	return result;
}

void
baton_boundary_install(void (*attach) (void))
{
	if (socket_methods != NULL)
		return;
	socket_methods = PqCommMethods;
	boundary_methods = *PqCommMethods;
	boundary_methods.putmessage = boundary_putmessage;
	boundary_methods.putmessage_noblock = boundary_putmessage_noblock;
	boundary_methods.flush = boundary_flush;
	PqCommMethods = &boundary_methods;
	self->attach = attach;
	baton_plain_record();
}

/*
 * Makes every error FATAL from here on. The variable is also a parameter
 * (exit_on_error), whose value is the session's own again after
 * errors_as_before().
 */
static void
errors_end_process(void)
{
	self->exits_on_error = ExitOnAnyError;
	ExitOnAnyError = true;
}

static void
errors_as_before(void)
{
	ExitOnAnyError = self->exits_on_error;
}

/*
 * The injected messages have been processed; the client's own message is next.
 */
static void
injected(void)
{
	bool		timed_out = get_timeout_indicator(STATEMENT_TIMEOUT, true);

	self->injecting = false;
	if (QueryCancelPending && !timed_out)
		baton_cancel_arm();
	QueryCancelHoldoffCount = 0;
	QueryCancelPending = false;
	baton_socket_resume();
	baton_unnamed_injected();
	baton_cancel_unhold();
	baton_session_arm_cancel();
	baton_context_begin();
}

/*
 * A command of the session in place has been answered. Returns true if the
 * backend must wait for the session's next command, or for another session.
 */
static bool
answered(char status, bool ready)
{
	BatonSessionSlot *slot;

	if (self->attached && baton_session_held() != 0)
	{
		baton_cancel_disarm();
		if (status == 'I')
			baton_hold_limit_end();
		slot = baton_session_slot(baton_session_held());
		slot->state_since_us = baton_monotonic_us();
		if (ready)
			baton_tally_answered(status, slot->state_since_us);
		BatonSelf.slot->xact_status = status;
		if (status != 'I')
			slot->state = BATON_STATE_IDLE_IN_TRANSACTION;
		else
		{
			/* a pause waits for a session until it is shown as idle */
			slot->state = baton_input_is_buffered() ? BATON_STATE_ACTIVE : BATON_STATE_IDLE;
			if (ready)
			{
				slot->transactions++;
				BatonSelf.slot->transactions++;
			}
		}
		if (status == 'I')
			baton_own_statistics_begin(slot->state_since_us);
		/* the next message has been read already, or will not be looked at */
		if (unlikely(baton_unnamed_is_put_off()) &&
			(BatonSelf.control < 0 || baton_input_is_buffered()))
			baton_unnamed_make(NULL, 0);
		if (BatonSelf.control < 0 && baton_input_is_buffered())
		{
			/* as an ordinary connection does */
			baton_socket_expect_waits();
			return false;
		}
		if (baton_input_is_buffered() && !BatonServed.client_lost && baton_input_is_noop())
		{
			ClientSays	says = baton_input_skip();

			if (says == CLIENT_LEAVES)
				BatonServed.client_lost = true;
			else if (says == CLIENT_SENDS_NOOP)
				baton_idle_timeouts_end();
			if (status == 'I' && !baton_input_is_buffered())
				slot->state = BATON_STATE_IDLE;
		}
		if (baton_input_is_buffered())
		{
			if (!BatonServed.client_lost && !baton_input_ends_session())
			{
				slot->state = BATON_STATE_ACTIVE;
				baton_tally_request_begins(slot->state_since_us);
				baton_socket_expect_waits();

				/* the buffer may hold only part of its next message */
				if (status == 'I')
				{
					baton_message_timeout_begin_late();
					baton_hold_limit_begin();
				}
				else
					baton_message_timeout_end();
				return false;
			}
			/* The rest must not be taken for the next session's. */
			BatonServed.client_lost = true;
			baton_input_discard();
		}
	}

	/*
	 * start_xact_command (postgres.c) armed the timeout for the command that
	 * is done and arms it again for the next command. During the boundary it
	 * would check a client that is not in FeBeWaitSet, or another session's.
	 */
	if (get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
		disable_timeout(CLIENT_CONNECTION_CHECK_TIMEOUT, false);
	CheckClientConnectionPending = false;
	return true;
}

/* `ready`: ReadyForQuery was sent; otherwise only a Flush was answered. */
static void
boundary(char status, bool ready)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile uint32 holdoff = QueryCancelHoldoffCount;
	bool		waits = false;

	errors_end_process();
	baton_hold_limit_watch();
	if (self->injecting)
		injected();
	else
		waits = answered(status, ready);
	errors_as_before();
	if (!waits)
		return;

	QueryCancelHoldoffCount = holdoff + 1;
	self->in_boundary = true;
	baton_cancel_hold();
	PG_TRY();
	{
		StringInfoData messages;
		bool		session_ended;

		if (!self->attached)
		{
			self->attach();
			baton_idle_timeouts_end();
			baton_parameters_forget_attach();
			baton_idle_start();
			self->attached = true;
		}
		session_ended = BatonServed.client_lost;
		if (BatonServed.client_lost)
		{
			BatonServed.client_lost = false;
			baton_client_lost(status);
		}
		initStringInfo(&messages);
		if (baton_idle_wait(session_ended ? 'I' : status, &messages))
		{
			baton_socket_inject(messages.data, messages.len);
			self->injecting = true;
		}
		pfree(messages.data);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		/*
		 * a second error (out of memory, for example) must not return either
		 */
		ExitOnAnyError = true;
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

	errors_end_process();
	self->in_boundary = false;

	/* Assigned, since PG_CATCH in code below sets it to zero. */
	QueryCancelHoldoffCount = self->injecting ? holdoff + 1 : holdoff;

	/*
	 * LockTimeoutHandler (postgres.c) requests a cancel, too. It was held off
	 * and is void; its indicator would give a later cancel's error another
	 * name (ProcessInterrupts).
	 */
	if (QueryCancelPending)
		(void) get_timeout_indicator(LOCK_TIMEOUT, true);
	QueryCancelPending = false;
	if (!self->injecting)
	{
		baton_cancel_unhold();
		baton_session_arm_cancel();
		baton_context_begin();
	}
	MemoryContextSwitchTo(caller);
	errors_as_before();
}
