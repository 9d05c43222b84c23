/*-------------------------------------------------------------------------
 *
 * backend_state.c
 *		The words by which this backend and the dispatcher agree on who serves
 *		whom: the slot's state, the counter of the pool's ready queue, and
 *		whether somebody wants this backend's place.
 *
 * What has to come in one order is modelled, together with the dispatcher's
 * side, in dispatcher/src/shell/link/handshake/model.rs, under the names
 * that it has here: who changes the one changes the other.
 *
 * The transitions of the state are listed in baton_shared.h.  Both sides change
 * it by compare-and-swap, so that a backend is claimed once: by the dispatcher,
 * which then sends ASSIGN, or by itself.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>

#include "storage/ipc.h"

#include "backend_state.h"
#include "channel.h"
#include "control.h"
#include "monotonic.h"
#include "pooled_state.h"

void
baton_state_set(uint32 state)
{
	BatonSelf.slot->state_since_us = baton_monotonic_us();
	pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->state), state);
	pg_memory_barrier();
}

void
baton_backend_retire(uint32 cause, const char *why)
{
	uint32		length = strlen(why);
	StringInfoData payload;

	/*
	 * With a session in hand it is BUSY until that has been given back, as it
	 * exits: whoever looks for the session sees that this process may have it
	 */
	if (BatonSelf.in_hand == 0)
		baton_state_set(BATON_BACKEND_RETIRING);
	if (BatonSelf.control >= 0)
	{
		initStringInfo(&payload);
		appendBinaryStringInfo(&payload, (char *) &cause, sizeof(cause));
		appendBinaryStringInfo(&payload, (char *) &length, sizeof(length));
		appendBinaryStringInfo(&payload, why, length);
		(void) baton_channel_send(BatonSelf.control, BATON_MSG_RETIRING, 0,
								  payload.data, payload.len);
	}
	proc_exit(0);
}

bool
baton_state_claim(uint32 state_after)
{
	uint32		expected = pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state));

	while (expected != BATON_BACKEND_ASSIGNED)
	{
		if (expected == state_after ||
			pg_atomic_compare_exchange_u32(baton_atomic_u32(BatonSelf.slot->state),
										   &expected, state_after))
			return true;
	}
	return false;
}

bool
baton_queue_has_some(void)
{
	return (int32) pg_atomic_read_u32(baton_atomic_u32(BatonSelf.pool->queued)) > 0;
}

void
baton_queue_is_low(void)
{
	pg_atomic_uint32 *held_back = baton_atomic_u32(BatonSelf.pool->is_held_back);

	if (pg_atomic_read_u32(held_back) != 0 && pg_atomic_exchange_u32(held_back, 0) != 0)
		(void) baton_channel_send(BatonSelf.control, BATON_MSG_RELEASE, 0, NULL, 0);
}

bool
baton_queue_is_readable(void)
{
	char		byte;

	return recv(BatonSelf.queue, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool
baton_retire_asked(void)
{
	uint32		asked = pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->retire));

	if (likely(asked == BATON_RETIRE_NOT))
		return false;
	if (asked == BATON_RETIRE_NOW)
		return true;
	return pg_atomic_compare_exchange_u32(baton_atomic_u32(BatonControlMemory->room_ticket),
										  &asked, BATON_TICKET_TAKEN | BatonSelf.slot_index);
}
