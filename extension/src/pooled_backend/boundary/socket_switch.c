/*-------------------------------------------------------------------------
 *
 * socket_switch.c
 *		Exchanging the client's socket under a running backend.
 *
 * The client's socket always stands on one descriptor number, reserved for
 * the life of the backend: dup2 onto a number that fd.c may meanwhile have
 * given to a data file would replace that file.  Between sessions a
 * placeholder (one end of a socketpair that never has data) stands there.
 *
 * Two wait sets must follow: FeBeWaitSet, and the one of a backend between two
 * transactions.  An epoll instance knows the open file, not the number, and
 * the old file stays open in the dispatcher: so the old registration has to be
 * deleted before dup2, and the new one added after.  It is added only when it is
 * going to be waited for: the idle set gets it when the backend is about to
 * sleep, FeBeWaitSet when PostgreSQL might have to wait for the client, so that
 * a backend that goes from session to session pays for neither.  (One epoll inside the other would need no second
 * registration, but its wake-ups lose the scheduler's hint that the waker is
 * about to sleep, see ep_poll_safewake in Linux' fs/eventpoll.c.)
 *
 * WaitEventSet is private to latch.c, hence what we need of it is found by
 * looking, once, at attach, and checked there:
 *	- its epoll descriptor: CreateWaitEventSet opens exactly one descriptor
 *	  (epoll_create1; latch.c, 15 to 17, waiteventset.c in 18), which is the
 *	  lowest free number;
 *	- the data word of the socket's registration: /proc/self/fdinfo of it
 *	  (WaitEventAdjustEpoll stores the address of the WaitEvent there).
 * If they are not found, both wait sets are made anew for each socket, which
 * takes only what latch.c exports, and four times as long.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "client_port.h"
#include "majors.h"
#include "pooled_state.h"
#include "self_check.h"
#include "socket_switch.h"

static BatonSelfSockets *const sockets = &BatonSelf.sockets;

/* The data word under which descriptor `target` is registered; 0 if not. */
static uint64
registration_data(int epoll_fd, int target)
{
	char		path[64];
	char		line[256];
	FILE	   *file;
	uint64		found = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll_fd);
	file = AllocateFile(path, "r");
	if (file == NULL)
		return 0;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		int			tfd;
		unsigned int events;
		unsigned long long data;

		if (sscanf(line, "tfd: %d events: %x data: %llx", &tfd, &events, &data) == 3 &&
			tfd == target)
			found = data;
	}
	FreeFile(file);
	return found;
}

static bool
is_epoll(int fd)
{
	char		path[64];
	char		target[64];
	ssize_t		length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0)
		return false;
	target[length] = '\0';
	return strcmp(target, "anon_inode:[eventpoll]") == 0;
}

static bool
make_pair(int *one, int *other)
{
	int			pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
		return false;
	*one = pair[0];
	*other = pair[1];
	ReserveExternalFD();
	ReserveExternalFD();
	return true;
}

/*
 * A wait set for `events` events, of which the first three are the client, the
 * latch and `death`, in the order pq_init (pqcomm.c) has them.
 */
static WaitEventSet *
create_set(int events, uint32 death)
{
	WaitEventSet *set = baton_wait_set_create(events);

	AddWaitEventToSet(set, WL_SOCKET_READABLE, BatonSelf.client_number, NULL, NULL);
	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, death, PGINVALID_SOCKET, NULL, NULL);
	return set;
}

static void
create_sets(void)
{
	FeBeWaitSet = create_set(FeBeWaitSetNEvents, WL_POSTMASTER_DEATH);
	sockets->idle_set = create_set(FeBeWaitSetNEvents + 1, WL_EXIT_ON_PM_DEATH);
	if (BatonSelf.control >= 0)
		AddWaitEventToSet(sockets->idle_set, WL_SOCKET_READABLE, BatonSelf.control, NULL, NULL);
}

/* The number that the next descriptor will get; -1 if there is none. */
static int
next_number(void)
{
	int			number = dup(sockets->placeholder);

	if (number >= 0)
		close(number);
	return number;
}

/* The wait set that was created as that number was the next. */
static const char *
find_watcher(BatonWatcher *watcher, int number)
{
	watcher->epoll = number;
	if (!is_epoll(number))
		return "could not find the epoll descriptor of a wait set";
	watcher->data = registration_data(number, BatonSelf.client_number);
	if (watcher->data == 0)
		return "could not find the registration of the client socket";
	watcher->watching = true;
	return NULL;
}

/* NULL, or why the wait sets have to be made anew. */
static const char *
find_watchers(void)
{
	const char *problem;
	int			number = next_number();

	FeBeWaitSet = create_set(FeBeWaitSetNEvents, WL_POSTMASTER_DEATH);
	problem = find_watcher(&sockets->command_watcher, number);
	number = next_number();
	sockets->idle_set = create_set(FeBeWaitSetNEvents + 1, WL_EXIT_ON_PM_DEATH);
	AddWaitEventToSet(sockets->idle_set, WL_SOCKET_READABLE, BatonSelf.control, NULL, NULL);
	if (problem == NULL)
		problem = find_watcher(&sockets->idle_watcher, number);
	return problem;
}

