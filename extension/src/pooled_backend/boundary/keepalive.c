/*-------------------------------------------------------------------------
 *
 * keepalive.c
 *		The settings of a client's socket that parameters ask for:
 *		tcp_keepalives_idle and its like, tcp_user_timeout.
 *
 * Their assign hooks set them (pq_setkeepalivesidle in pqcomm.c and so on), in
 * stock also when the client connects.  Here a socket comes long after the
 * parameter was assigned.  The kernel keeps what was set as long as the socket
 * lives, but not so Port, from which SHOW answers; so it is set again with each
 * socket that comes, where a parameter is not 0.  Where one is 0 by now, since a
 * reload while the session was away, its socket gets the kernel's value back:
 * BATON_SESSION_SOCKET_SET says that this may be needed.
 *
 * What 0 stands for is asked of a socket of our own, since the client's may
 * have been set already.
 *
 * The socket of a TLS session is one end of a pair, whose other end a relay of
 * the dispatcher has: it knows no TCP, and to ask it would be a line in the log
 * each time.  The dispatcher has set the client's own socket by the
 * configuration.  So while such a session is in place these parameters only
 * show what they are: their hooks (guc.c, guc_tables.c since 16) are ours, and
 * pass on to the server's for every other session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "client_port.h"
#include "control.h"
#include "guc_hooks.h"
#include "keepalive.h"
#include "pooled_state.h"

static int
kernel_default(int fd, int option)
{
	int			value = 0;
	socklen_t	size = sizeof(value);

	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, option, &value, &size) != 0)
		return 0;				/* pqcomm.c asks the client's socket then */
	return value;
}

/* The kernel's, of a TCP socket; asked once. */
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

/* As the server's show hooks have it. */
static const char *
show_number(int value, int default_value)
{
	static char text[16];

	ask_defaults();
	snprintf(text, sizeof(text), "%d", value != 0 ? value : default_value);
	return text;
}

/* A parameter's hooks, and the server's behind them. */
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
 * pq_setkeepalivesidle() and the others do nothing for a 0 that Port has
 * already.  A failure leaves the socket as it was.
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
	 * For this one the kernel's default is 0, which is also pqcomm.c's word
	 * for "not known": it has just asked the client's socket, where the
	 * session's own value may be.
	 */
	baton_port_forget_user_timeout();
}
