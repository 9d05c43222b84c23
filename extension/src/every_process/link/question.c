/*-------------------------------------------------------------------------
 *
 * question.c
 *		A question to the dispatcher (HELLO_QUERY), and its answer.
 *
 * Who asks opens a connection of his own to the control socket, and closes it:
 * the views when the answer is whole (views.c), a statement that wants a
 * database when its transaction ends (database_leave.c).  What a missing answer
 * means is theirs to say, too.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

#include "control.h"
#include "monotonic.h"
#include "question.h"
#include "wire.h"

void
baton_question_init(StringInfo message, uint32 what)
{
	initStringInfo(message);
	baton_wire_u32(message, BATON_LAYOUT_VERSION);
	baton_wire_u64(message, BatonControlMade.secret);
	baton_wire_u32(message, what);
}

BatonReceived
baton_answer_next(int fd, int timeout_ms, BatonIncoming *incoming)
{
	int64		give_up_us = baton_monotonic_us() + (int64) timeout_ms * 1000;

	for (;;)
	{
		BatonReceived received = baton_channel_receive(fd, incoming);
		long		left;

		if (received != BATON_RECEIVED_NOTHING)
		{
			/* none is asked for */
			baton_incoming_close(incoming);
			return received;
		}
		left = baton_ms_until(give_up_us);
		if (left <= 0)
			return BATON_RECEIVED_NOTHING;
		(void) WaitLatchOrSocket(MyLatch,
								 WL_LATCH_SET | WL_SOCKET_READABLE | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
								 fd, left, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