static void
watch(BatonWatcher *watcher)
{
	struct epoll_event event;

	if (watcher->watching)
		return;
	memset(&event, 0, sizeof(event));
	event.events = EPOLLERR | EPOLLHUP | EPOLLIN;
	event.data.u64 = watcher->data;
	if (epoll_ctl(watcher->epoll, EPOLL_CTL_ADD, BatonSelf.client_number, &event) != 0)
		elog(FATAL, "could not add a client socket to a wait set: %m");
	watcher->watching = true;
}

static void
unwatch(BatonWatcher *watcher)
{
	if (!watcher->watching)
		return;
	if (epoll_ctl(watcher->epoll, EPOLL_CTL_DEL, BatonSelf.client_number, NULL) != 0)
		elog(FATAL, "could not remove a client socket from a wait set: %m");
	watcher->watching = false;
}

const char *
baton_socket_attach(int number)
{
	WaitEventSet *old;
	const char *problem;
	int			original = MyProcPort->sock;

	if (fcntl(number, F_GETFD) != -1 || errno != EBADF)
		return "the descriptor number for client sockets is in use";
	if (!make_pair(&sockets->placeholder, &sockets->placeholder_peer) ||
		!make_pair(&sockets->inject_read, &sockets->inject_write))
		return "could not create a socket pair";
	if (dup3(sockets->placeholder, number, O_CLOEXEC) != number)
		return "could not reserve the descriptor number for client sockets";
	ReserveExternalFD();
	BatonSelf.client_number = number;

	old = FeBeWaitSet;
	problem = find_watchers();
	if (problem == NULL && baton_self_check_is_broken("wait_sets"))
		problem = "broken on purpose";
	if (problem != NULL)
	{
		sockets->remade = true;
		baton_self_check_failed(BATON_COSTS_SPEED, problem);
	}

	baton_port_set_socket(number);
	FreeWaitEventSet(old);
	close(original);
	return NULL;
}

WaitEventSet *
baton_socket_idle_set(void)
{
	return sockets->idle_set;
}

static void
unwatch_both(void)
{
	/*
	 * The wait set remembers which events it asked for and does not ask again
	 * (ModifyWaitEvent returns early); what we add must be what it remembers.
	 * It can have been made to wait for room to write only while watching.
	 */
	if (sockets->command_watcher.watching)
		ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_READABLE, NULL);

	unwatch(&sockets->command_watcher);
	unwatch(&sockets->idle_watcher);
}

/*
 * `fd` takes the reserved number; it stays open under its own, too.  The
 * placeholder has nothing to say and is not waited for.
 */
static void
stand_in_place(int fd)
{
	if (unlikely(sockets->remade))
	{
		/* what they are registered with goes before what is registered */
		FreeWaitEventSet(FeBeWaitSet);
		FreeWaitEventSet(sockets->idle_set);
	}
	else
		unwatch_both();
	while (dup3(fd, BatonSelf.client_number, O_CLOEXEC) != BatonSelf.client_number)
	{
		if (errno != EINTR && errno != EBUSY)
			elog(FATAL, "could not put a client socket in place: %m");
	}
	sockets->occupied = fd != sockets->placeholder;
	if (unlikely(sockets->remade))
		create_sets();
}

void
baton_socket_put(int fd)
{
	stand_in_place(fd);
	close(fd);
}

void
baton_socket_clear(void)
{
	stand_in_place(sockets->placeholder);
}

void
baton_socket_inject(const char *messages, Size length)
{
	Size		written = 0;
	int			room = (int) Max(length + 4096, 65536);

	/* The whole of it must fit: nobody reads while we write. */
	(void) setsockopt(sockets->inject_write, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	while (written < length)
	{
		ssize_t		now = send(sockets->inject_write, messages + written, length - written,
							   MSG_NOSIGNAL);

		if (now < 0 && errno == EINTR)
			continue;
		if (now < 0)
			elog(ERROR, "could not inject a message of %zu bytes: %m", length);
		written += now;
	}

	sockets->kept_client = fcntl(BatonSelf.client_number, F_DUPFD_CLOEXEC, 0);
	if (sockets->kept_client < 0)
		elog(FATAL, "could not keep a client socket aside: %m");
	stand_in_place(sockets->inject_read);
	baton_socket_expect_waits();
}

void
baton_socket_resume(void)
{
	Assert(sockets->kept_client >= 0);
	stand_in_place(sockets->kept_client);
	close(sockets->kept_client);
	sockets->kept_client = -1;
	baton_socket_expect_waits();
}

void
baton_socket_expect_waits(void)
{
	if (sockets->occupied)
		watch(&sockets->command_watcher);
}

bool
baton_socket_expects_waits(void)
{
	return sockets->command_watcher.watching;
}

void
baton_socket_expect_sleep(void)
{
	if (sockets->occupied)
		watch(&sockets->idle_watcher);
}

bool
baton_socket_expects_sleep(void)
{
	return sockets->idle_watcher.watching;
}
