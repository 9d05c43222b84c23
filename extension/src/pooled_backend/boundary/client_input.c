/*-------------------------------------------------------------------------
 *
 * client_input.c
 *		What the client in place has sent, before PostgresMain reads it.
 *
 * PostgresMain ends the process when its client leaves; here it is the session
 * that ends.  So its first byte is looked at before PostgresMain may: either
 * where it is (peek: nothing is taken, the session may still go elsewhere), or
 * by reading into pqcomm.c's buffer, as PostgresMain would do next (read: one
 * system call less for a session that stays).
 *
 * The peeked bytes also tell whether PostgresMain will have to wait for the
 * client at all, see socket_switch.h.
 *
 * A client whose COPY FROM STDIN has failed goes on sending data for a while.
 * PostgresMain reads such messages whenever they come, ignores them, and waits
 * for the next without a ReadyForQuery in between: the session would be idle,
 * and its backend lost to all others.  So they are taken here.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"

#include "baton_shared.h"
#include "client_input.h"
#include "client_port.h"
#include "majors.h"
#include "pooled_state.h"
#include "socket_switch.h"

/* Longer batches are waited for like in stock. */
#define PEEK_BYTES 4096

static char peeked[PEEK_BYTES];

/*
 * Do these bytes hold all messages up to one that PostgresMain answers with
 * ReadyForQuery, or to a Flush that is a boundary?  A function of its arguments.
 *
 * After a message of the extended protocol only Sync is sure to be answered:
 * if that one has failed, all is ignored up to it (ignore_till_sync).
 */
static bool
batch_is_whole(const char *bytes, Size length)
{
	Size		at = 0;
	bool		extended = false;

	while (length - at >= 5)
	{
		char		type = bytes[at];
		uint32		size;

		memcpy(&size, bytes + at + 1, sizeof(size));
		size = pg_ntoh32(size);
		if (size < 4 || size > length - at - 1)
			return false;
		if (type == 'S' || ((type == 'Q' || type == 'F') && !extended) ||
			(type == 'H' && size == 4 && !extended))
			return true;
		extended = true;
		at += 1 + (Size) size;
	}
	return false;
}

static inline bool
is_one_of(const char *types, char type)
{
	return type != '\0' && strchr(types, type) != NULL;
}

/*
 * What lies behind the bytes that were looked at is given the benefit of the
 * doubt.  message_start.rs has the same rule, and its tests.  A function of its
 * arguments.
 */
static InputExtent
batch_extent(const char *bytes, Size length, Size available)
{
	Size		at = 0;

	while (at < available && available < BATON_MESSAGE_MAY_BEGIN)
	{
		uint32		size;

		if (at >= length || bytes[at] == 'X' || !is_one_of("QFPBDECSHdcf", bytes[at]))
			return INPUT_ENOUGH;	/* the latter is refused at once */
		if (available - at < 5)
			return INPUT_PART;
		if (length - at < 5)
			return INPUT_ENOUGH;
		memcpy(&size, bytes + at + 1, sizeof(size));
		size = pg_ntoh32(size);
		if (size < 4 || size > PQ_LARGE_MESSAGE_LIMIT ||
			(size > PQ_SMALL_MESSAGE_LIMIT && !is_one_of("QFPBd", bytes[at])))
			return INPUT_ENOUGH;	/* so is this */
		if (size > available - at - 1)
			return INPUT_PART;
		if (!is_one_of("PBDEC", bytes[at]))
			return INPUT_ENOUGH;
		at += 1 + (Size) size;
	}
	if (available >= BATON_MESSAGE_MAY_BEGIN)
		return INPUT_ENOUGH;
	return available > 0 ? INPUT_PAUSE : INPUT_PART;
}

/* CopyData, CopyDone and CopyFail; no COPY is on between two commands. */
static bool
is_ignored(int type)
{
	return type == 'd' || type == 'c' || type == 'f';
}

