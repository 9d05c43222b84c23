/*-------------------------------------------------------------------------
 *
 * client_socket.c
 *		The client's socket under a running backend: exchanging it, and the
 *		settings that parameters ask for.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "client_socket.h"
#include "dispatcher_link.h"
#include "majors.h"
#include "pg_guc.h"
#include "pg_port.h"
#include "pooled_state.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		Exchanging the client's socket under a running backend.
 *
 * The client's socket always has the same descriptor number, reserved for the
 * life of the backend: dup2 onto a number that fd.c may meanwhile have given
 * to a data file would replace that file. Between sessions a placeholder (one
 * end of a socketpair that never has data) has this number.
 *
 * Two wait sets must follow: FeBeWaitSet, and the wait set of a backend
 * between two transactions. An epoll instance knows the open file, not the
 * number, and the old file stays open in the dispatcher: so the old
 * registration must be deleted before dup2, and the new one added after it. It
 * is added only when a wait is due: to the idle set when the backend is about
 * to sleep, to FeBeWaitSet when PostgreSQL might have to wait for the client.
 * A backend that goes from session to session pays for neither. (One epoll
 * inside the other would need no second registration, but its wake-ups lose
 * the scheduler's hint that the waker is about to sleep, see ep_poll_safewake
 * in Linux' fs/eventpoll.c.)
 *
 * The epoll instance of a wait set is found once, at attach (pg_process.c). If
 * that fails, both wait sets are rebuilt for each socket, which needs only
 * what latch.c exports and takes four times as long.
 * ----------------------------------------------------------------
 */

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
 * Creates a wait set for `events` events, of which the first three are the
 * client, the latch and `death`, in the order of pq_init (pqcomm.c).
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
create_idle_set(void)
{
	sockets->idle_set = create_set(FeBeWaitSetNEvents + 1, WL_EXIT_ON_PM_DEATH);
	if (BatonSelf.control >= 0)
		AddWaitEventToSet(sockets->idle_set, WL_SOCKET_READABLE, BatonSelf.control, NULL, NULL);
}

static void
create_sets(void)
{
	FeBeWaitSet = create_set(FeBeWaitSetNEvents, WL_POSTMASTER_DEATH);
	create_idle_set();
}

/* Returns NULL, or the reason why the wait sets must be rebuilt. */
static const char *
find_idle_watcher(void)
{
	int			number = baton_watcher_next_number();

	create_idle_set();
	return baton_watcher_find(&sockets->idle_watcher, number, BatonSelf.client_number);
}

/* Likewise. */
static const char *
find_watchers(void)
{
	int			number = baton_watcher_next_number();
	const char *problem;
	const char *idle_problem;

	FeBeWaitSet = create_set(FeBeWaitSetNEvents, WL_POSTMASTER_DEATH);
	problem = baton_watcher_find(&sockets->command_watcher, number, BatonSelf.client_number);
	idle_problem = find_idle_watcher();
	return problem != NULL ? problem : idle_problem;
}

void
baton_socket_control_is_new(void)
{
	FreeWaitEventSet(sockets->idle_set);
	if (sockets->remade)
		create_idle_set();
	else if (find_idle_watcher() != NULL)
		sockets->remade = true;
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
	 * It can only have been set to wait for room to write while watching.
	 */
	if (sockets->command_watcher.watching)
		ModifyWaitEvent(FeBeWaitSet, FeBeWaitSetSocketPos, WL_SOCKET_READABLE, NULL);

	baton_watcher_end(&sockets->command_watcher, BatonSelf.client_number);
	baton_watcher_end(&sockets->idle_watcher, BatonSelf.client_number);
}

/*
 * Gives `fd` the reserved number; it also stays open under its own. The
 * placeholder never has data and is not waited for.
 */
static void
stand_in_place(int fd)
{
	if (unlikely(sockets->remade))
	{
		/* free the epolls before the file that is registered in them */
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

	/* All of it must fit: no process reads while we write. */
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

/* ----------------------------------------------------------------
 *		The settings of a client's socket that parameters ask for:
 *		tcp_keepalives_idle and its like, tcp_user_timeout.
 *
 * The parameters' assign hooks set them (pq_setkeepalivesidle in pqcomm.c and
 * so on), in stock also when the client connects. Here a socket comes long
 * after the parameter was assigned. The kernel keeps the values as long as the
 * socket lives, but Port, from which SHOW answers, does not. So they are set
 * again with each socket that comes, if a parameter is not 0. If a parameter
 * has become 0 through a reload while the session was away, its socket gets
 * the kernel's value back: BATON_SESSION_SOCKET_SET says that this may be
 * needed.
 *
 * The value that 0 stands for is read from a socket of our own, because the
 * client's may have been set already.
 *
 * The socket of a TLS session is one end of a pair, the other end of which is
 * with a relay of the dispatcher. It is no TCP socket, and each attempt to set
 * it would log a line. The dispatcher has set the client's own socket by the
 * configuration. So while such a session is in place, these parameters only
 * show their values: their hooks (guc.c, guc_tables.c since 16) are ours, and
 * call the server's for every other session.
 * ----------------------------------------------------------------
 */

static int
kernel_default(int fd, int option)
{
	int			value = 0;
	socklen_t	size = sizeof(value);

	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, option, &value, &size) != 0)
		return 0;				/* then pqcomm.c asks the client's socket */
	return value;
}

