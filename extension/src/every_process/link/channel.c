/*-------------------------------------------------------------------------
 *
 * channel.c
 *		Frames between a backend and the dispatcher, over SOCK_SEQPACKET.
 *
 * A packet is a frame, so a read is either a whole frame or nothing; there is
 * no state to keep between reads.  Sending waits while the dispatcher is busy;
 * it always reads, and if it dies the send fails at once with EPIPE.
 *
 * No system call here blocks.  Whoever waits for the dispatcher serves
 * interrupts meanwhile: a statement that waits for all processes of the server
 * (WaitForProcSignalBarrier, procsignal.c: DROP DATABASE, for one) must not wait
 * for the dispatcher, which may wait for that statement; and who is told to
 * end ends.
 *
 * Descriptors that come with a frame belong to whoever called receive.  Of a
 * packet that is no frame they are closed, and so are those that come in part.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "utils/wait_event.h"

#include "channel.h"
#include "monotonic.h"

/* How long to wait for a dispatcher that does not accept, and how often. */
#define CONNECT_LIMIT_MS 10000
#define CONNECT_STEP_MS 10

/*
 * A descriptor of the sender's process (linux/socket.h, Linux 6.5).  It comes along
 * where somebody has asked for it (SO_PASSPIDFD): whoever else has this end.
 */
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

/* A process that ends waits no longer than this with its last words. */
#define EXIT_LIMIT_MS 10000

static void (*look_also) (void) = NULL;

void
baton_channel_look_also(void (*look) (void))
{
	look_also = look;
}

/*
 * Waits for the socket, or for an interrupt, which is served.  While the process
 * exits none is (proc_exit_prepare, ipc.c, holds them off), but others may
 * wait for this one to have seen a barrier.
 */
static void
wait_for(int fd, uint32 event, long timeout_ms)
{
	(void) WaitLatchOrSocket(MyLatch,
							 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | event |
							 (timeout_ms >= 0 ? WL_TIMEOUT : 0),
							 fd, timeout_ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	if (proc_exit_inprogress && ProcSignalBarrierPending)
		ProcessProcSignalBarrier();
	CHECK_FOR_INTERRUPTS();
	if (look_also != NULL)
		look_also();
}

/* How long a send may wait: what the socket's owner has set; -1: for ever. */
static long
send_limit_ms(int fd)
{
	struct timeval limit;
	socklen_t	length = sizeof(limit);
	long		limit_ms = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &length) == 0)
		limit_ms = limit.tv_sec * 1000L + limit.tv_usec / 1000;
	if (proc_exit_inprogress && (limit_ms == 0 || limit_ms > EXIT_LIMIT_MS))
		limit_ms = EXIT_LIMIT_MS;
	return limit_ms > 0 ? limit_ms : -1;
}

