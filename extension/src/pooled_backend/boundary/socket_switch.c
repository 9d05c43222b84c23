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
 * What a wait set waits by is found once, at attach (wait_set_watcher.c).  If it is
 * not, both wait sets are made anew for each socket, which takes only what latch.c
 * exports, and four times as long.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
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

/* NULL, or why the wait sets have to be made anew. */
static const char *
find_watchers(void)
{
	const char *problem;
	int			number = baton_watcher_next_number();

	FeBeWaitSet = create_set(FeBeWaitSetNEvents, WL_POSTMASTER_DEATH);
	problem = baton_watcher_find(&sockets->command_watcher, number, BatonSelf.client_number);
	number = baton_watcher_next_number();
	sockets->idle_set = create_set(FeBeWaitSetNEvents + 1, WL_EXIT_ON_PM_DEATH);
	AddWaitEventToSet(sockets->idle_set, WL_SOCKET_READABLE, BatonSelf.control, NULL, NULL);
	if (problem == NULL)
		problem = baton_watcher_find(&sockets->idle_watcher, number, BatonSelf.client_number);
	return problem;
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

	baton_watcher_end(&sockets->command_watcher, BatonSelf.client_number);
	baton_watcher_end(&sockets->idle_watcher, BatonSelf.client_number);
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
		baton_watcher_begin(&sockets->command_watcher, BatonSelf.client_number);
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
		baton_watcher_begin(&sockets->idle_watcher, BatonSelf.client_number);
}

bool
baton_socket_expects_sleep(void)
{
	return sockets->idle_watcher.watching;
}
