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
 * Some drivers end with a Flush, alone or after a Close, outside of any batch:
 * after their Sync, as a rule.  PostgresMain flushes and reads on, with no
 * ReadyForQuery.  That flush is a boundary as well, if nothing but CloseComplete
 * was said since the last 'Z': every other message that PostgresMain reads is
 * answered by something else, and nobody but it flushes without having said
 * something (pq_flush's callers: dest.c, elog.c, copyfromparse.c, and async.c,
 * which does so in the middle of reading).
 *
 * Waiting itself is idle.c's.  Cancels are held off and thrown away at the
 * end, as PostgresMain throws away those that arrive while no command runs;
 * else a stray one would send an extra error and shift every later answer by
 * one.  errfinish (elog.c) sets QueryCancelHoldoffCount to zero at every error:
 * whoever catches one below us must put it back.  They are held off, too, while
 * messages of ours run: the session's statement_timeout, which runs then, means
 * a statement of its own.  A cancel that comes then means the message that
 * comes next.
 *
 * An error in here ends the backend: it must never unwind into PostgresMain,
 * which would report it to whatever client is in place, with one more
 * ReadyForQuery.  Where none is caught ExitOnAnyError makes errstart (elog.c)
 * raise each as FATAL.
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
#include "client_socket.h"

static const PQcommMethods *socket_methods = NULL;	/* pqcomm.c's own */
static PQcommMethods boundary_methods;

/* bytes that go into pqcomm.c's send buffer for sure (PQ_SEND_BUFFER_SIZE, less
 * one message's header) */
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
 * It is the session that shall end: what still runs for it is cancelled, what
 * it still says is thrown away, and the next boundary sees that it has gone.
 *
 * A write of the boundary's own (a greeting, a notification, an error) is for a
 * session that may not be the one in place when the boundary ends.  There its
 * socket tells, which is looked at before anybody else is listened to.
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
 * PostgresMain forgets a cancel that is pending when it reads the next message:
 * what is left of the lost client's batch would run, and commit.  So it ends
 * with the Execute at the latest, which has just been answered.
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
 * Is nobody there to read?  Between two sessions a placeholder stands in the
 * client's place: what it has no room for would wait in pqcomm.c's buffer, and
 * reach the next client.
 */
static bool
nobody_reads(void)
{
	return BatonServed.client_lost || (self->in_boundary && self->attached && baton_session_held() == 0);
}

/*
 * The severity of an ErrorResponse or NoticeResponse, not translated: the second
 * field, after the translated one (send_message_to_frontend, elog.c).
 */
static const char *
severity_of(const char *s, size_t len)
{
	size_t		first = strnlen(s, len) + 1;

	return first < len && s[first] == 'V' ? s + first + 1 : "";
}

/*
 * Is this message an answer to what we injected, for nobody, or of what goes on
 * at the boundary (a transaction, say), which client_min_messages would let
 * pass, but which a direct connection has not?
 */
static bool
swallowed(char type, const char *s, size_t len)
{
	if (nobody_reads())
		return true;
	if (unlikely(self->in_boundary && type == 'N'))
	{
		const char *severity = severity_of(s, len);

		/* a greeting's NOTICE and WARNING are the client's, as in stock */
		return strcmp(severity, "DEBUG") == 0 || strcmp(severity, "LOG") == 0;
	}
	if (!self->injecting)
		return false;

	/* ParameterStatus (after a reload) comes again with the client's answer. */
	if (type == 'S')
		baton_context_withhold_report();

	/* Notifications are the client's in any case. */
	return type != 'A';
}

