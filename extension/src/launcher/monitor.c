/*-------------------------------------------------------------------------
 *
 * monitor.c
 *		The monitor's process: its program, its ports, and what it asks the
 *		launcher.
 *
 * The monitor serves metrics by HTTP, so strangers may speak to it.  It has no
 * secret, and can open nothing (monitor/src/confine.rs): the launcher opens its
 * ports, and gives it a connection to the dispatcher that carries only
 * questions of views.  It can fill no buffer that the launcher waits for, and
 * one that ends is started again.  The kernel ends it with the launcher, and
 * the launcher ends with the postmaster: it cannot keep a port.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/ip.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/varlena.h"

#include "baton_shared.h"
#include "child.h"
#include "dispatcher_link.h"
#include "majors.h"
#include "monitor.h"
#include "program.h"

#define MONITOR_PROGRAM "baton-monitor"

/* As many sockets as it can listen on, and connections that each lets wait. */
#define MOST_LISTENERS 8
#define BACKLOG 64

/* A monitor that ran for less than this is not started again at once. */
#define QUICK_DEATH_US (10 * USECS_PER_SEC)
#define START_DELAY_US (5 * USECS_PER_SEC)

/* Questions answered before the dispatcher's turn. */
#define QUESTIONS_A_ROUND 8

int			baton_monitor_port;
char	   *baton_monitor_listen_addresses;

/* The process, and where it listens. */
static struct
{
	pid_t		pid;			/* 0: none */
	int			channel;		/* -1: none */
	int			port;
	char	   *addresses;
	int64		started_at_us;
}			monitor = {.channel = -1};

static int64 start_at_us = 0;	/* of the next */

/* The last problem that was reported, so that no retry repeats it. */
static char told[256];

/* ----------------------------------------------------------------
 *		Where it listens.
 * ----------------------------------------------------------------
 */

/*
 * Resolves an entry of the list.  A name server could keep the launcher from
 * answering logins, so there are no other names than these two.
 */
static int
resolve(const char *entry, const char *port, struct addrinfo **found)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};

	return getaddrinfo(entry, port, &hints, found);
}

/* The addresses of an entry: one, or IPv4's and IPv6's of a name. */
static int
addresses_of(const char *entry, const char **addresses)
{
	bool		is_localhost = pg_strcasecmp(entry, "localhost") == 0;

	if (!is_localhost && strcmp(entry, "*") != 0)
	{
		addresses[0] = entry;
		return 1;
	}
	addresses[0] = is_localhost ? "127.0.0.1" : "0.0.0.0";
	addresses[1] = is_localhost ? "::1" : "::";
	return 2;
}

/* The list's entries are in *copy, which the caller frees. */
static bool
split(const char *value, char **copy, List **entries)
{
	*copy = pstrdup(value);
	return SplitGUCList(*copy, ',', entries);
}

bool
baton_monitor_check_addresses(char **value, void **extra, GucSource source)
{
	char	   *copy;
	List	   *entries;
	ListCell   *cell;
	int			count = 0;
	bool		is_good = split(*value, &copy, &entries);

	foreach(cell, entries)
	{
		const char *addresses[2];
		struct addrinfo *found;

		if (!is_good)
			break;
		count += addresses_of(lfirst(cell), addresses);
		if (resolve(addresses[0], NULL, &found) != 0)
		{
			GUC_check_errdetail("\"%s\" is no IP address, and neither \"localhost\" nor \"*\".",
								addresses[0]);
			is_good = false;
		}
		else
			freeaddrinfo(found);
	}
	if (is_good && (count == 0 || count > MOST_LISTENERS))
	{
		GUC_check_errdetail("There must be 1 to %d addresses.", MOST_LISTENERS);
		is_good = false;
	}
	list_free(entries);
	pfree(copy);
	return is_good;
}

/* Logs a problem, unless it is the last one that was logged. */
static void
tell(int sqlstate, const char *problem, const char *detail)
{
	char text[	sizeof(told)];

	snprintf(text, sizeof(text), "%s %s", problem, detail);
	if (strcmp(text, told) == 0)
		return;
	strlcpy(told, text, sizeof(told));
	ereport(LOG,
			(errcode(sqlstate),
			 errmsg_internal("%s", problem),
			 errdetail_internal("%s", detail),
			 errhint("The launcher tries again every %d seconds.",
					 (int) (START_DELAY_US / USECS_PER_SEC))));
}

/* A socket that listens there, or -1 with errno. */
static int
listen_at(const struct addrinfo *where)
{
	int			one = 1;
	int			save_errno;
	int			fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 &&
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
		(where->ai_family != AF_INET6 ||
		 setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) == 0) &&
		bind(fd, where->ai_addr, where->ai_addrlen) == 0 &&
		listen(fd, BACKLOG) == 0)
		return fd;
	save_errno = errno;
	if (fd >= 0)
		close(fd);
	errno = save_errno;
	return -1;
}

/*
 * Opens the sockets, and returns their number.  A machine without IPv6 has no
 * second address of "localhost" or "*".
 */
