/*-------------------------------------------------------------------------
 *
 * message_timeout.c
 *		A limit on how long a client takes to send the rest of a message.
 *
 * A message that is too large to wait until it is whole is begun by a backend
 * (client_input.c), which then belongs to that client.  A slow line is no
 * offence: what is asked for is that something comes, BYTES_A_PERIOD in each
 * period of pg_baton.message_timeout, as far as the kernel counts it (TCP, by TLS
 * too: client_bytes.c); on a Unix socket, that the message is whole after one.
 *
 * In stock such a client is idle: PostgresMain (postgres.c, 15 to 18) turns
 * idle_session_timeout off only after it has read a whole message.  So he ends
 * as that would end him, with the same error, raised by the same
 * ProcessInterrupts; the session's own idle_session_timeout is the
 * dispatcher's, and stays so.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "client_bytes.h"
#include "message_timeout.h"
#include "pooled_state.h"

#define BYTES_A_PERIOD (64 * 1024)

int			baton_message_timeout_ms;

static TimeoutId timeout;

static BatonServedMessage *const message = &BatonServed.message;

/*
 * A signal handler.  Whether the message is still being read: a command's own
 * reading (COPY FROM STDIN) goes by the same functions, but has a text
 * (debug_query_string), which is set after a message has been read and unset
 * before the next is.
 */
static void
period_over(void)
{
	uint64		now;

	if (!message->is_timed || !pq_is_reading_msg() ||
		(debug_query_string != NULL && !message->by_us))
		return;
	now = baton_client_bytes();
	if (message->begins || now >= message->received + BYTES_A_PERIOD)
	{
		message->begins = false;
		message->received = now;
		return;
	}
	if (message->by_us)
		ProcDiePending = true;	/* what secure_read heeds outside of a command */
	else
	{
		/* or ProcessInterrupts takes it for one that was turned off */
		if (IdleSessionTimeout <= 0)
			IdleSessionTimeout = baton_message_timeout_ms;
		IdleSessionTimeoutPending = true;
	}
	InterruptPending = true;
	SetLatch(MyLatch);
}

void
baton_message_timeout_start(void)
{
	timeout = RegisterTimeout(USER_TIMEOUT, period_over);
}

static void
begin(bool ignored)
{
	message->by_us = ignored;
	message->is_timed = true;
	enable_timeout_every(timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 baton_message_timeout_ms),
						 baton_message_timeout_ms);
}

void
baton_message_timeout_begin(bool ignored)
{
	if (baton_message_timeout_ms <= 0)
		return;
	message->begins = false;
	message->received = baton_client_bytes();
	begin(ignored);
}

void
baton_message_timeout_begin_late(void)
{
	if (baton_message_timeout_ms <= 0)
		return;
	message->begins = true;
	begin(false);
}

void
baton_message_timeout_end(void)
{
	if (likely(!message->is_timed))
		return;
	message->is_timed = false;
	disable_timeout(timeout, false);
}