/*
 * Before a message is put: might it make PostgreSQL wait for the client?
 * socket_putmessage (pqcomm.c) flushes, and waits, only when its buffer is
 * full; both kinds of CopyInResponse make copyfromparse.c read; and a statement
 * before this message may have asked for pq_check_connection.
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
 * Where the session that sent it is not known (pid_messages.c), a notification
 * names a process.  Who listens keeps its backend, so what comes from this one
 * is the session's own; it gets the number that its client was told.  NULL if
 * the message, which is a notification, is another's.
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

	/* this process ends, and its client shall read why */
	if (unlikely(self->injecting && type == 'E') &&
		strcmp(severity_of(s, len), "ERROR") != 0)
	{
		self->injecting = false;
		baton_socket_resume();
	}

	if (!swallowed(type, s, len))
	{
		expect_waits_for(type, len);
		if (unlikely(type == 'A'))
		{
			own = baton_notify_name_sender(s, len);
			if (own == NULL)
				own = own_notification(s, len);
		}
		result = socket_methods->putmessage(type, own ? own : s, len);
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
	expect_waits_for(type, len);
	socket_methods->putmessage_noblock(type, s, len);
}

static int
boundary_flush(void)
{
	int			result = 0;

	if (!self->injecting && !nobody_reads())
	{
		/* Only what the socket has no room for has to be waited for. */
		if (!baton_socket_expects_waits())
		{
			result = socket_methods->flush_if_writable();
			if (socket_methods->is_send_pending())
				baton_socket_expect_waits();
		}
		if (baton_socket_expects_waits())
			result = socket_methods->flush();
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
 * From here on an error is FATAL.  The variable is a parameter as well
 * (exit_on_error), and the session's own until errors_as_before().
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

/* The messages of ours are done; the client's own comes next. */
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
 * A command of the session in place has been answered.  True if its next, or
 * another session's, has to be waited for.
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
		BatonSelf.slot->xact_status = status;
		if (status != 'I')
			slot->state = BATON_STATE_IDLE_IN_TRANSACTION;
		else
		{
			slot->state = BATON_STATE_IDLE;
			if (ready)
			{
				slot->transactions++;
				BatonSelf.slot->transactions++;
				pg_atomic_fetch_add_u64(baton_atomic_u64(BatonServed.tenant->completed), 1);
			}
		}
		slot->state_since_us = baton_monotonic_us();
		if (status == 'I')
			baton_own_statistics_begin(slot->state_since_us);
		/* what comes next has been read, or will be, without a look at it */
		if (unlikely(baton_unnamed_is_put_off()) &&
			(BatonSelf.control < 0 || baton_input_is_buffered()))
			baton_unnamed_make(NULL, 0);
		if (BatonSelf.control < 0)
		{
			/* an ordinary connection for good */
			baton_socket_expect_waits();
			return false;
		}
		if (baton_input_is_buffered() && !BatonServed.client_lost && baton_input_is_noop() &&
			!baton_input_skip())
			BatonServed.client_lost = true;
		if (baton_input_is_buffered())
		{
			if (!BatonServed.client_lost && !baton_input_ends_session())
			{
				slot->state = BATON_STATE_ACTIVE;
				baton_socket_expect_waits();

				/* part of its next message may be all there is */
				if (status == 'I')
				{
					baton_message_timeout_begin_late();
					baton_hold_limit_begin();
				}
				else
					baton_message_timeout_end();
				return false;
			}
			/* The next session must not be taken to have said the rest. */
			BatonServed.client_lost = true;
			baton_input_discard();
		}
	}

	/*
	 * start_xact_command (postgres.c) armed it for the command that is done,
	 * and the next command's will again.  In here it would check a client who
	 * is not in FeBeWaitSet, or another's.
	 */
	if (get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
		disable_timeout(CLIENT_CONNECTION_CHECK_TIMEOUT, false);
	CheckClientConnectionPending = false;
	return true;
}

/* `ready`: ReadyForQuery was sent, and not only a Flush answered. */
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

		/* nor may a second error, for want of memory, say */
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

	/* By assignment: PG_CATCH of anything below us sets it to zero. */
	QueryCancelHoldoffCount = self->injecting ? holdoff + 1 : holdoff;

	/*
	 * LockTimeoutHandler (postgres.c) asks for a cancel, too.  Held off, it
	 * was none; its indicator would give a later cancel's error another name
	 * (ProcessInterrupts).
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
