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
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"

#include "client_input.h"

/* Longer batches are waited for like in stock. */
#define PEEK_BYTES 4096

static char peeked[PEEK_BYTES];
static Size peeked_length = 0;

/*
 * Do these bytes hold all messages up to one that PostgresMain answers with
 * ReadyForQuery?  A function of its arguments.
 */
static bool
batch_is_whole(const char *bytes, Size length)
{
	Size		at = 0;

	while (length - at >= 5)
	{
		char		type = bytes[at];
		uint32		size;

		memcpy(&size, bytes + at + 1, sizeof(size));
		size = pg_ntoh32(size);
		if (size < 4 || size > length - at - 1)
			return false;
		if (type == 'Q' || type == 'S' || type == 'F')
			return true;
		at += 1 + (Size) size;
	}
	return false;
}

ClientSays
baton_input_peek(void)
{
	ssize_t		length;

	do
		length = recv(MyProcPort->sock, peeked, sizeof(peeked), MSG_PEEK | MSG_DONTWAIT);
	while (length < 0 && errno == EINTR);

	peeked_length = length > 0 ? length : 0;
	if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return CLIENT_NOTHING;
	if (length <= 0 || peeked[0] == 'X')
		return CLIENT_LEAVES;
	return CLIENT_SPEAKS;
}

const char *
baton_input_peeked(Size *length)
{
	*length = peeked_length;
	return peeked;
}

bool
baton_input_is_whole(void)
{
	return batch_is_whole(peeked, peeked_length);
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
	return CLIENT_SPEAKS;
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
	while (pq_buffer_has_data())
		(void) pq_getbyte();
	pq_endmsgread();
}
