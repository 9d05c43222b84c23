/*-------------------------------------------------------------------------
 *
 * held_client.c
 *		The client of the session in place: what it sends between transactions,
 *		and how long it may hold the backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/timeout.h"

#include "client_input.h"
#include "client_socket.h"
#include "context.h"
#include "dispatcher_link.h"
#include "handover.h"
#include "held_client.h"
#include "majors.h"
#include "self_check.h"
#include "taint.h"
#include "unnamed_statement.h"

/* ----------------------------------------------------------------
 *		A limit on how long a transaction may hold a shared backend.
 *
 * The limit applies whether or not another session waits at the moment, so
 * that a client's result does not depend on others. A session that keeps its
 * backend anyway (dedicated, native) has no limit.
 *
 * It works as transaction_timeout of 17 does, with the same error: from the
 * arrival of a transaction's first message to the transaction's end. Commands
 * that run several transactions (VACUUM, CALL) restart it with each. 15 and 16
 * have no such timeout, and ProcessInterrupts (postgres.c, 15 to 18) has no
 * hook. So the handler makes it end the connection, as SIGTERM does. An error
 * context callback, which errfinish (elog.c) calls before the error is written
 * or sent, replaces the error's text.
 * ----------------------------------------------------------------
 */

/* ERRCODE_TRANSACTION_TIMEOUT, new in 17 */
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
 * Puts the callback on the stack unless it is there. Each error that reaches
 * PostgresMain clears the stack (postgres.c), and the end of each PG_TRY
 * removes what was pushed within it.
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

	/*
	 * too late to distinguish from an ordinary SIGTERM; no other session may
	 * get it
	 */
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

/* ----------------------------------------------------------------
 *		What the client of the session in place sends, and what that does to
 *		the session.
 * ----------------------------------------------------------------
 */

static BatonServedInput *const input = &BatonServed.input;

/*
 * A packet that is read in part holds all of its memory, and the window may be
 * closed (__tcp_select_window, net/ipv4/tcp_output.c) although only a few
 * bytes are missing.
 */
void
baton_client_rest_may_begin(void)
{
	if (baton_input_unread() > 0)
		pg_atomic_fetch_or_u32(baton_atomic_u32(baton_session_slot(baton_session_held())->flags),
							   BATON_SESSION_LOOKED_AT);
}

/*
 * Is there too little to be read? Whole messages without a Sync would hold the
 * backend until the Sync comes, so the dispatcher decides about them
 * (has_backend_to_spare, dispatch.rs). Such a pause is not part of a message:
 * message_timeout does not apply.
 */
static bool
only_begins(bool *is_part)
{
	InputExtent extent = baton_input_extent();

	*is_part = extent != INPUT_PAUSE;
	return extent != INPUT_ENOUGH &&
		(baton_session_slot(baton_session_held())->flags & BATON_SESSION_LOOKED_AT) == 0;
}

/*
 * PostgresMain turns the idle timeouts off after any message, also after one
 * that it ignores; one that has passed before that counts.
 */
static void
no_longer_idle(void)
{
	CHECK_FOR_INTERRUPTS();
	baton_idle_timeouts_end();
}

ClientSays
baton_client_listen(bool ready, bool may_leave)
{
	ClientSays	says;
	bool		read = ready && !input->installed && !may_leave && !baton_unnamed_is_put_off();

	/*
	 * An installed session's first message must stay in the socket until it
	 * is known whether its unnamed statement must be made first. The message
	 * of a session that may leave stays in case it leaves.
	 */
	input->is_timed = false;
	if (unlikely(baton_input_is_within_noop()))
		says = CLIENT_SENDS_NOOP;
	else if (read)
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
		input->is_whole = says == CLIENT_SPEAKS && baton_input_is_whole();
		if (unlikely(may_leave && !input->is_whole &&
					 (says == CLIENT_SPEAKS || says == CLIENT_SENDS_NOOP)))
		{
			bool		is_part;

			if (only_begins(&is_part))
				return CLIENT_BEGINS;
			input->is_timed = is_part;
		}
	}

	if (unlikely(says == CLIENT_SENDS_NOOP))
	{
		input->is_timed = false;
		says = baton_input_skip();
		if (says == CLIENT_NOTHING)
			return says;
		baton_message_timeout_end();
		if (says == CLIENT_SENDS_NOOP)
			no_longer_idle();
		if (says == CLIENT_SENDS_NOOP && baton_input_is_buffered())
			return baton_input_ends_session() ? CLIENT_LEAVES : CLIENT_SPEAKS;
	}
	return says;
}

