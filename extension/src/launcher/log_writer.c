/*-------------------------------------------------------------------------
 *
 * log_writer.c
 *		The background worker that writes the dispatcher's lines to the
 *		server's log.
 *
 * The dispatcher sends each line as a frame; ereport() writes it here, so the
 * formats, destinations and parameters of the log are the server's own.  A
 * line about a client has that client's user, database, address and process
 * ID, which this process takes on while it writes the line.
 *
 * A log may take nothing for any time (a stopped collector).  So this process
 * does nothing else: the launcher answers logins meanwhile, and the
 * dispatcher keeps a bounded number of lines, and counts the others.  Without
 * a log writer the dispatcher writes to its standard error.
 *
 * The dispatcher is not trusted: a frame is read within its bounds, a text is
 * never a format, and a name cannot begin a line of its own.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq-be.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "baton_shared.h"
#include "child.h"
#include "dispatcher_link.h"
#include "launcher.h"
#include "log_writer.h"
#include "majors.h"

PGDLLEXPORT void baton_log_writer_main(Datum argument);

/*
 * How often to try to connect: a dispatcher starts within a second.  One that
 * ends the connection soon is not tried so often.
 */
#define SOON_MS 10
#define LATER_MS 300
#define SOON_FOR_US (3 * USECS_PER_SEC)
#define SOON_ENDED_US USECS_PER_SEC

/* For how long a stopping server's last lines are awaited. */
#define LAST_LINES_US (5 * USECS_PER_SEC)

/* Lines written before signals and reloads are served. */
#define LINES_A_ROUND 64

/* The level of the line that is being written; 0: it is this process's own. */
static int	level_of_line = 0;

void
baton_log_writer_register(void)
{
	baton_worker_register("pg_baton log writer", "baton_log_writer_main", BGWORKER_SHMEM_ACCESS);
}

/*
 * ereport() would end the process at FATAL, and jump at ERROR: so it is called
 * for LOG, and the level changed here, before EmitErrorReport() (elog.c) reads
 * it.  errfinish() has read it before.
 */
void
baton_log_writer_level(ErrorData *edata)
{
	if (level_of_line != 0)
		edata->elevel = level_of_line;
}

static int
level_of(uint8 level)
{
	switch (level)
	{
		case BATON_LOG_WARNING:
			return WARNING;
		case BATON_LOG_ERROR:
			return ERROR;
		case BATON_LOG_FATAL:
			return FATAL;
		default:
			return LOG;
	}
}

/* As is_log_level_output (elog.c), which is static. */
static bool
is_wanted(int level)
{
	if (level == LOG)
		return log_min_messages == LOG || log_min_messages <= ERROR;
	if (log_min_messages == LOG)
		return level >= FATAL;
	return level >= log_min_messages;
}

/*
 * A name for log_line_prefix, which the server prints as it is: a control
 * character could begin a line.  Names are truncated as in
 * ProcessStartupPacket.  "" is unknown.
 */
static char *
name_for_prefix(const char *name)
{
	char	   *clean;

	if (name[0] == '\0')
		return NULL;
	clean = pnstrdup(name, NAMEDATALEN - 1);
	for (char *at = clean; *at != '\0'; at++)
		if ((unsigned char) *at < ' ' || *at == 0x7f)
			*at = '?';
	return clean;
}

static int
sqlstate_of(const char *text)
{
	if (strlen(text) != 5 || strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
		return ERRCODE_SUCCESSFUL_COMPLETION;
	return MAKE_SQLSTATE(text[0], text[1], text[2], text[3], text[4]);
}

static void
report(const BatonLogLine *line)
{
	ereport(LOG,
			(errcode(sqlstate_of(line->sqlstate)),
			 errmsg_internal("%s", line->message),
			 line->detail[0] != '\0' ? errdetail_internal("%s", line->detail) : 0,
			 line->hint[0] != '\0' ? errhint("%s", line->hint) : 0));
}

/*
 * Writes the line as the client's.  log_status_format(), write_csvlog() and
 * write_jsonlog() (15 to 18) read what is set here.  Signals are blocked: from
 * 17 on a handler that finds another process ID in MyProcPid ends the process
 * (wrapper_handler in port/pqsignal.c), and SetLatch compares it.
 */
static void
report_as(const BatonLogLine *line, int dispatcher_pid)
{
	Port		port;
	Port	   *own_port = MyProcPort;
	int			own_pid = MyProcPid;
	pg_time_t	own_start = MyStartTime;
	BackendType own_type = MyBackendType;
	char	   *own_name = application_name;
	int			own_threshold = log_min_messages;
	sigset_t	all;
	sigset_t	own_mask;

	memset(&port, 0, sizeof(port));
	port.user_name = name_for_prefix(line->user);
	port.database_name = name_for_prefix(line->database);
	port.remote_host = name_for_prefix(line->host);
	port.remote_port = name_for_prefix(line->port);
	if (port.remote_port == NULL)
		port.remote_port = "";

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &own_mask);
	PG_TRY();
	{
		level_of_line = level_of(line->level);
		log_min_messages = LOG; /* is_wanted() has decided */
		MyProcPid = line->pid >= BATON_FIRST_PID && line->pid <= PG_INT32_MAX ?
			(int) line->pid : dispatcher_pid;
		if (line->is_client)
		{
			char	   *name = name_for_prefix(line->application_name);

			MyProcPort = &port;
			MyBackendType = B_BACKEND;
			application_name = name != NULL ? name : "";
			if (line->since > 0)
				MyStartTime = timestamptz_to_time_t(line->since);
		}
		report(line);
	}
	PG_FINALLY();
	{
		level_of_line = 0;
		log_min_messages = own_threshold;
		MyProcPid = own_pid;
		MyProcPort = own_port;
		MyStartTime = own_start;
		MyBackendType = own_type;
		application_name = own_name;
		sigprocmask(SIG_SETMASK, &own_mask, NULL);
	}
	PG_END_TRY();
}

