/*-------------------------------------------------------------------------
 *
 * delta.c
 *		Changes of the held session's context on their way to the dispatcher.
 *
 * They are collected first and sent when the session leaves: whether they fit
 * into the dispatcher's session memory must be known before, because a session
 * whose context is half there cannot be served anywhere.  If they do not fit
 * the session stays on this backend, and what was collected stays here until
 * it fits or the session ends.  A change that no message can hold (the name of
 * a parameter given to set_config() may be of any length; a statement may be
 * almost as long as memory can be allocated) fits nowhere.
 *
 * Owner: the session in place.  One at a time.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "channel.h"
#include "context.h"
#include "delta.h"
#include "pooled_state.h"

/* Room that is kept between sessions; more is given back. */
#define DELTA_KEPT_BYTES (64 * 1024)

/* One change as it is collected: this, then the message's payload. */
typedef struct DeltaHeader
{
	uint32		type;			/* BATON_MSG_PUT or _DELETE */
	uint32		length;			/* bytes of payload */
} DeltaHeader;

static StringInfoData collected;
static bool initialised = false;

static void
append(const void *data, Size length)
{
	appendBinaryStringInfo(&collected, (const char *) data, length);
}

/*
 * Begins a change; the caller appends `length` bytes of payload.  False if it
 * is too large.
 */
static bool
begin(uint32 type, Size key_length, Size length)
{
	DeltaHeader header;

	if (!initialised)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&collected);
		MemoryContextSwitchTo(old);
		initialised = true;
	}
	if (key_length > PG_UINT16_MAX ||
		collected.len + sizeof(header) + length >= MaxAllocSize)
		BatonServed.delta_too_large = true;
	if (BatonServed.delta_too_large)
		return false;
	header.type = type;
	header.length = (uint32) length;
	enlargeStringInfo(&collected, sizeof(header) + length);
	append(&header, sizeof(header));
	return true;
}

void
baton_delta_put(uint16 kind, const char *key, Size key_length,
				const char *value, Size value_length,
				const BatonStatementCounter *counters, int64 aux)
{
	uint16		key_length16 = (uint16) key_length;
	uint32		counter = counters != NULL ? 1 : 0;
	Size		counter_length = counters != NULL ? sizeof(*counters) : 0;

	if (!begin(BATON_MSG_PUT, key_length,
			   sizeof(kind) + sizeof(key_length16) + key_length +
			   sizeof(counter) + sizeof(aux) + counter_length + value_length))
		return;
	append(&kind, sizeof(kind));
	append(&key_length16, sizeof(key_length16));
	append(key, key_length);
	append(&counter, sizeof(counter));
	append(&aux, sizeof(aux));
	if (counters != NULL)
		append(counters, counter_length);
	append(value, value_length);
}

void
baton_delta_delete(uint16 kind, const char *key, Size key_length)
{
	uint16		key_length16 = (uint16) key_length;

	if (!begin(BATON_MSG_DELETE, key_length,
			   sizeof(kind) + sizeof(key_length16) + key_length))
		return;
	append(&kind, sizeof(kind));
	append(&key_length16, sizeof(key_length16));
	append(key, key_length);
}

void
baton_delta_give_up(void)
{
	BatonServed.delta_too_large = true;
}

Size
baton_delta_size(void)
{
	if (BatonServed.delta_too_large)
		return DELTA_TOO_LARGE;
	return initialised ? collected.len : 0;
}

void
baton_delta_send(int fd, uint64 session)
{
	int			position = 0;

	Assert(!BatonServed.delta_too_large);
	while (initialised && position < collected.len)
	{
		DeltaHeader header;

		memcpy(&header, collected.data + position, sizeof(header));
		position += sizeof(header);

		/* If the dispatcher is gone the control socket's end will tell. */
		if (!baton_channel_send(fd, (uint16) header.type, session,
								collected.data + position, header.length))
			break;
		position += header.length;
	}
	baton_delta_drop();
}

void
baton_delta_drop(void)
{
	BatonServed.delta_too_large = false;
	if (!initialised)
		return;
	resetStringInfo(&collected);
	if (collected.maxlen > DELTA_KEPT_BYTES)
	{
		pfree(collected.data);
		initialised = false;
	}
}