bool
baton_client_runs(StringInfo messages)
{
	BatonSessionSlot *slot = baton_session_slot(baton_session_held());
	bool		check_unnamed = input->installed;
	const char *first_bytes;
	Size		length;

	if (!input->is_whole || client_connection_check_interval > 0)
		baton_socket_expect_waits();
	input->just_taken = false;
	input->installed = false;
	slot->state = BATON_STATE_ACTIVE;
	slot->state_since_us = baton_monotonic_us();
	if (unlikely(slot->flags & BATON_SESSION_LOOKED_AT))
	{
		uint32		flags = pg_atomic_fetch_and_u32(baton_atomic_u32(slot->flags),
													~(uint32) (BATON_SESSION_LOOKED_AT |
															   BATON_SESSION_LATE |
															   BATON_SESSION_PAUSE));
		int			pause = flags >> BATON_SESSION_PAUSE_SHIFT;

		/*
		 * start_xact_command (postgres.c) does not change a running timer; a
		 * Close does not call it.
		 */
		if (flags & BATON_SESSION_LATE)
			input->until_timeout = pause;
		else if (pause > 0 && baton_input_peeked(&length)[0] != 'C')
			enable_timeout_after(STATEMENT_TIMEOUT, pause);
	}
	if (unlikely(input->is_timed))
		baton_message_timeout_begin(false);

	/* a session that has stayed here has its unnamed statement here */
	first_bytes = baton_input_peeked(&length);
	/* these bytes are about to be read */
	input->peeked_length = 0;
	if (!check_unnamed && unlikely(baton_unnamed_is_put_off()))
		baton_unnamed_make(first_bytes, length);
	return check_unnamed &&
		baton_context_unnamed(baton_session_held(), first_bytes, length, messages);
}

void
baton_client_asks_nothing(void)
{
	BatonSessionSlot *slot = baton_session_slot(baton_session_held());

	input->just_taken = false;
	baton_session_void_cancel();
	slot->state = BATON_STATE_IDLE;
	slot->state_since_us = baton_monotonic_us();
}

/*
 * The timer runs for messages that have been answered: only an Execute stops
 * it.
 */
static void
statement_timed_out(void)
{
	if (!get_timeout_active(STATEMENT_TIMEOUT))
		return;
	enable_timeout_after(STATEMENT_TIMEOUT, 0);
	/* the signal comes after a microsecond, or when the process next runs */
	while (!get_timeout_indicator(STATEMENT_TIMEOUT, false))
		pg_usleep(10);
}

void
baton_client_is_told(char type)
{
	if (type == 'E' || type == 'Z')
		input->until_timeout = 0;
	else if (strchr("123CITns", type) != NULL && --input->until_timeout == 0)
		statement_timed_out();
}

bool
baton_client_waits_for_rest(void)
{
	pg_atomic_uint32 *flags = baton_atomic_u32(baton_session_slot(baton_session_held())->flags);
	uint32		timeout_ms = StatementTimeout <= BATON_SESSION_PAUSE_MAX ? StatementTimeout : 0;

	baton_client_asks_nothing();
	pg_atomic_fetch_and_u32(flags, ~(uint32) BATON_SESSION_PAUSE);
	pg_atomic_fetch_or_u32(flags, BATON_SESSION_BEGUN | timeout_ms << BATON_SESSION_PAUSE_SHIFT);
	if (!baton_session_release(BATON_BACKEND_IDLE, baton_migration_forced()))
	{
		pg_atomic_fetch_and_u32(flags, ~(uint32) (BATON_SESSION_BEGUN | BATON_SESSION_PAUSE));
		return false;
	}
	baton_socket_clear();
	return true;
}

bool
baton_client_left(uint32 cause, uint32 how)
{
	bool		clean = true;

	if (cause != BATON_CAUSE_NONE || baton_unpooled())
		clean = baton_taint_clean();
	baton_session_end(how, clean ? BATON_BACKEND_IDLE : BATON_BACKEND_RETIRING);
	return clean;
}

void
baton_client_lost(char status)
{
	if (status != 'I')
	{
		baton_idle_timeouts_end();
		AbortOutOfAnyTransaction();
		/* PostgresMain has reported it as idle in transaction */
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	if (!baton_client_left(baton_taint(), BATON_END_CLIENT_CLOSED))
		baton_backend_retire(BATON_RETIRES_UNCLEAN, "a session left something that cannot be cleaned");
}
