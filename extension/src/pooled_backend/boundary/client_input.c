/*-------------------------------------------------------------------------
 *
 * client_input.c
 *		What the client has sent: before PostgresMain reads it, how many bytes,
 *		and how long the rest of a message may take.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "baton_shared.h"
#include "client_input.h"
#include "client_socket.h"
#include "majors.h"
#include "parameters.h"
#include "pg_port.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		How many bytes the client of this session has sent so far.
 *
 * The kernel counts them for each TCP connection (tcpi_bytes_received, since
 * Linux 4.1). For a plain client, MyProcPort->sock is asked. The connection of
 * a TLS client belongs to the dispatcher, whose relay writes the decrypted
 * data to the other end of our socket. So the kernel is asked for that
 * connection by its two addresses, which are those in MyProcPort
 * (sock_diag(7): INET_DIAG_INFO, which any process may ask for). It counts the
 * bytes on the line.
 *
 * Called by a signal handler: system calls only, and errno is kept.
 * ----------------------------------------------------------------
 */

/*
 * tcpi_bytes_received of the kernel's struct tcp_info (linux/tcp.h). The C
 * library's struct lacks it, and the two headers exclude each other.
 */
#define BYTES_RECEIVED_OFFSET 128

/* The kernel's answer: a header, the connection, and its attributes. */
#define MOST_ANSWER_BYTES 2048

static uint64
of_tcp_info(const char *info, size_t size)
{
	uint64		count;

	if (size < BYTES_RECEIVED_OFFSET + sizeof(count))
		return 0;
	memcpy(&count, info + BYTES_RECEIVED_OFFSET, sizeof(count));
	return count;
}

static uint64
of_own_socket(void)
{
	char		info[256];
	socklen_t	size = sizeof(info);

	if (getsockopt(MyProcPort->sock, IPPROTO_TCP, TCP_INFO, info, &size) != 0)
		return 0;
	return of_tcp_info(info, size);
}

typedef struct
{
	struct nlmsghdr header;
	struct inet_diag_req_v2 connection;
} Question;

/* Returns false if the addresses are not those of a TCP connection. */
static bool
name_connection(Question *question)
{
	const struct sockaddr *remote = (const struct sockaddr *) &MyProcPort->raddr.addr;
	const struct sockaddr *local = (const struct sockaddr *) &MyProcPort->laddr.addr;
	struct inet_diag_sockid *id = &question->connection.id;

	if (remote->sa_family != local->sa_family)
		return false;
	if (remote->sa_family == AF_INET)
	{
		const struct sockaddr_in *from = (const struct sockaddr_in *) remote;
		const struct sockaddr_in *to = (const struct sockaddr_in *) local;

		id->idiag_sport = to->sin_port;
		id->idiag_dport = from->sin_port;
		memcpy(id->idiag_src, &to->sin_addr, sizeof(to->sin_addr));
		memcpy(id->idiag_dst, &from->sin_addr, sizeof(from->sin_addr));
	}
	else if (remote->sa_family == AF_INET6)
	{
		const struct sockaddr_in6 *from = (const struct sockaddr_in6 *) remote;
		const struct sockaddr_in6 *to = (const struct sockaddr_in6 *) local;

		id->idiag_sport = to->sin6_port;
		id->idiag_dport = from->sin6_port;
		memcpy(id->idiag_src, &to->sin6_addr, sizeof(to->sin6_addr));
		memcpy(id->idiag_dst, &from->sin6_addr, sizeof(from->sin6_addr));
		/* a link-local address is valid for one interface */
		id->idiag_if = from->sin6_scope_id;
	}
	else
		return false;
	question->connection.sdiag_family = remote->sa_family;
	return true;
}

static uint64
of_answer(const struct nlmsghdr *header, ssize_t length)
{
	const struct inet_diag_msg *found = NLMSG_DATA(header);
	const struct rtattr *attribute;
	int			left;

	if (length < (ssize_t) NLMSG_LENGTH(sizeof(*found)) || !NLMSG_OK(header, length) ||
		header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return 0;
	left = (int) header->nlmsg_len - (int) NLMSG_LENGTH(sizeof(*found));
	for (attribute = (const struct rtattr *) (found + 1);
		 RTA_OK(attribute, left);
		 attribute = RTA_NEXT(attribute, left))
	{
		if (attribute->rta_type == INET_DIAG_INFO)
			return of_tcp_info(RTA_DATA(attribute), RTA_PAYLOAD(attribute));
	}
	return 0;
}

static uint64
of_relayed_connection(void)
{
	Question	question = {
		.header = {
			.nlmsg_len = sizeof(question),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST,
		},
		.connection = {
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_ext = 1 << (INET_DIAG_INFO - 1),
			.idiag_states = PG_UINT32_MAX,
			.id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE},
		},
	};
	union
	{
		struct nlmsghdr header;
		char		bytes[MOST_ANSWER_BYTES];
	}			answer;
	ssize_t		length = -1;
	int			fd;

	if (!name_connection(&question))
		return 0;
	fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (fd < 0)
		return 0;

	/*
	 * the answer is there when send() returns: netlink_unicast_kernel() waits
	 * for it
	 */
	if (send(fd, &question, sizeof(question), MSG_DONTWAIT) == sizeof(question))
		length = recv(fd, &answer, sizeof(answer), MSG_DONTWAIT);
	close(fd);
	return of_answer(&answer.header, length);
}