static int
open_listeners(int *listeners)
{
	char		port[16];
	char	   *copy;
	List	   *entries;
	ListCell   *cell;
	int			count = 0;

	snprintf(port, sizeof(port), "%d", baton_monitor_port);
	(void) split(baton_monitor_listen_addresses, &copy, &entries);
	foreach(cell, entries)
	{
		const char *addresses[2];
		int			many = addresses_of(lfirst(cell), addresses);

		for (int i = 0; i < many && count < MOST_LISTENERS; i++)
		{
			struct addrinfo *found;
			char		problem[128];

			if (resolve(addresses[i], port, &found) != 0)
				continue;
			listeners[count] = listen_at(found);
			if (listeners[count] >= 0)
				count++;
			else if (i == 0 || (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT))
			{
				snprintf(problem, sizeof(problem), "pg_baton's monitor could not listen on \"%s\", port %d",
						 addresses[i], baton_monitor_port);
				tell(errno == EADDRINUSE ? ERRCODE_OBJECT_IN_USE : ERRCODE_CONFIG_FILE_ERROR,
					 problem, strerror(errno));
			}
			freeaddrinfo(found);
		}
	}
	list_free(entries);
	pfree(copy);
	return count;
}

/* ----------------------------------------------------------------
 *		Its life.
 * ----------------------------------------------------------------
 */

static void
start(void)
{
	BatonProgram program;
	const char *problem;
	char		number[16];
	char	   *arguments[] = {MONITOR_PROGRAM, number, NULL};
	char		title[MAXPGPATH];
	int			pair[2];
	int			descriptors[1 + MOST_LISTENERS];
	int			count;

	monitor.started_at_us = baton_monotonic_us();
	start_at_us = monitor.started_at_us + START_DELAY_US;
	if (baton_server_is_stopping())
		return;
	if (!baton_program_beside(MONITOR_PROGRAM, &program, &problem))
	{
		tell(ERRCODE_CONFIG_FILE_ERROR, "could not start pg_baton's monitor, \"" MONITOR_PROGRAM "\"",
			 problem);
		return;
	}
	count = open_listeners(descriptors + 1);
	if (count == 0)
		return;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0)
	{
		descriptors[0] = pair[1];
		snprintf(number, sizeof(number), "%d", count);
		if (cluster_name[0] != '\0')
		{
			snprintf(title, sizeof(title), MONITOR_PROGRAM ": %s", cluster_name);
			arguments[0] = title;
		}
		monitor.pid = baton_program_fork(&program, arguments, "", true, descriptors, 1 + count);
		close(pair[1]);
		if (monitor.pid < 0)
			close(pair[0]);
	}
	else
		monitor.pid = -1;
	for (int i = 1; i <= count; i++)
		close(descriptors[i]);
	if (monitor.pid < 0)
	{
		monitor.pid = 0;
		tell(ERRCODE_SYSTEM_ERROR, "could not start pg_baton's monitor", strerror(errno));
		return;
	}
	monitor.channel = pair[0];
	monitor.port = baton_monitor_port;
	if (monitor.addresses != NULL)
		free(monitor.addresses);
	monitor.addresses = strdup(baton_monitor_listen_addresses);
	ReserveExternalFD();
	ereport(LOG,
			(errmsg("pg_baton's monitor started with process ID %d, on port %d",
					(int) monitor.pid, monitor.port)));
}

/* Its ports are free when this returns. */
static void
end(void)
{
	int			status = 0;

	(void) kill(monitor.pid, SIGKILL);
	while (waitpid(monitor.pid, &status, 0) < 0 && errno == EINTR)
		;
	close(monitor.channel);
	ReleaseExternalFD();
	monitor.channel = -1;
	monitor.pid = 0;
}

/* Has it ended by itself? */
static bool
has_ended(void)
{
	int			status = 0;

	if (waitpid(monitor.pid, &status, WNOHANG) == 0)
		return false;
	ereport(LOG,
			(errmsg("pg_baton's monitor (PID %d) has ended: %s", (int) monitor.pid,
					wait_result_to_str(status))));
	close(monitor.channel);
	ReleaseExternalFD();
	monitor.channel = -1;
	monitor.pid = 0;
	start_at_us = baton_monotonic_us();
	if (start_at_us - monitor.started_at_us < QUICK_DEATH_US)
		start_at_us += START_DELAY_US;
	return true;
}

static bool
is_where_it_should_be(void)
{
	return monitor.port == baton_monitor_port && monitor.addresses != NULL &&
		strcmp(monitor.addresses, baton_monitor_listen_addresses) == 0;
}

/* A change of the parameters is tried at once. */
static bool
has_changed(void)
{
	static int	port = 0;
	static char addresses[256];

	if (port == baton_monitor_port &&
		strncmp(addresses, baton_monitor_listen_addresses, sizeof(addresses) - 1) == 0)
		return false;
	port = baton_monitor_port;
	strlcpy(addresses, baton_monitor_listen_addresses, sizeof(addresses));
	told[0] = '\0';
	return true;
}

