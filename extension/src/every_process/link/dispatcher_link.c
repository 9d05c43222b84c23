/*-------------------------------------------------------------------------
 *
 * dispatcher_link.c
 *		What the server's processes share with the dispatcher: the CONTROL
 *		memory, and frames over the control socket.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "utils/backend_status.h"
#include "utils/wait_event.h"

#include "dispatcher_link.h"
#include "majors.h"

/* baton_atomic_u32 and baton_atomic_u64 (dispatcher_link.h) rely on this */
StaticAssertDecl(sizeof(pg_atomic_uint32) == sizeof(uint32) && sizeof(pg_atomic_uint64) == sizeof(uint64),
				 "PostgreSQL's atomics have another size than the words that they stand for");

/* ----------------------------------------------------------------
 *		Creation of the CONTROL memory, and access to its parts.
 *
 * The postmaster creates it once, as a memfd, while it loads the library;
 * every child inherits mapping and descriptor by fork.  It is not part of
 * PostgreSQL's shared memory, because the dispatcher, which is no child of
 * the postmaster in PostgreSQL's sense, must map it too, and because it must
 * survive a crash restart, as idle sessions do.
 *
 * Invariant: its size and layout never change once it exists; the kernel
 * enforces its size.  Every process has its own copy of the header as the
 * postmaster made it (BatonControlMade, inherited by fork), and computes
 * addresses from that copy alone: every process that has mapped the memory,
 * including the dispatcher, can write the header itself.  An index read from
 * the memory is checked against that copy where it is used; a wrong index
 * ends the process that reads it, and does not crash the server.  A word that
 * is checked is read once, by an atomic read, which the compiler does not
 * repeat: a second read might return another value.
 */

/*
 * For the prepared statements of all sessions together; sparse, 32 bytes each.
 */
#define BATON_COUNTER_SLOTS (4 * 1024 * 1024)

/* The header and the whole memory end on a page boundary. */
#define CONTROL_PAGE 4096

BatonControlHeader *BatonControlMemory = NULL;
BatonControlHeader BatonControlMade;
int			BatonControlFd = -1;