/*
 * The bytes that the kernel has received on the client's TCP connection, also
 * by TLS; 0 if unknown, as on a Unix socket. A signal handler may call this.
 */
static uint64
client_bytes(void)
{
	int			save_errno = errno;
	uint64		count = BatonPlaced.identity.is_relayed ? of_relayed_connection() : of_own_socket();

	errno = save_errno;
	return count;
}

/* ----------------------------------------------------------------
 *		A limit on how long a client takes to send the rest of a message.
 *
 * If a message is too large to wait until it is whole, a backend begins to
 * read it and then belongs to that client. A slow line is allowed. What is
 * required is BYTES_A_PERIOD in each period of baton_message_timeout_ms, as
 * far as the kernel counts it (TCP, by TLS too); on a Unix socket the message
 * must be whole after one period.
 *
 * In stock such a client is idle: PostgresMain (postgres.c, 15 to 18) turns
 * idle_session_timeout off only after it has read a whole message. So the
 * session ends as that timeout would end it, with the same error, raised by
 * the same ProcessInterrupts. The session's own idle_session_timeout stays
 * with the dispatcher.
 * ----------------------------------------------------------------
 */

#define BYTES_A_PERIOD (64 * 1024)


static TimeoutId timeout;

static BatonServedMessage *const message = &BatonServed.message;

/*
 * A signal handler. It must know whether the message is still being read: a
 * command's own reading (COPY FROM STDIN) uses the same functions, but has a
 * text (debug_query_string), which is set after a message has been read and
 * unset before the next message is read.
 */