bool
baton_monitor_look(void)
{
	bool		is_another = false;

	if (has_changed())
		start_at_us = 0;
	if (monitor.pid != 0)
	{
		if (has_ended())
			is_another = true;
		else if (baton_monitor_port == 0 || !is_where_it_should_be())
		{
			ereport(LOG,
					(errmsg("pg_baton's monitor (PID %d) is ended, as the configuration has changed",
							(int) monitor.pid)));
			end();
			is_another = true;
		}
	}
	if (monitor.pid == 0 && baton_monitor_port != 0 && baton_ms_until(start_at_us) <= 0)
	{
		start();
		is_another = is_another || monitor.pid != 0;
	}
	return is_another;
}

long
baton_monitor_next_ms(void)
{
	return baton_monitor_port == 0 || monitor.pid != 0 ? -1 : Max(baton_ms_until(start_at_us), 1);
}

int
baton_monitor_channel(void)
{
	return monitor.channel;
}

/* ----------------------------------------------------------------
 *		What it asks.
 * ----------------------------------------------------------------
 */

/*
 * What the kernel says of the dispatcher's process: the monitor itself may not
 * look (confine.rs).  The size of the directory is the number of descriptors
 * from Linux 6.2 on, and 0 before.
 */
static void
look_at_process(int pid, BatonServerAnswer *said)
{
	char		path[64];
	struct stat status;
	struct rlimit limit;
	FILE	   *file;
	unsigned long long pages;

	if (pid == 0)
		return;
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	if (stat(path, &status) == 0)
		said->descriptors = (uint64) status.st_size;
	if (prlimit(pid, RLIMIT_NOFILE, NULL, &limit) == 0)
		said->descriptors_most = (uint64) limit.rlim_cur;
	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	file = fopen(path, "re");
	if (file == NULL)
		return;
	if (fscanf(file, "%*u %llu", &pages) == 1)
		said->resident_bytes = (uint64) pages * (uint64) sysconf(_SC_PAGESIZE);
	fclose(file);
}

/* Sends the answer, with the connection unless that is -1; never waits. */
static bool
send_answer(StringInfo answer, uint64 number, int connection)
{
	BatonFrameHeader frame = {
		.kind = BATON_MSG_SERVER_ANSWER,.length = (uint32) answer->len,.session = number
	};
	struct iovec parts[2] = {
		{.iov_base = &frame,.iov_len = sizeof(frame)},
		{.iov_base = answer->data,.iov_len = answer->len}
	};
	union
	{
		char		bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	}			control = {{0}};
	struct msghdr message = {.msg_iov = parts,.msg_iovlen = 2};

	if (connection >= 0)
	{
		struct cmsghdr *header;

		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &connection, sizeof(int));
	}
	return sendmsg(monitor.channel, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static bool
answer_question(const BatonIncoming *incoming, int dispatcher_pid)
{
	BatonWireReader in = baton_incoming_reader(incoming);
	bool		wants_connection = baton_wire_read_u8(&in) != 0;
	BatonProgramFile program = BatonControlMemory->program;
	BatonServerAnswer said;
	StringInfoData answer;
	struct ucred peer;
	int			connection = -1;
	bool		sent;

	if (incoming->frame.kind != BATON_MSG_SERVER_QUESTION || in.bad || in.at != in.end)
		return false;
	if (wants_connection)
	{
		connection = baton_dispatcher_connect(&peer);
		if (connection >= 0 && !baton_worker_hello(connection, BATON_MSG_HELLO_MONITOR))
		{
			close(connection);
			connection = -1;
		}
	}
	/* any process of the server may have written there */
	program.version[sizeof(program.version) - 1] = '\0';
	program.build[sizeof(program.build) - 1] = '\0';
	said = (BatonServerAnswer)
	{
		.in_recovery = RecoveryInProgress() ? 1 : 0,
			.is_stopping = baton_server_is_stopping() ? 1 : 0,
			.dispatcher_starts = BatonControlMemory->dispatcher_starts,
			.server_version = PG_VERSION,
			.version = PG_BATON_VERSION,
			.dispatcher_version = (const char *) program.version,
			.dispatcher_build = (const char *) program.build
	};
	look_at_process(dispatcher_pid, &said);
	initStringInfo(&answer);
	baton_write_server_answer(&answer, &said);
	sent = send_answer(&answer, incoming->frame.session, connection);
	pfree(answer.data);
	if (connection >= 0)
		close(connection);
	return sent;
}

void
baton_monitor_answer(int dispatcher_pid)
{
	for (int i = 0; i < QUESTIONS_A_ROUND && monitor.channel >= 0; i++)
	{
		BatonIncoming incoming;
		BatonReceived received = baton_channel_receive(monitor.channel, &incoming);

		if (received == BATON_RECEIVED_NOTHING)
			return;
		/* it has none to send */
		baton_incoming_close(&incoming);
		if (received == BATON_RECEIVED_CLOSED || !answer_question(&incoming, dispatcher_pid))
		{
			/* it ends, or is none of ours: has_ended() says how */
			(void) kill(monitor.pid, SIGKILL);
			return;
		}
	}
}
