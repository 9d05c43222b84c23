/*-------------------------------------------------------------------------
 *
 * ticket_message.c
 *		The one message that a backend has asked a client for.
 *
 * pqcomm.c reads as much as there is, up to 8 kB.  A client may send its first
 * query right behind its password, and what a backend that only authenticates
 * has read of it would be lost: the session goes on elsewhere.  So this backend
 * takes the message from the client's socket by its length, and gives it to the
 * server through a socketpair that has nothing else, whose end stands in
 * port->sock meanwhile.
 *
 * What PostgreSQL guarantees: sendAuthRequest() (auth.c, 15 to 18) flushes each
 * request that is answered, and whoever calls it reads one message then, with
 * pq_getbyte() and pq_getmessage(), which take what pq_peekbyte() has put into the
 * buffer.  secure_raw_read() (be-secure.c) looks at port->sock for each read, and
 * FeBeWaitSet is not asked where there is something to read or EOF.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "lib/stringinfo.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/wait_event.h"

#include "client_port.h"
#include "ticket_message.h"

#define HEADER (1 + sizeof(uint32)) /* type, length */

/* Longer ones nobody takes: PG_MAX_AUTH_TOKEN_LENGTH (auth.c). */
#define LONGEST 65535

/* So much is read at once, whatever pqcomm.c's buffer holds (8 kB). */
#define READ_AT_ONCE 4096

/* The client's, while another stands in its place. */
static pgsocket client = PGINVALID_SOCKET;

/* As secure_read() (be-secure.c) waits. */
static void
wait_for_client(void)
{
	WaitEvent	event;

	ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_READABLE, NULL);
	(void) WaitEventSetWait(FeBeWaitSet, -1, &event, 1, WAIT_EVENT_CLIENT_READ);
	if (event.events & WL_POSTMASTER_DEATH)
		ereport(FATAL,
				(errcode(ERRCODE_ADMIN_SHUTDOWN),
				 errmsg("terminating connection due to unexpected postmaster exit")));
	if (event.events & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		ProcessClientReadInterrupt(true);
	}
}

/* Up to so many bytes in all; false if the client has gone before. */
static bool
receive(StringInfo message, Size total)
{
	enlargeStringInfo(message, (int) total);
	while ((Size) message->len < total)
	{
		ssize_t		length = recv(MyProcPort->sock, message->data + message->len,
								  total - message->len, MSG_DONTWAIT);

		if (length > 0)
			message->len += length;
		else if (length < 0 && errno == EINTR)
			continue;
		else if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			wait_for_client();
		else
			return false;
	}
	return true;
}

/* A message that is not whole ends there, for the server as in the socket. */
static bool
receive_message(StringInfo message)
{
	uint32		length;

	if (!receive(message, HEADER))
		return false;
	memcpy(&length, message->data + 1, sizeof(length));
	length = pg_ntoh32(length);
	if (length < sizeof(length) || length > LONGEST)
		return false;			/* the server says so, and reads no more */
	return receive(message, 1 + length);
}

bool
baton_ticket_message_await(void)
{
	int			room = 4 * LONGEST;
	int			ends[2];
	StringInfoData message;
	bool		is_whole;

	Assert(client == PGINVALID_SOCKET);
	ProcessClientReadInterrupt(false);
	initStringInfo(&message);
	is_whole = receive_message(&message) && message.len <= READ_AT_ONCE;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		elog(FATAL, "could not create a pair of sockets: %m");
	(void) setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (send(ends[1], message.data, message.len, MSG_NOSIGNAL) != message.len)
		elog(FATAL, "could not pass a message of %d bytes on", message.len);
	close(ends[1]);
	pfree(message.data);

	client = MyProcPort->sock;
	baton_port_set_socket(ends[0]);
	pq_startmsgread();
	is_whole = pq_peekbyte() != EOF && is_whole;
	pq_endmsgread();
	return is_whole;
}

void
baton_ticket_message_end(void)
{
	if (client == PGINVALID_SOCKET)
		return;
	close(MyProcPort->sock);
	baton_port_set_socket(client);
	client = PGINVALID_SOCKET;
}