static void
period_over(void)
{
	uint64		now;

	if (!message->is_timed ||
		(!message->by_us && (!pq_is_reading_msg() || debug_query_string != NULL)))
		return;
	now = client_bytes();
	if (message->begins || now >= message->received + BYTES_A_PERIOD)
	{
		message->begins = false;
		message->received = now;
		return;
	}
	/* otherwise ProcessInterrupts takes the timeout as switched off */
	if (IdleSessionTimeout <= 0)
		IdleSessionTimeout = baton_message_timeout_ms;
	IdleSessionTimeoutPending = true;
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
	message->received = client_bytes();
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

/* ----------------------------------------------------------------
 *		What the client in place has sent, before PostgresMain reads it.
 *
 * PostgresMain ends the process when its client disconnects; here only the
 * session shall end. So the first byte is looked at before PostgresMain reads
 * it: either in the socket (peek: nothing is taken, the session may still
 * leave), or by reading into pqcomm.c's buffer, as PostgresMain would do next
 * (read: one system call less for a session that stays).
 *
 * The peeked bytes also tell whether PostgresMain will have to wait for the
 * client at all; see client_socket.h.
 *
 * A client whose COPY FROM STDIN has failed goes on sending data for a while.
 * PostgresMain reads such messages when they come, ignores them, and waits for
 * the next without a ReadyForQuery in between: the session would be idle, and
 * its backend lost to all others. So these messages are consumed here, as they
 * arrive: whatever else the backend waits for must reach it in the middle of
 * such a message, too. PostgresMain never sees a part of it, except to end a
 * transaction that a recovery conflict hits.
 * ----------------------------------------------------------------
 */

/* For longer batches the backend waits as stock does. */
#define PEEK_BYTES 4096

static char peeked[PEEK_BYTES];

/*
 * Do these bytes hold all messages up to one that PostgresMain answers with
 * ReadyForQuery, or to a Flush that is a boundary? A pure function.
 *
 * After a message of the extended protocol only Sync is certain to be
 * answered: if that message has failed, all is ignored up to the Sync
 * (ignore_till_sync).
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
 * Bytes beyond those that were looked at are assumed to be enough.
 * message_start.rs has the same rule, and its tests. A pure function.
 */
static InputExtent
batch_extent(const char *bytes, Size length, Size available)
{
	Size		at = 0;

	while (at < available && available < BATON_MESSAGE_MAY_BEGIN)
	{
		uint32		size;

		if (at >= length || bytes[at] == 'X' || !is_one_of("QFPBDECSHdcf", bytes[at]))
			return INPUT_ENOUGH;	/* the latter are refused at once */
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

/* CopyData, CopyDone and CopyFail; no COPY is active between two commands. */
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

	/* ask the kernel only if there may be more than these bytes */
	if (BatonServed.input.peeked_length == sizeof(peeked))
		available = Max(available, baton_input_unread());
	return batch_extent(peeked, BatonServed.input.peeked_length, available);
}

/*
 * pq_peekbyte (pqcomm.c, all versions) fills the buffer with one recv if it is
 * empty, and takes nothing out. It must be called within a message; none is
 * open, because PostgresMain has not begun to read the next.
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
 * Takes at most `length` bytes, from pqcomm.c's buffer or else from the socket:
 * what follows must stay where the next look expects it. Returns -1 if there
 * are none yet, and 0 if there will be none.
 */
static ssize_t
take_bytes(char *bytes, Size length)
{
	ssize_t		got = 0;

	if (baton_input_is_buffered())
	{
		while (got < (ssize_t) length && baton_input_is_buffered())
			bytes[got++] = (char) pq_getbyte();
		return got;
	}
	do
		got = recv(MyProcPort->sock, bytes, length, MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	return got >= 0 || errno == EAGAIN || errno == EWOULDBLOCK ? got : 0;
}

/* Returns the length of the body, or -1 if PostgresMain would refuse it. */
static int
body_length(const char *head)
{
	/* SocketBackend (postgres.c) */
	uint32		limit = head[0] == 'd' ? PQ_LARGE_MESSAGE_LIMIT : PQ_SMALL_MESSAGE_LIMIT;
	uint32		length;

	memcpy(&length, head + 1, sizeof(length));
	length = pg_ntoh32(length);
	return length >= 4 && length <= limit ? (int) length - 4 : -1;
}

/* So many reads take more than pqcomm.c's buffer holds. */
#define MOST_READS 16

static ClientSays
skip_message(void)
{
	BatonServedInput *input = &BatonServed.input;

	for (int i = 0; i < MOST_READS; i++)
	{
		char		waste[8192];
		ssize_t		got;

		if (input->head_length < sizeof(input->head))
		{
			got = take_bytes(input->head + input->head_length,
							 sizeof(input->head) - input->head_length);
			if (got > 0)
				input->head_length += got;
			if (input->head_length == sizeof(input->head))
				input->body_left = body_length(input->head);
		}
		else
		{
			got = take_bytes(waste, Min((Size) input->body_left, sizeof(waste)));
			if (got > 0)
				input->body_left -= got;
		}
		if (got < 0)
			break;
		if (got == 0 || input->body_left < 0)
			return CLIENT_LEAVES;
		if (input->head_length == sizeof(input->head) && input->body_left == 0)
		{
			input->head_length = 0;
			return CLIENT_SENDS_NOOP;
		}
	}
	return CLIENT_NOTHING;
}

ClientSays
baton_input_skip(void)
{
	ClientSays	says;

	pq_startmsgread();
	do
		says = skip_message();
	while (says == CLIENT_SENDS_NOOP && baton_input_is_buffered() && is_ignored(pq_peekbyte()));
	pq_endmsgread();
	if (says == CLIENT_LEAVES)
		baton_input_discard();
	return says;
}

bool
baton_input_is_within_noop(void)
{
	return BatonServed.input.head_length > 0;
}

/*
 * A head that is whole is replaced by that of a message with as much body as
 * is left. pq_peekbyte fills pqcomm.c's buffer, which is empty, from the
 * socket that stands in for the client's.
 */
void
baton_input_give_noop_back(void)
{
	BatonServedInput *input = &BatonServed.input;
	uint32		length = pg_hton32((uint32) input->body_left + 4);

	if (input->head_length == 0)
		return;
	if (input->head_length == sizeof(input->head))
		memcpy(input->head + 1, &length, sizeof(length));
	baton_socket_inject(input->head, input->head_length);
	(void) first_byte();
	baton_socket_resume();
	input->head_length = 0;
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

	/* bounded: a client that goes on sending gets what TCP does */
	for (int i = 0; i < 8; i++)
	{
		if (recv(MyProcPort->sock, waste, sizeof(waste), MSG_DONTWAIT) < (ssize_t) sizeof(waste))
			break;
	}
}
