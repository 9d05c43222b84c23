/*-------------------------------------------------------------------------
 *
 * channel.c
 *		Frames between a backend and the dispatcher, over SOCK_SEQPACKET.
 *
 * A packet is a frame, so a read is either a whole frame or nothing; there is
 * no state to keep between reads.  Sending may block while the dispatcher is
 * busy; it always reads, and if it dies the send fails at once with EPIPE.
 *
 * Descriptors that come with a frame belong to whoever called receive.
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
#include "storage/latch.h"
#include "utils/wait_event.h"

#include "channel.h"

/* How long to wait for a dispatcher that does not accept, and how often. */
#define CONNECT_LIMIT_MS 10000
#define CONNECT_STEP_MS 10

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
		if (connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0 &&
			pg_set_block(fd))
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

/* One packet; false if the other end is gone. */
static bool
send_frame(int fd, const BatonFrame *frame, const char *payload)
{
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
		if (sendmsg(fd, &message, MSG_NOSIGNAL) >= 0)
			return true;
		if (errno != EINTR)
			return false;
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
baton_channel_receive(int fd, bool block, BatonIncoming *incoming)
{
	static char buffer[BATON_FRAME_MAX];
	struct iovec part;
	struct msghdr message;
	struct cmsghdr *control;
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
	received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | (block ? 0 : MSG_DONTWAIT));
	if (received < 0)
	{
		if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
			return BATON_RECEIVED_NOTHING;
		return BATON_RECEIVED_CLOSED;
	}

	for (control = CMSG_FIRSTHDR(&message); control != NULL;
		 control = CMSG_NXTHDR(&message, control))
	{
		if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS)
		{
			int			count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);

			Assert(count <= BATON_FRAME_DESCRIPTORS);
			memcpy(incoming->descriptors, CMSG_DATA(control), count * sizeof(int));
			incoming->descriptor_count = count;
		}
	}

	if (received == 0)
		return BATON_RECEIVED_CLOSED;
	if (received < (ssize_t) sizeof(BatonFrame))
		return BATON_RECEIVED_CLOSED;	/* no dispatcher of ours */
	memcpy(&incoming->frame, buffer, sizeof(BatonFrame));
	if (incoming->frame.length != received - sizeof(BatonFrame))
		return BATON_RECEIVED_CLOSED;
	incoming->payload = buffer + sizeof(BatonFrame);
	return BATON_RECEIVED_FRAME;
}