/* The kernel's defaults for a TCP socket, read once. */
static int	idle = -1;
static int	interval = 0;
static int	count = 0;

static void
ask_defaults(void)
{
	int			fd;

	if (idle >= 0)
		return;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	idle = kernel_default(fd, TCP_KEEPIDLE);
	interval = kernel_default(fd, TCP_KEEPINTVL);
	count = kernel_default(fd, TCP_KEEPCNT);
	if (fd >= 0)
		close(fd);
}

/* Formats a value as the server's show hooks do. */
static const char *
show_number(int value, int default_value)
{
	static char text[16];

	ask_defaults();
	snprintf(text, sizeof(text), "%d", value != 0 ? value : default_value);
	return text;
}

/* A parameter's hooks, which call the server's. */
#define HOOKS_OF(parameter, default_value) \
static GucIntAssignHook server_assign_##parameter = NULL; \
static GucShowHook server_show_##parameter = NULL; \
static void \
relayed_assign_##parameter(int value, void *extra) \
{ \
	if (!BatonPlaced.identity.is_relayed && server_assign_##parameter != NULL) \
		server_assign_##parameter(value, extra); \
} \
static const char * \
relayed_show_##parameter(void) \
{ \
	return BatonPlaced.identity.is_relayed || server_show_##parameter == NULL ? \
		show_number(parameter, (ask_defaults(), default_value)) : server_show_##parameter(); \
} \
extern int	parameter

HOOKS_OF(tcp_keepalives_idle, idle);
HOOKS_OF(tcp_keepalives_interval, interval);
HOOKS_OF(tcp_keepalives_count, count);
HOOKS_OF(tcp_user_timeout, 0);

#define TAKE_HOOKS(parameter) \
	baton_guc_hook_int(#parameter, relayed_assign_##parameter, relayed_show_##parameter, \
					   &server_assign_##parameter, &server_show_##parameter)

const char *
baton_keepalive_attach(void)
{
	if (!TAKE_HOOKS(tcp_keepalives_idle) || !TAKE_HOOKS(tcp_keepalives_interval) ||
		!TAKE_HOOKS(tcp_keepalives_count) || !TAKE_HOOKS(tcp_user_timeout))
		return "the parameters of TCP are not as expected";
	return NULL;
}

void
baton_keepalive_relayed(bool relayed)
{
	BatonPlaced.identity.is_relayed = relayed;
}

static bool
any_is_set(void)
{
	return !BatonPlaced.identity.is_relayed && MyProcPort->laddr.addr.ss_family != AF_UNIX &&
		(tcp_keepalives_idle | tcp_keepalives_interval | tcp_keepalives_count |
		 tcp_user_timeout) != 0;
}

/*
 * Restores the kernel's value, since pq_setkeepalivesidle() and the others do
 * nothing for a 0 that Port has already. A failure leaves the socket as it
 * was.
 */
static void
take_back(int option, int parameter, int value)
{
	if (parameter == 0)
		(void) setsockopt(MyProcPort->sock, IPPROTO_TCP, option, &value, sizeof(value));
}

static void
take_back_all(void)
{
	ask_defaults();
	take_back(TCP_KEEPIDLE, tcp_keepalives_idle, idle);
	take_back(TCP_KEEPINTVL, tcp_keepalives_interval, interval);
	take_back(TCP_KEEPCNT, tcp_keepalives_count, count);
	take_back(TCP_USER_TIMEOUT, tcp_user_timeout, 0);
}

void
baton_keepalive_leave(BatonSessionSlot *slot)
{
	if (unlikely(any_is_set()))
		pg_atomic_fetch_or_u32(baton_atomic_u32(slot->flags), BATON_SESSION_SOCKET_SET);
}

void
baton_keepalive_put(BatonSessionSlot *slot)
{
	Port	   *port = MyProcPort;

	if (unlikely((slot->flags & BATON_SESSION_SOCKET_SET) != 0))
	{
		take_back_all();
		pg_atomic_fetch_and_u32(baton_atomic_u32(slot->flags), ~(uint32) BATON_SESSION_SOCKET_SET);
	}
	if (!any_is_set())
		return;

	ask_defaults();
	baton_port_set_kernel_keepalives(idle, interval, count);

	/* a failure is in the log; stock goes on, too */
	(void) pq_setkeepalivesidle(tcp_keepalives_idle, port);
	(void) pq_setkeepalivesinterval(tcp_keepalives_interval, port);
	(void) pq_setkeepalivescount(tcp_keepalives_count, port);
	(void) pq_settcpusertimeout(tcp_user_timeout, port);

	/*
	 * For this parameter the kernel's default is 0, which in pqcomm.c also
	 * means "unknown": pqcomm.c has just asked the client's socket, which may
	 * have the session's own value.
	 */
	baton_port_forget_user_timeout();
}