void
baton_control_create(int session_slots)
{
	Size		backend_offset = TYPEALIGN(CONTROL_PAGE, sizeof(BatonControlHeader));
	Size		pool_offset;
	Size		tenant_offset;
	Size		session_offset;
	Size		counter_offset;
	Size		identity_offset;
	Size		pid_offset;
	Size		query_offset;
	Size		totals_offset;
	Size		tally_offset;
	Size		total;

	/* each pool has a session or a backend (docs/design/pools.md) */
	uint32		pool_slots = session_slots + MaxConnections;
	uint32		pid_entries = pg_nextpower2_32(Max(session_slots * 4, 1024));
	uint32		random;
	void	   *address;
	BatonControlHeader *control;

	Assert(!IsUnderPostmaster);

	pool_offset = backend_offset + (Size) MaxConnections * sizeof(BatonBackendSlot);
	tenant_offset = pool_offset + (Size) pool_slots * sizeof(BatonPoolSlot);
	session_offset = tenant_offset + (Size) pool_slots * sizeof(BatonTenantSlot);
	counter_offset = session_offset + (Size) session_slots * sizeof(BatonSessionSlot);
	identity_offset = counter_offset + (Size) BATON_COUNTER_SLOTS * sizeof(BatonStatementCounter);
	pid_offset = identity_offset + (Size) session_slots * sizeof(BatonIdentity);
	query_offset = pid_offset + (Size) pid_entries * sizeof(uint32);
	totals_offset = TYPEALIGN(CONTROL_PAGE, query_offset +
							  (Size) session_slots * pgstat_track_activity_query_size);
	tally_offset = totals_offset + (Size) pool_slots * sizeof(BatonTotalsSlot);
	total = tally_offset + (Size) MaxConnections * sizeof(BatonTallySlot);
	total = TYPEALIGN(CONTROL_PAGE, total);

	BatonControlFd = memfd_create("pg_baton control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (BatonControlFd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not create the shared memory of pg_baton: %m")));

	/* Pages of regions that are never touched are never allocated. */
	if (ftruncate(BatonControlFd, total) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not size the shared memory of pg_baton to %zu bytes: %m", total)));

	/*
	 * shrinking the memory would cause a SIGBUS in every process of the
	 * server
	 */
	if (fcntl(BatonControlFd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not seal the shared memory of pg_baton: %m")));

	address = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, BatonControlFd, 0);
	if (address == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map the shared memory of pg_baton: %m")));

	/* fd.c must know of a descriptor that stays open (set_max_safe_fds) */
	ReserveExternalFD();

	control = (BatonControlHeader *) address;
	control->magic = BATON_MAGIC;
	control->layout_version = BATON_LAYOUT_VERSION;
	control->backend_slots = MaxConnections;
	control->pool_slots = pool_slots;
	control->session_slots = session_slots;
	control->counter_slots = BATON_COUNTER_SLOTS;
	control->postmaster_pid = PostmasterPid;
	control->backend_offset = backend_offset;
	control->pool_offset = pool_offset;
	control->tenant_offset = tenant_offset;
	control->session_offset = session_offset;
	control->counter_offset = counter_offset;
	control->identity_offset = identity_offset;
	control->pid_offset = pid_offset;
	control->pid_entries = pid_entries;
	control->query_offset = query_offset;
	control->totals_offset = totals_offset;
	control->tally_offset = tally_offset;
	control->query_size = pgstat_track_activity_query_size;
	control->total_size = total;
	control->settings_generation = 1;
	if (!pg_strong_random(&control->secret, sizeof(control->secret)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random secret for pg_baton")));

	/*
	 * so that numbers from before the server's last start are very likely
	 * unknown
	 */
	if (!pg_strong_random(&random, sizeof(random)))
		random = 0;
	control->next_pid = BATON_FIRST_PID + (random >> 2);

	BatonControlMemory = control;
	BatonControlMade = *control;
}

/*
 * Called when the server restarts after a crash, since the crashed process may
 * have overwritten anything, and before a dispatcher starts, since it takes
 * the layout from the header.  Restores what never changes.  The dispatcher
 * repairs the rest: it clears the slot of an ended backend when its connection
 * ends, and a session that no backend can hold has no owner (reap.rs).
 */
void
baton_control_restore(void)
{
	BatonControlHeader *control = BatonControlMemory;
	const BatonControlHeader *made = &BatonControlMade;
	bool		was_damaged;

	if (control == NULL)
		return;
	was_damaged = memcmp(control, made, offsetof(BatonControlHeader, settings_generation)) != 0 ||
		control->pid_entries != made->pid_entries ||
		control->query_size != made->query_size ||
		control->identity_offset != made->identity_offset ||
		control->pid_offset != made->pid_offset ||
		control->query_offset != made->query_offset ||
		control->tenant_offset != made->tenant_offset ||
		control->totals_offset != made->totals_offset ||
		control->tally_offset != made->tally_offset;

	memcpy(control, made, offsetof(BatonControlHeader, settings_generation));
	control->pid_entries = made->pid_entries;
	control->query_size = made->query_size;
	control->identity_offset = made->identity_offset;
	control->pid_offset = made->pid_offset;
	control->query_offset = made->query_offset;
	control->tenant_offset = made->tenant_offset;
	control->totals_offset = made->totals_offset;
	control->tally_offset = made->tally_offset;
	if (was_damaged)
		ereport(LOG,
				(errmsg("the shared memory of pg_baton was damaged, its header has been restored")));
}

/*
 * Element `index` of an array of `count` elements of that size at that offset.
 */
static inline void *
part(const char *what, uint64 offset, uint32 index, uint32 count, Size size)
{
	if (unlikely(index >= count))
		elog(FATAL, "%s %u of pg_baton is out of range", what, index);
	return (char *) BatonControlMemory + offset + (Size) index * size;
}

BatonBackendSlot *
baton_backend_slot(uint32 index)
{
	return part("backend slot", BatonControlMade.backend_offset, index,
				BatonControlMade.backend_slots, sizeof(BatonBackendSlot));
}

BatonPoolSlot *
baton_pool_slot(uint32 index)
{
	return part("pool slot", BatonControlMade.pool_offset, index,
				BatonControlMade.pool_slots, sizeof(BatonPoolSlot));
}

BatonTenantSlot *
baton_tenant_slot(uint32 index)
{
	return part("tenant slot", BatonControlMade.tenant_offset, index,
				BatonControlMade.pool_slots, sizeof(BatonTenantSlot));
}

BatonTotalsSlot *
baton_totals_slot(uint32 index)
{
	return part("totals slot", BatonControlMade.totals_offset, index,
				BatonControlMade.pool_slots, sizeof(BatonTotalsSlot));
}

BatonTallySlot *
baton_tally_slot(uint32 index)
{
	return part("tally slot", BatonControlMade.tally_offset, index,
				BatonControlMade.backend_slots, sizeof(BatonTallySlot));
}

BatonSessionSlot *
baton_session_slot_at(uint32 index)
{
	return part("session slot", BatonControlMade.session_offset, index,
				BatonControlMade.session_slots, sizeof(BatonSessionSlot));
}

bool
baton_session_is_named(uint64 session)
{
	return session != 0 && (uint32) session < BatonControlMade.session_slots &&
		baton_session_slot_at((uint32) session)->id == session;
}

BatonSessionSlot *
baton_session_slot(uint64 session)
{
	BatonSessionSlot *slot = baton_session_slot_at((uint32) session);

	if (unlikely(slot->id != session))
		elog(FATAL, "session slot %u of pg_baton is another session's", (uint32) session);
	return slot;
}

BatonIdentity *
baton_identity(uint32 index)
{
	return part("identity", BatonControlMade.identity_offset, index,
				BatonControlMade.session_slots, sizeof(BatonIdentity));
}

uint32
baton_identities_used(void)
{
	uint32		used = pg_atomic_read_u32(baton_atomic_u32(BatonControlMemory->identities_used));

	return Min(used, BatonControlMade.session_slots);
}

char *
baton_query_text(uint32 index)
{
	return part("query", BatonControlMade.query_offset, index,
				BatonControlMade.session_slots, BatonControlMade.query_size);
}

uint32 *
baton_pid_entry(int pid)
{
	return part("process ID", BatonControlMade.pid_offset,
				(uint32) pid % BatonControlMade.pid_entries,
				BatonControlMade.pid_entries, sizeof(uint32));
}

BatonStatementCounter *
baton_counter(uint32 index)
{
	return part("statement counter", BatonControlMade.counter_offset, index,
				BatonControlMade.counter_slots, sizeof(BatonStatementCounter));
}

/* ----------------------------------------------------------------
 *		Frames between a backend and the dispatcher, over SOCK_SEQPACKET.
 *
 * A packet is a frame, so a read returns a whole frame or nothing; no state
 * is kept between reads.  Sending waits while the dispatcher is busy.  The
 * dispatcher never stops reading, and if it dies the send fails at once with
 * EPIPE.
 *
 * No system call here blocks.  A process that waits for the dispatcher serves
 * interrupts meanwhile.  A statement that waits for all processes of the
 * server (WaitForProcSignalBarrier, procsignal.c: DROP DATABASE, for example)
 * must not wait for the dispatcher, which may wait for that statement; and a
 * process that is told to end must end.
 *
 * The caller of a receive function owns the descriptors that come with the
 * frame.  Descriptors of a packet that is no frame, and incomplete sets of
 * descriptors, are closed.
 */

/*
 * Limit and interval of attempts to connect to a dispatcher that does not
 * accept.
 */
#define CONNECT_LIMIT_MS 10000
#define CONNECT_STEP_MS 10

/*
 * A descriptor of the sender's process (linux/socket.h, Linux 6.5).  The
 * kernel sends it if any process that shares this end has set SO_PASSPIDFD.
 */
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

/* The longest that an exiting process waits to send its last frames. */
#define EXIT_LIMIT_MS 10000

static void (*look_also) (void) = NULL;

void
baton_channel_look_also(void (*look) (void))
{
	look_also = look;
}

/*
 * Waits for the socket, or for an interrupt, which is served.  An exiting
 * process serves none (proc_exit_prepare, ipc.c, holds them off), but other
 * processes may wait until this one has absorbed a barrier.
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

/* The limit of a send in ms, as the socket's owner has set it; -1: none. */
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
baton_channel_try(void)
{
	struct sockaddr_un address;
	int			save_errno;
	int			fd;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	strlcpy(address.sun_path, BATON_CONTROL_SOCKET, sizeof(address.sun_path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0)
		return fd;
	save_errno = errno;
	close(fd);
	errno = save_errno;
	return -1;
}

int
baton_channel_connect(void)
{
	for (int waited_ms = 0;; waited_ms += CONNECT_STEP_MS)
	{
		int			fd = baton_channel_try();

		/*
		 * a full backlog is EAGAIN, and no event tells when there is room
		 * again
		 */
		if (fd >= 0 || errno != EAGAIN || waited_ms >= CONNECT_LIMIT_MS)
			return fd;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 CONNECT_STEP_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Sends one packet, and waits for room.  Returns false if the other end is
 * gone.
 */
static bool
send_frame(int fd, const BatonFrameHeader *frame, const char *payload)
{
	int64		since_us = 0;
	struct iovec parts[2];
	struct msghdr message;

	parts[0].iov_base = unconstify(BatonFrameHeader *, frame);
	parts[0].iov_len = sizeof(BatonFrameHeader);
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
	const Size	most = BATON_FRAME_MAX - sizeof(BatonFrameHeader);

	for (;;)
	{
		BatonFrameHeader frame;
		Size		now = Min(length, most);

		frame.kind = type;
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
	memset(&incoming->frame, 0, sizeof(BatonFrameHeader));
	if (received >= (ssize_t) sizeof(BatonFrameHeader))
		memcpy(&incoming->frame, buffer, sizeof(BatonFrameHeader));
	if (received < (ssize_t) sizeof(BatonFrameHeader) ||
		incoming->frame.length != received - sizeof(BatonFrameHeader))
	{
		/* the other end is gone, or is not pg_baton's dispatcher */
		baton_incoming_close(incoming);
		return BATON_RECEIVED_CLOSED;
	}
	incoming->payload = buffer + sizeof(BatonFrameHeader);
	return BATON_RECEIVED_FRAME;
}

/* ----------------------------------------------------------------
 *		A question to the dispatcher (HELLO_QUERY), and its answer.
 *
 * The asking code opens its own connection to the control socket, and closes
 * it: an SQL function when the answer is complete (views.c, pause.c), a
 * statement that needs a database when its transaction ends
 * (database_access.c).  For an SQL function a missing answer is an error; the
 * others decide themselves what it means.
 */

/* After this time without an answer the dispatcher counts as failed. */
#define ANSWER_TIMEOUT_MS 10000

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
			/* no question asks for descriptors */
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

const char *const baton_cause_names[BATON_CAUSE_COUNT] = {
	[BATON_CAUSE_NONE] = "",
#define BATON_CAUSE(name, text) [BATON_CAUSE_##name] = text,
#include "causes.inc"
#undef BATON_CAUSE
};

void
baton_require_control(void)
{
	if (BatonControlMemory == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_baton is not loaded"),
				 errhint("Add pg_baton to shared_preload_libraries and restart the server.")));
}

void
baton_dispatcher_not_available(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pg_baton's dispatcher is not available"),
			 errdetail("%s", why),
			 errhint("The launcher starts it again by itself; the server's log says what keeps it.")));
	pg_unreachable();
}

int
baton_question_open(void)
{
	int			fd;

	baton_require_control();
	fd = baton_channel_connect();
	if (fd < 0)
		baton_dispatcher_not_available("It accepts no connection on its control socket.");
	ReserveExternalFD();
	return fd;
}

void
baton_question_close(int fd)
{
	close(fd);
	ReleaseExternalFD();
}

void
baton_answer_require(int fd, BatonIncoming *incoming)
{
	switch (baton_answer_next(fd, ANSWER_TIMEOUT_MS, incoming))
	{
		case BATON_RECEIVED_FRAME:
			return;
		case BATON_RECEIVED_CLOSED:
			baton_dispatcher_not_available("It closed the connection before it had answered.");
			break;
		case BATON_RECEIVED_NOTHING:
			baton_dispatcher_not_available("It does not answer.");
			break;
	}
}