int
baton_channel_connect(void)
{
	struct sockaddr_un address;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	strlcpy(address.sun_path, BATON_CONTROL_SOCKET, sizeof(address.sun_path));
	for (int waited_ms = 0;; waited_ms += CONNECT_STEP_MS)
	{
		int			save_errno;
		int			fd;

		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd < 0)
			return -1;
		if (connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0)
			return fd;
		save_errno = errno;
		close(fd);
		errno = save_errno;
		/* a full backlog is EAGAIN, and nothing tells when it is not any more */
		if (errno != EAGAIN || waited_ms >= CONNECT_LIMIT_MS)
			return -1;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 CONNECT_STEP_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* One packet; false if the other end is gone.  Waits for room. */
static bool
send_frame(int fd, const BatonFrame *frame, const char *payload)
{
	int64		since_us = 0;
	struct iovec parts[2];
	struct msghdr message;

	parts[0].iov_base = unconstify(BatonFrame *, frame);
	parts[0].iov_len = sizeof(BatonFrame);
	parts[1].iov_base = unconstify(char *, payload);
	parts[1].iov_len = frame->length;

	memset(&message, 0, sizeof(message));
	message.msg_iov = parts;
	message.msg_iovlen = frame->length > 0 ? 2 : 1;

	for (;;)
	{
		long		left_ms;

		if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return true;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			return false;

		left_ms = send_limit_ms(fd);
		if (since_us == 0)
			since_us = baton_monotonic_us();
		else if (left_ms >= 0)
		{
			left_ms -= (long) ((baton_monotonic_us() - since_us) / 1000);
			if (left_ms <= 0)
				return false;
		}
		wait_for(fd, WL_SOCKET_WRITEABLE, left_ms);
	}
}

bool
baton_channel_send(int fd, uint16 type, uint64 session,
				   const char *payload, Size length)
{
	const Size	most = BATON_FRAME_MAX - sizeof(BatonFrame);

	for (;;)
	{
		BatonFrame	frame;
		Size		now = Min(length, most);

		frame.type = type;
		frame.flags = now < length ? BATON_FRAME_MORE : 0;
		frame.length = (uint32) now;
		frame.session = session;
		if (!send_frame(fd, &frame, payload))
			return false;
		if (now == length)
			return true;
		payload += now;
		length -= now;
	}
}

BatonReceived
baton_channel_await(int fd, BatonIncoming *incoming)
{
	BatonReceived received;

	while ((received = baton_channel_receive(fd, incoming)) == BATON_RECEIVED_NOTHING)
		wait_for(fd, WL_SOCKET_READABLE, -1);
	return received;
}

int
baton_descriptors_take(struct msghdr *message, int *descriptors, int most)
{
	bool		is_whole = (message->msg_flags & MSG_CTRUNC) == 0;
	struct cmsghdr *header;
	int			taken = 0;

	for (header = CMSG_FIRSTHDR(message); header != NULL;
		 header = CMSG_NXTHDR(message, header))
	{
		bool		is_wanted = header->cmsg_type == SCM_RIGHTS;
		int			count;

		if (header->cmsg_level != SOL_SOCKET || (!is_wanted && header->cmsg_type != SCM_PIDFD))
			continue;
		count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (int i = 0; i < count; i++)
		{
			int			descriptor;

			memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
			if (is_wanted && taken < most)
				descriptors[taken++] = descriptor;
			else
			{
				close(descriptor);
				is_whole &= !is_wanted;
			}
		}
	}
	if (is_whole)
		return taken;
	while (taken > 0)
		close(descriptors[--taken]);
	return 0;
}

void
baton_incoming_close(BatonIncoming *incoming)
{
	while (incoming->descriptor_count > 0)
		close(incoming->descriptors[--incoming->descriptor_count]);
}

BatonReceived
baton_channel_receive(int fd, BatonIncoming *incoming)
{
	static char buffer[BATON_FRAME_MAX];
	struct iovec part;
	struct msghdr message;
	union
	{
		struct cmsghdr align;
		char		bytes[CMSG_SPACE(sizeof(int) * BATON_FRAME_DESCRIPTORS)];
	}			ancillary;
	ssize_t		received;

	part.iov_base = buffer;
	part.iov_len = sizeof(buffer);
	memset(&message, 0, sizeof(message));
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = ancillary.bytes;
	message.msg_controllen = sizeof(ancillary.bytes);

	incoming->descriptor_count = 0;
	received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (received < 0)
	{
		if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
			return BATON_RECEIVED_NOTHING;
		return BATON_RECEIVED_CLOSED;
	}

	incoming->descriptor_count = baton_descriptors_take(&message, incoming->descriptors,
														BATON_FRAME_DESCRIPTORS);
	memset(&incoming->frame, 0, sizeof(BatonFrame));
	if (received >= (ssize_t) sizeof(BatonFrame))
		memcpy(&incoming->frame, buffer, sizeof(BatonFrame));
	if (received < (ssize_t) sizeof(BatonFrame) ||
		incoming->frame.length != received - sizeof(BatonFrame))
	{
		/* the other end is gone, or no dispatcher of ours */
		baton_incoming_close(incoming);
		return BATON_RECEIVED_CLOSED;
	}
	incoming->payload = buffer + sizeof(BatonFrame);
	return BATON_RECEIVED_FRAME;
}