/* Returns false if pg_baton's dispatcher cannot have sent this. */
static bool
write_line(const BatonIncoming *incoming, int dispatcher_pid)
{
	BatonWireReader in = baton_incoming_reader(incoming);
	BatonLogLine line;

	if (incoming->frame.kind != BATON_MSG_LOG_LINE)
		return false;
	baton_read_log_line(&in, &line);
	if (in.bad || in.at != in.end)
		return false;
	if (is_wanted(level_of(line.level)))
		report_as(&line, dispatcher_pid);
	return true;
}

/* Connects to the dispatcher; -1: it does not run. */
static int
connect_to_dispatcher(int *dispatcher_pid)
{
	struct ucred peer;
	int			fd = baton_dispatcher_connect(&peer);

	if (fd < 0)
		return -1;
	if (!baton_worker_hello(fd, BATON_MSG_HELLO_LOG))
	{
		close(fd);
		return -1;
	}
	*dispatcher_pid = (int) peer.pid;
	return fd;
}

/* Writes the lines that have come, up to a bound; false: there will be no more. */
static bool
write_lines(int fd, int dispatcher_pid)
{
	for (int i = 0; i < LINES_A_ROUND; i++)
	{
		BatonIncoming incoming;
		BatonReceived received = baton_channel_receive(fd, &incoming);

		if (received == BATON_RECEIVED_NOTHING)
			return true;
		/* no line carries descriptors */
		baton_incoming_close(&incoming);
		if (received == BATON_RECEIVED_CLOSED)
			return false;
		if (incoming.frame.kind == BATON_MSG_REFUSED)
		{
			ereport(LOG,
					(errmsg("pg_baton's dispatcher refused the log writer")));
			return false;
		}
		if (!write_line(&incoming, dispatcher_pid))
		{
			ereport(LOG,
					(errmsg("pg_baton's dispatcher sent a log line that is not understood")));
			return false;
		}
	}
	SetLatch(MyLatch);			/* there may be more */
	return true;
}

/*
 * SIGTERM is no interrupt here: lines that were sent before are written first,
 * and those of a stopping server until the dispatcher ends.
 */
void
baton_log_writer_main(Datum argument)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "pg_baton log writer",
												  ALLOCSET_SMALL_SIZES);
	int64		soon_until_us = baton_monotonic_us() + SOON_FOR_US;
	int64		connected_at_us = 0;
	int64		end_at_us = 0;
	int			fd = -1;
	int			dispatcher_pid = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGINT, SIG_IGN);
	BackgroundWorkerUnblockSignals();
	MemoryContextSwitchTo(context);

	/* as %b, in the lines of the dispatcher that are about no client */
	strlcpy(MyBgworkerEntry->bgw_type, "pg_baton dispatcher", BGW_MAXLEN);

	for (;;)
	{
		long		timeout_ms = -1;
		int			wakes = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;

		MemoryContextReset(context);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (fd < 0 && !ShutdownRequestPending)
		{
			fd = connect_to_dispatcher(&dispatcher_pid);
			connected_at_us = baton_monotonic_us();
			timeout_ms = connected_at_us < soon_until_us ? SOON_MS : LATER_MS;
		}
		if (fd >= 0)
		{
			if (!write_lines(fd, dispatcher_pid))
			{
				int64		now_us = baton_monotonic_us();

				close(fd);
				fd = -1;
				soon_until_us = now_us - connected_at_us < SOON_ENDED_US ? 0 : now_us + SOON_FOR_US;
				timeout_ms = soon_until_us != 0 ? SOON_MS : LATER_MS;
			}
			else
			{
				wakes |= WL_SOCKET_READABLE;
				timeout_ms = -1;
			}
		}
		if (ShutdownRequestPending)
		{
			if (end_at_us == 0)
				end_at_us = baton_monotonic_us() +
					(baton_server_is_stopping() ? LAST_LINES_US : 0);
			timeout_ms = baton_ms_until(end_at_us);
			/* the exit code is not 0, or the worker would not be restarted */
			if (fd < 0 || timeout_ms <= 0)
				proc_exit(1);
		}
		if (timeout_ms >= 0)
			wakes |= WL_TIMEOUT;
		(void) WaitLatchOrSocket(MyLatch, wakes, fd >= 0 ? fd : PGINVALID_SOCKET,
								 timeout_ms, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}
