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
 * socket that comes, where a parameter is not 0.
 *
 * What 0 stands for is asked of a socket of our own, since the client's may
 * have been set already.
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

#include "keepalive.h"

static int
kernel_default(int fd, int option)
{
	int			value = 0;
	socklen_t	size = sizeof(value);

	if (fd < 0 || getsockopt(fd, IPPROTO_TCP, option, &value, &size) != 0)
		return 0;				/* pqcomm.c asks the client's socket then */
	return value;
}

void
baton_keepalive_put(void)
{
	static int	idle = -1;
	static int	interval = 0;
	static int	count = 0;
	Port	   *port = MyProcPort;

	if ((tcp_keepalives_idle | tcp_keepalives_interval | tcp_keepalives_count |
		 tcp_user_timeout) == 0 || port->laddr.addr.ss_family == AF_UNIX)
		return;

	if (idle < 0)
	{
		int			fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		idle = kernel_default(fd, TCP_KEEPIDLE);
		interval = kernel_default(fd, TCP_KEEPINTVL);
		count = kernel_default(fd, TCP_KEEPCNT);
		if (fd >= 0)
			close(fd);
	}
	port->default_keepalives_idle = idle;
	port->default_keepalives_interval = interval;
	port->default_keepalives_count = count;

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
	port->default_tcp_user_timeout = 0;
}