ClientSays
baton_input_peek(void)
{
	ssize_t		length;

	do
		length = recv(MyProcPort->sock, peeked, sizeof(peeked), MSG_PEEK | MSG_DONTWAIT);
	while (length < 0 && errno == EINTR);

	BatonServed.input.peeked_length = length > 0 ? length : 0;
	if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return CLIENT_NOTHING;
	if (length <= 0 || peeked[0] == 'X')
		return CLIENT_LEAVES;
	return is_ignored(peeked[0]) ? CLIENT_SENDS_NOOP : CLIENT_SPEAKS;
}

const char *
baton_input_peeked(Size *length)
{
	*length = BatonServed.input.peeked_length;
	return peeked;
}

bool
baton_input_is_whole(void)
{
	return batch_is_whole(peeked, BatonServed.input.peeked_length);
}

Size
baton_input_unread(void)
{
	int			unread = 0;

	/* it fails for no kind of socket that a client has */
	(void) ioctl(MyProcPort->sock, FIONREAD, &unread);
	return unread;
}

InputExtent
baton_input_extent(void)
{
	Size		available = BatonServed.input.peeked_length;

	/* the kernel is asked only where the bytes at hand may not be all */
	if (BatonServed.input.peeked_length == sizeof(peeked))
		available = Max(available, baton_input_unread());
	return batch_extent(peeked, BatonServed.input.peeked_length, available);
}

/*
 * pq_peekbyte (pqcomm.c, all versions) fills the buffer with one recv if it is
 * empty, and takes nothing out.  It wants to be within a message; none is left
 * begun, as PostgresMain has not begun to read its next.
 */
static int
first_byte(void)
{
	int			first;

	pq_startmsgread();
	first = pq_peekbyte();
	pq_endmsgread();
	return first;
}

ClientSays
baton_input_read(void)
{
	int			first = first_byte();

	if (first == EOF)
		return CLIENT_LEAVES;
	if (first == 'X')
	{
		baton_input_discard();
		return CLIENT_LEAVES;
	}
	return is_ignored(first) ? CLIENT_SENDS_NOOP : CLIENT_SPEAKS;
}

/*
 * The next bytes, from pqcomm.c's buffer and then from the socket, and not one
 * more: what follows must stay where the next look at it is taken.
 */
static bool
take_bytes(char *bytes, Size length)
{
	while (length > 0)
	{
		ssize_t		got = 1;

		if (baton_input_is_buffered())
			*bytes = (char) pq_getbyte();
		else
			got = secure_read(MyProcPort, bytes, length);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		bytes += got;
		length -= got;
	}
	return true;
}

static bool
take_message(void)
{
	char		head[5];
	char		waste[8192];
	uint32		left;
	uint32		limit;

	if (!take_bytes(head, sizeof(head)))
		return false;
	memcpy(&left, head + 1, sizeof(left));
	left = pg_ntoh32(left);
	/* SocketBackend (postgres.c) */
	limit = head[0] == 'd' ? PQ_LARGE_MESSAGE_LIMIT : PQ_SMALL_MESSAGE_LIMIT;
	if (left < 4 || left > limit)
		return false;
	for (left -= 4; left > 0;)
	{
		uint32		part = Min(left, sizeof(waste));

		if (!take_bytes(waste, part))
			return false;
		left -= part;
	}
	return true;
}

bool
baton_input_skip(void)
{
	bool		whole;

	baton_socket_expect_waits();
	baton_port_set_blocking();
	pq_startmsgread();
	do
		whole = take_message();
	while (whole && baton_input_is_buffered() && is_ignored(pq_peekbyte()));
	pq_endmsgread();
	if (!whole)
		baton_input_discard();
	return whole;
}

bool
baton_input_is_noop(void)
{
	return is_ignored(first_byte());
}

bool
baton_input_ends_session(void)
{
	return first_byte() == 'X';
}

void
baton_input_discard(void)
{
	pq_startmsgread();
	while (baton_input_is_buffered())
		(void) pq_getbyte();
	pq_endmsgread();
}

void
baton_input_discard_unread(void)
{
	char		waste[8192];

	/* not for ever: one that goes on sending gets what TCP gives */
	for (int i = 0; i < 8; i++)
	{
		if (recv(MyProcPort->sock, waste, sizeof(waste), MSG_DONTWAIT) < (ssize_t) sizeof(waste))
			break;
	}
}
