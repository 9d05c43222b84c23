/*-------------------------------------------------------------------------
 *
 * client_bytes.c
 *		How many bytes the client of this session has sent so far.
 *
 * The kernel counts them for each TCP connection (tcpi_bytes_received, since
 * Linux 4.1).  Of a plain client's, MyProcPort->sock is asked.  A TLS client's
 * connection is the dispatcher's, whose relay writes what it has decrypted to the
 * other end of our socket; so the kernel is asked for the connection by its two
 * addresses, which are those in MyProcPort (sock_diag(7): INET_DIAG_INFO, which any
 * process may ask for).  What it counts there is what came over the line.
 *
 * Called by a signal handler: system calls only, and errno is kept.
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
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq-be.h"
#include "miscadmin.h"

#include "client_bytes.h"
#include "pooled_state.h"

/*
 * tcpi_bytes_received of the kernel's struct tcp_info (linux/tcp.h).  The C
 * library's has not all of it, and the two headers exclude each other.
 */
#define BYTES_RECEIVED_OFFSET 128

/* What the kernel answers: a header, the connection, and its attributes. */
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

/* False: they are none of a TCP connection. */
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
		/* a link-local address is one of an interface */
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

uint64
baton_client_bytes(void)
{
	int			save_errno = errno;
	uint64		count = BatonPlaced.identity.is_relayed ? of_relayed_connection() : of_own_socket();

	errno = save_errno;
	return count;
}
