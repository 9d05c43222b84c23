/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		The background worker that starts, replaces and ends the dispatcher and
 *		answers its questions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "libpq/libpq.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/postmaster.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/procsignal.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"
#include "utils/relcache.h"

#include "baton_shared.h"
#include "catalog_watch.h"
#include "child.h"
#include "dispatcher_link.h"
#include "hba_match.h"
#include "launcher.h"
#include "login.h"
#include "majors.h"
#include "monitor.h"
#include "parameters.h"
#include "parameters_message.h"
#include "pg_hba.h"
#include "pool_settings.h"
#include "program.h"

/* ----------------------------------------------------------------
 *		The background worker that keeps a dispatcher running and answers its
 *		questions.
 *
 * The dispatcher cannot read catalogs and configuration files; the launcher
 * reads them for it.  Over one channel (SOCK_SEQPACKET) the launcher sends
 * PARAMETERS, first of all and after each reload, and answers each
 * LOGIN_QUESTION.  It is connected to no database.
 *
 * Invariants:
 * - the launcher has at most one dispatcher at a time, and sends it
 *   PARAMETERS before anything else;
 * - if the launcher ends, the dispatcher does not: sessions go on, and the
 *   next launcher adopts it.  Only if the server is stopping is the
 *   dispatcher told so, and if the postmaster is gone the launcher sees that
 *   it ends.
 * - no question can end the launcher: errors become refusals (login.c).
 */

/* The number of questions answered before signals and reloads are served. */
#define QUESTIONS_A_ROUND 64

/*
 * A dispatcher that ran for less than this died "quickly"; the next start is
 * then delayed, each time twice as long.  One that has begun its event loop
 * has started well, and its sessions wait for the next.
 */
#define QUICK_DEATH_US (10 * USECS_PER_SEC)
#define QUICK_DEATH_BEGUN_US USECS_PER_SEC
#define FIRST_DELAY_MS 100
#define LONGEST_DELAY_MS 5000

/*
 * A dispatcher whose event loop makes no progress in so many looks in a row is
 * hung.  They take baton_hang_limit_ms; a dispatcher that has not begun its
 * event loop, and may wait for a name server, has so many times as long.
 */
#define LOOKS 5
#define LOOKS_AT_START 6

/* Less CPU time in a second than this, in us: a process that cannot run. */
#define STARVED_US 10000

/* What the launcher has seen of a dispatcher's progress. */
typedef struct Progress
{
	int64		look_at_us;		/* when it looks next */
	int64		since_us;		/* when it last saw progress */
	uint64		beat;			/* CONTROL's at that time */
	int64		cpu_us;			/* CPU time of the process at that time */
	int			looks;			/* without progress */
	bool		told;			/* that the process is left alone */
} Progress;

PGDLLEXPORT void baton_launcher_main(Datum argument);
PGDLLEXPORT void baton_index_reader_main(Datum argument);

static BatonDispatcher dispatcher = {.pid = 0,.adopted = -1,.channel = -1};
static int64 started_at_us = 0; /* start of the current dispatcher */
static int64 start_at_us = 0;	/* start of the next, once there is none */
static int	delay_ms = 0;		/* the last delay before a start */
static Progress progress = {0}; /* of the current dispatcher */
static WaitEventSet *events = NULL;

void
baton_worker_register(const char *name, const char *function, int flags)
{
	BackgroundWorker worker;

	/* pg_upgrade needs its servers for itself: no client may log in */
	if (IsBinaryUpgrade)
		return;
	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, name, BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "pg_baton", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
	worker.bgw_flags = flags;
	/* as soon as clients may log in, on a standby as well */
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

void
baton_launcher_register(void)
{
	baton_worker_register("pg_baton launcher", BATON_LAUNCHER_FUNCTION,
						  BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION);
}

static void
send_shutdown(uint32 whole_server)
{
	(void) baton_channel_send(dispatcher.channel, BATON_MSG_SHUTDOWN, 0,
							  (const char *) &whole_server, sizeof(whole_server));
}

/*
 * Called whenever the launcher exits: informs the dispatcher if the server is
 * stopping.  A dispatcher ends with its postmaster.  One that is stopped does
 * not, and would keep the port from the next server: it is killed.
 */
static void
tell_shutdown(int code, Datum argument)
{
	if (dispatcher.channel < 0)
		return;
	if (!PostmasterIsAlive())
		baton_dispatcher_end(&dispatcher, BATON_ENDED_BY_ITSELF);
	else if (baton_server_is_stopping())
		send_shutdown(1);
}

/* Creates the wait set, again for each new channel. */
static void
watch(void)
{
	if (events != NULL)
		FreeWaitEventSet(events);
	events = baton_wait_set_create(4);
	AddWaitEventToSet(events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	if (dispatcher.channel >= 0)
		AddWaitEventToSet(events, WL_SOCKET_READABLE, dispatcher.channel, NULL, NULL);
	if (baton_monitor_channel() >= 0)
		AddWaitEventToSet(events, WL_SOCKET_READABLE, baton_monitor_channel(), NULL, NULL);
}

static void
lose_dispatcher(uint32 reason)
{
	bool		had_begun = baton_dispatcher_has_begun();
	bool		quick = baton_monotonic_us() - started_at_us <
	(had_begun ? QUICK_DEATH_BEGUN_US : QUICK_DEATH_US);

	if (baton_dispatcher_end(&dispatcher, reason) && had_begun)
		quick = false;			/* it was asked to end */
	delay_ms = !quick ? 0 : delay_ms == 0 ? FIRST_DELAY_MS : Min(delay_ms * 2, LONGEST_DELAY_MS);
	start_at_us = baton_monotonic_us() + (int64) delay_ms * 1000;
	watch();
}

static void
send_parameters(bool is_start)
{
	BatonControlMemory->force_migration = baton_force_migration ? 1 : 0;
	if (dispatcher.channel >= 0 &&
		!(baton_key_passphrase_send(dispatcher.channel, is_start) &&
		  baton_parameters_send(dispatcher.channel)))
		lose_dispatcher(BATON_ENDED_BY_ITSELF);
}

/* CPU time that a process has used, in us. */
static int64
cpu_time_us(int pid)
{
	clockid_t	clock;
	struct timespec used;

	if (clock_getcpuclockid((pid_t) pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
		return 0;
	return used.tv_sec * USECS_PER_SEC + used.tv_nsec / 1000;
}

/*
 * Adopts or starts a dispatcher.  Not while the server is stopping: a smart
 * shutdown waits for sessions long after the dispatcher has closed its port.
 */
static void
get_dispatcher(void)
{
	BatonControlHeader *control = BatonControlMemory;
	uint32		wanted = pg_atomic_read_u32(baton_atomic_u32(control->restarts_wanted));
	bool		is_adopted;

	started_at_us = baton_monotonic_us();
	if (baton_server_is_stopping() ||
		(!(is_adopted = baton_dispatcher_adopt(&dispatcher)) &&
		 !baton_dispatcher_spawn(&dispatcher)))
	{
		start_at_us = started_at_us + LONGEST_DELAY_MS * INT64CONST(1000);
		return;
	}
	if (!is_adopted)
		control->restarts_done = wanted;
	progress = (Progress)
	{
		.look_at_us = started_at_us,.since_us = started_at_us,.beat = control->beat_us
	};
	progress.cpu_us = cpu_time_us(dispatcher.pid);
	watch();
	send_parameters(!is_adopted);
}

/* ----------------------------------------------------------------
 *		A dispatcher that hangs, or is to be replaced.
 *
 * The event loop writes the time into CONTROL, at least once a second.  The
 * launcher looks at it a few times within the limit, and kills a process that
 * has made no progress in any of these looks.  Time that passes while the
 * launcher cannot run either (a suspended or overloaded machine) is not a look.
 *
 * A process that waits for the disk, or for a CPU, or is being debugged, is
 * left alone: another one would do no better, or is not wanted.
 */

/* What a file of proc(5) says of a process; empty if it cannot be read. */
static void
read_proc(int pid, const char *name, char *content, Size size)
{
	char		path[64];
	ssize_t		length = -1;
	int			fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
	{
		length = read(fd, content, size - 1);
		close(fd);
	}
	content[Max(length, 0)] = '\0';
}

/*
 * Why a process without progress is left alone, or NULL.  *state says what it
 * does, in the words of proc(5).
 */
static const char *
why_left_alone(int pid, int64 silent_us, char *state, Size size)
{
	char		content[4096];
	const char *line;

	strlcpy(state, "unknown", size);
	read_proc(pid, "status", content, sizeof(content));

	line = strstr(content, "\nState:\t");
	if (line != NULL)
	{
		line += strlen("\nState:\t");
		strlcpy(state, line, Min(size, strcspn(line, "\n") + 1));
	}
	line = strstr(content, "\nTracerPid:\t");
	if (line != NULL && atoi(line + strlen("\nTracerPid:\t")) != 0)
		return "it is being debugged";
	if (state[0] == 'D')
		return "it waits for the kernel";
	if (state[0] == 'R' &&
		cpu_time_us(pid) - progress.cpu_us < silent_us / USECS_PER_SEC * STARVED_US)
		return "it gets no CPU";
	return NULL;
}

static void
look_at_dispatcher(void)
{
	int64		now = baton_monotonic_us();
	int64		silent_us = now - progress.since_us;
	uint64		beat = pg_atomic_read_u64(baton_atomic_u64(BatonControlMemory->beat_us));
	int			looks = beat != 0 ? LOOKS : LOOKS * LOOKS_AT_START;
	const char *excuse;
	char		state[64];

	if (dispatcher.channel < 0 || baton_hang_limit_ms == 0 || now < progress.look_at_us)
		return;
	progress.look_at_us = now + baton_hang_limit_ms * INT64CONST(1000) / LOOKS;
	if (beat != progress.beat)
	{
		progress.beat = beat;
		progress.since_us = now;
		progress.cpu_us = cpu_time_us(dispatcher.pid);
		progress.looks = 0;
		progress.told = false;
		return;
	}
	if (++progress.looks < looks)
		return;

	excuse = why_left_alone(dispatcher.pid, silent_us, state, sizeof(state));
	if (excuse == NULL)
	{
		ereport(LOG,
				(errmsg("pg_baton's dispatcher (PID %d) has made no progress for %d seconds, killing it",
						dispatcher.pid, (int) (silent_us / USECS_PER_SEC)),
				 errdetail("Its state was \"%s\".", state)));
		baton_dispatcher_kill(&dispatcher);
		lose_dispatcher(BATON_ENDED_HUNG);
	}
	else if (!progress.told)
	{
		progress.told = true;
		ereport(LOG,
				(errmsg("pg_baton's dispatcher (PID %d) has made no progress for %d seconds, and is left alone: %s",
						dispatcher.pid, (int) (silent_us / USECS_PER_SEC), excuse)));
	}
}

/* Replaces the dispatcher if a process has asked for that. */
static void
restart_if_wanted(void)
{
	static uint32 seen = 0;
	uint32		wanted = pg_atomic_read_u32(baton_atomic_u32(BatonControlMemory->restarts_wanted));

	/* if no dispatcher can be started, the request is not repeated */
	if (wanted == BatonControlMemory->restarts_done || wanted == seen)
		return;
	seen = wanted;
	if (dispatcher.channel >= 0)
	{
		ereport(LOG,
				(errmsg("pg_baton's dispatcher (PID %d) is replaced, as asked", dispatcher.pid)));
		send_shutdown(0);
		lose_dispatcher(BATON_ENDED_ASKED);
	}
	delay_ms = 0;
	start_at_us = baton_monotonic_us();
}

static void
reload(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	baton_hba_load();
	baton_login_rules_changed();
	send_parameters(false);
}

/*
 * Handles one frame.  Returns false if pg_baton's dispatcher cannot have sent
 * it.
 */
static bool
handle_frame(const BatonIncoming *incoming)
{
	static StringInfoData answer = {NULL, 0, 0, 0};

	if (answer.data == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&answer);
		MemoryContextSwitchTo(old_context);
	}
	resetStringInfo(&answer);
	switch (incoming->frame.kind)
	{
		case BATON_MSG_LOGIN_QUESTION:
			if (!baton_login_answer(incoming->payload, incoming->frame.length, &answer))
			{
				ereport(LOG,
						(errmsg("pg_baton's dispatcher sent a question that is not understood")));
				return false;
			}
			return baton_channel_send(dispatcher.channel, BATON_MSG_LOGIN_ANSWER,
									  incoming->frame.session, answer.data, answer.len);

		case BATON_MSG_POOL_QUESTION:
			if (!baton_pool_settings_answer(incoming->payload, incoming->frame.length, &answer))
				return false;
			return baton_channel_send(dispatcher.channel, BATON_MSG_POOL_SETTINGS, 0,
									  answer.data, answer.len);

		case BATON_MSG_REFUSED:
			ereport(LOG,
					(errmsg("pg_baton's dispatcher refused the launcher")));
			return false;

		default:
			ereport(LOG,
					(errmsg("pg_baton's dispatcher sent a message of unknown type %u",
							incoming->frame.kind)));
			return false;
	}
}

/*
 * Answers pending questions, up to a bound; any left wake the launcher again
 * at once.
 */
static void
answer_questions(void)
{
	for (int i = 0; i < QUESTIONS_A_ROUND; i++)
	{
		BatonIncoming incoming;
		BatonReceived received = baton_channel_receive(dispatcher.channel, &incoming);

		if (received == BATON_RECEIVED_NOTHING)
			return;
		/* no message of the dispatcher to the launcher carries descriptors */
		baton_incoming_close(&incoming);
		if (received == BATON_RECEIVED_CLOSED || !handle_frame(&incoming))
		{
			lose_dispatcher(BATON_ENDED_BY_ITSELF);
			return;
		}
	}
}

/* What a process does between transactions, as PostgresMain when it is idle. */
static void
housekeeping(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
		reload();
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
	(void) pgstat_report_stat(false);
}

/*
 * At its exit it writes the descriptions of the shared indexes; see
 * describe_indexes().
 */
void
baton_index_reader_main(Datum argument)
{
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(Template1DbOid, InvalidOid, BGWORKER_BYPASS_ALLOWCONN);
}

/*
 * A process without a database cannot read the descriptions of indexes in the
 * catalogs, but only in a file that other processes have written, which a
 * starting server removes (RelationCacheInitializePhase2() in relcache.c).
 * Without it each login would scan all of pg_authid.  So a worker with a
 * database runs first.
 */
static void
describe_indexes(void)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	if (access("global/" RELCACHE_INIT_FILENAME, F_OK) == 0)
		return;
	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "pg_baton index reader", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "pg_baton index reader", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "pg_baton", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "baton_index_reader_main", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
		(void) WaitForBackgroundWorkerShutdown(handle);
}

void
baton_launcher_main(Datum argument)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, SIG_IGN);	/* there is no query to cancel */
	BackgroundWorkerUnblockSignals();

	describe_indexes();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	/*
	 * In a worker without a database InitPostgres returns before this call.
	 * Without it the cached memberships of roles would never be invalidated
	 * (roles_is_member_of in acl.c).  It looks into a catalog cache, which
	 * may have to be set up: in a transaction.
	 */
	StartTransactionCommand();
	initialize_acl();
	CommitTransactionCommand();

	before_shmem_exit(tell_shutdown, (Datum) 0);
	baton_hba_init();
	baton_trusted_hba_check();
	baton_hba_load();

	/*
	 * a process that died with the server may have committed without raising
	 * the number
	 */
	baton_login_changed();
	BatonControlMemory->force_migration = baton_force_migration ? 1 : 0;
	BatonControlMemory->launcher_pid = MyProcPid;
	watch();
	start_at_us = baton_monotonic_us();

	for (;;)
	{
		WaitEvent	event;
		long		timeout_ms = -1;
		long		monitor_ms;

		/*
		 * Without a message, unlike CHECK_FOR_INTERRUPTS.  The exit code is
		 * not 0, or the launcher would not be restarted.
		 */
		if (ProcDiePending)
			proc_exit(1);
		housekeeping();
		restart_if_wanted();
		look_at_dispatcher();
		if (baton_monitor_look())
			watch();

		if (dispatcher.channel >= 0 && baton_hang_limit_ms > 0)
			timeout_ms = Max(baton_ms_until(progress.look_at_us), 1);
		else if (dispatcher.channel < 0)
		{
			timeout_ms = baton_ms_until(start_at_us);
			if (timeout_ms <= 0)
			{
				get_dispatcher();
				continue;
			}
		}

		monitor_ms = baton_monitor_next_ms();
		if (monitor_ms >= 0)
			timeout_ms = timeout_ms < 0 ? monitor_ms : Min(timeout_ms, monitor_ms);

		if (WaitEventSetWait(events, timeout_ms, &event, 1, PG_WAIT_EXTENSION) == 0)
			continue;
		if (event.events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if (event.events & WL_SOCKET_READABLE)
		{
			if (dispatcher.channel >= 0)
				answer_questions();
			baton_monitor_answer(dispatcher.pid);
		}
	}
}

/* ----------------------------------------------------------------
 *		Starting, adopting and ending a dispatcher.
 *
 * The dispatcher is a separate program, started in the data directory with
 * these descriptors and no others: 0 and 1 /dev/null, 2 the server's stderr,
 * 3 the channel, 4 the CONTROL memory.  It runs in its own session (setsid),
 * so that a signal to the server's process group does not reach it; it
 * watches the postmaster by itself.  Its oom_score_adj is the postmaster's,
 * where the kernel permits that (protect_from_oom).
 *
 * Between fork and exec the child calls only what is safe after a fork:
 * everything that allocates, or finds the program, comes before.
 */


/* The longest a send may take before the dispatcher counts as hung. */
#define SEND_TIMEOUT_S 10

/* The longest a process may take to end before it is killed. */
#define END_WAIT_MS 2000
#define END_STEP_MS 10

/*
 * The postmaster's oom_score_adj, "" if it cannot be read.  Where
 * PG_OOM_ADJUST_FILE is set, fork_process() (fork_process.c, 15 to 18) has
 * raised this process's, so that the kernel ends a backend before the
 * postmaster.
 */
static void
read_oom_score(char *score, Size size)
{
	char		path[64];
	ssize_t		length = -1;
	int			fd;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int) PostmasterPid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
	{
		length = read(fd, score, size - 1);
		close(fd);
	}
	score[Max(length, 0)] = '\0';
}

bool
baton_dispatcher_spawn(BatonDispatcher *dispatcher)
{
	BatonControlHeader *control = BatonControlMemory;
	BatonProgram program;
	char	   *arguments[] = {"baton-dispatcher", NULL};
	char		title[MAXPGPATH];
	char		oom_score[16];
	struct timeval send_timeout = {.tv_sec = SEND_TIMEOUT_S,.tv_usec = 0};
	int			pair[2];
	int			descriptors[2];
	pid_t		pid;

	if (!baton_program_choose(&program))
		return false;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
	{
		ereport(LOG,
				(errcode_for_socket_access(),
				 errmsg("could not create the channel to pg_baton's dispatcher: %m")));
		return false;
	}
	(void) setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof(send_timeout));
	descriptors[0] = pair[1];
	descriptors[1] = BatonControlFd;

	/* before the fork, since it may allocate */
	if (baton_dispatcher_log[0] != '\0')
		setenv("BATON_LOG", baton_dispatcher_log, 1);
	else
		unsetenv("BATON_LOG");

	/*
	 * as in the titles of the server's processes (init_ps_display,
	 * ps_status.c)
	 */
	if (cluster_name[0] != '\0')
	{
		snprintf(title, sizeof(title), "baton-dispatcher: %s", cluster_name);
		arguments[0] = title;
	}

	read_oom_score(oom_score, sizeof(oom_score));

	/* the dispatcher maps what the header describes */
	baton_control_restore();
	pg_atomic_write_u64(baton_atomic_u64(control->beat_us), 0);

	pid = baton_program_fork(&program, arguments, oom_score, false,
							 descriptors, lengthof(descriptors));
	if (pid < 0)
		ereport(LOG,
				(errmsg("could not start pg_baton's dispatcher: %m")));
	close(pair[1]);
	if (pid < 0)
	{
		close(pair[0]);
		return false;
	}

	ereport(LOG,
			(errmsg("pg_baton's dispatcher started with process ID %d", (int) pid),
			 program.file.build[0] == '\0' ? errdetail("Program \"%s\".", program.path) :
			 errdetail("Program \"%s\", version %s, build %s.", program.path,
					   (const char *) program.file.version, (const char *) program.file.build)));
	control->program = program.file;
	control->dispatcher_started_at = GetCurrentTimestamp();
	control->dispatcher_starts++;
	dispatcher->pid = (int) pid;
	dispatcher->adopted = -1;
	dispatcher->channel = pair[0];
	ReserveExternalFD();
	return true;
}

/*
 * Has the process ended?  Its pidfd is readable from then on, reaped or not.
 */
static bool
process_ended(int process)
{
	struct pollfd ended = {.fd = process,.events = POLLIN};

	return poll(&ended, 1, 0) == 1;
}

/* Has the other end of a connection been closed? */
static bool
is_closed(int fd)
{
	struct pollfd closed = {.fd = fd,.events = 0};

	return poll(&closed, 1, 0) == 1;
}

/*
 * Connects to the process that listens on the control socket.  Returns the
 * connection, and which process that is: its pidfd, or -1 if it cannot be had.
 */
static int
connect_to_dispatcher(struct ucred *peer, int *process)
{
	socklen_t	length = sizeof(*peer);
	int			fd = baton_channel_connect();

	*process = -1;
	if (fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &length) == 0 &&
		peer->uid == geteuid())
		*process = pidfd_open(peer->pid, 0);
	return fd;
}

/*
 * When a process started, in clock ticks since the machine did; 0 if it cannot
 * be read.  The name, in parentheses, may contain anything.
 */
static unsigned long long
started_ticks(int pid)
{
	char		content[1024];
	const char *at;
	unsigned long long ticks = 0;

	read_proc(pid, "stat", content, sizeof(content));

	at = strrchr(content, ')');
	/* the 22nd field; the third follows the name */
	for (int field = 2; at != NULL && field < 22; field++)
		at = strchr(at + 1, ' ');
	if (at != NULL)
		ticks = strtoull(at, NULL, 10);
	return ticks;
}

/*
 * A dispatcher ends with its server, but one that is stopped does not, and
 * keeps the ports.  The control socket lies in the data directory, so a process
 * that listens there and is older than the postmaster is an earlier server's.
 */
static void
end_predecessor(void)
{
	struct ucred peer;
	int			process;
	int			fd;
	unsigned long long started;

	if (access(BATON_CONTROL_SOCKET, F_OK) != 0)
		return;
	fd = connect_to_dispatcher(&peer, &process);
	if (process >= 0)
	{
		started = started_ticks(peer.pid);
		if (started == 0 || process_ended(process) ||
			started >= started_ticks(PostmasterPid))
			started = 0;
		for (int waited_ms = 0; started != 0 && waited_ms < 2 * END_WAIT_MS; waited_ms += END_STEP_MS)
		{
			if (process_ended(process))
				break;
			if (waited_ms == END_WAIT_MS)
			{
				ereport(LOG,
						(errmsg("the dispatcher of an earlier server (PID %d) still runs, killing it",
								(int) peer.pid)));
				(void) pidfd_send_signal(process, SIGKILL, NULL, 0);
			}
			pg_usleep(END_STEP_MS * 1000L);
		}
		close(process);
	}
	if (fd >= 0)
		close(fd);
}

/*
 * CONTROL says whether there has been a dispatcher since the server started,
 * in two words, as any process of the server could have written one of them.
 * The control socket says whether there is one now, and the kernel which
 * process it is: only that process may be signalled.
 */
bool
baton_dispatcher_adopt(BatonDispatcher *dispatcher)
{
	struct timeval send_timeout = {.tv_sec = SEND_TIMEOUT_S,.tv_usec = 0};
	struct ucred peer;
	int			process = -1;
	int			fd;

	if (BatonControlMemory->dispatcher_pid == 0 && BatonControlMemory->dispatcher_epoch == 0)
	{
		end_predecessor();
		return false;
	}
	fd = connect_to_dispatcher(&peer, &process);
	if (fd < 0)
		return false;

	/*
	 * if it has not ended since, it is the same process: no live process's
	 * number is reused
	 */
	if (process < 0 || process_ended(process) || is_closed(fd))
	{
		if (process >= 0)
			close(process);
		close(fd);
		return false;
	}
	(void) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof(send_timeout));

	if (!baton_worker_hello(fd, BATON_MSG_HELLO_LAUNCHER))
	{
		close(fd);
		close(process);
		return false;
	}

	ereport(LOG,
			(errmsg("pg_baton's dispatcher with process ID %d taken over", (int) peer.pid)));
	dispatcher->pid = (int) peer.pid;
	dispatcher->adopted = process;
	dispatcher->channel = fd;
	ReserveExternalFD();
	ReserveExternalFD();
	return true;
}

/*
 * Has the process ended?  If it was a child of the launcher, *status says how.
 */
static bool
has_ended(const BatonDispatcher *dispatcher, int *status)
{
	pid_t		pid;

	if (dispatcher->adopted >= 0)
		return process_ended(dispatcher->adopted);
	pid = waitpid((pid_t) dispatcher->pid, status, WNOHANG);
	return pid == (pid_t) dispatcher->pid || (pid < 0 && errno == ECHILD);
}

static void
report_end(const BatonDispatcher *dispatcher, int status)
{
	if (dispatcher->adopted >= 0)
		ereport(LOG,
				(errmsg("pg_baton's dispatcher (PID %d) has ended", dispatcher->pid)));
	else if (WIFEXITED(status) && WEXITSTATUS(status) == BATON_EXIT_PORT_TAKEN)
	{
		char	   *collision = baton_port_collision();

		ereport(LOG,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("pg_baton's dispatcher could not listen on port %d", baton_port),
				 collision != NULL ?
				 errhint("The server itself listens there: change %s, and restart the server.",
						 collision) :
				 errhint("Is another program already using that port? If not, wait a few seconds; the launcher tries again.")));
		if (collision != NULL)
			pfree(collision);
	}
	else
	{
		char	   *how = wait_result_to_str(status);

		ereport(LOG,
				(errmsg("pg_baton's dispatcher (PID %d) has ended: %s", dispatcher->pid, how)));
		pfree(how);
	}
}

bool
baton_dispatcher_has_begun(void)
{
	return pg_atomic_read_u64(baton_atomic_u64(BatonControlMemory->beat_us)) != 0;
}

void
baton_dispatcher_kill(const BatonDispatcher *dispatcher)
{
	/* the number of a child that is not reaped cannot be reused */
	if (dispatcher->adopted >= 0)
		(void) pidfd_send_signal(dispatcher->adopted, SIGKILL, NULL, 0);
	else
		(void) kill((pid_t) dispatcher->pid, SIGKILL);
}

bool
baton_dispatcher_end(BatonDispatcher *dispatcher, uint32 reason)
{
	BatonControlHeader *control = BatonControlMemory;
	int			status = 0;
	bool		killed = false;
	bool		is_deliberate;

	close(dispatcher->channel);
	ReleaseExternalFD();

	/*
	 * A dispatcher that only lost its launcher would go on and hold the port.
	 */
	for (int waited_ms = 0; !has_ended(dispatcher, &status); waited_ms += END_STEP_MS)
	{
		if (waited_ms >= END_WAIT_MS && !killed)
		{
			ereport(LOG,
					(errmsg("pg_baton's dispatcher (PID %d) does not answer, killing it",
							dispatcher->pid)));
			baton_dispatcher_kill(dispatcher);
			killed = true;
		}
		if (waited_ms >= 2 * END_WAIT_MS)
			break;				/* only the kernel can end it now */
		pg_usleep(END_STEP_MS * 1000L);
	}
	report_end(dispatcher, status);

	control->end_reason = reason == BATON_ENDED_BY_ITSELF && dispatcher->adopted >= 0 ?
		BATON_ENDED_UNKNOWN : reason;
	control->end_status = (uint32) status;
	control->ended_at = GetCurrentTimestamp();
	is_deliberate = dispatcher->adopted < 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;

	if (dispatcher->adopted >= 0)
	{
		close(dispatcher->adopted);
		ReleaseExternalFD();
	}

	/* the dispatcher's own word; a killed dispatcher could not clear it */
	if (BatonControlMemory->dispatcher_pid == (uint32) dispatcher->pid)
		BatonControlMemory->dispatcher_pid = 0;
	*dispatcher = BATON_NO_DISPATCHER;
	return is_deliberate;
}

/* ----------------------------------------------------------------
 *		The passphrase of the server's key, for the dispatcher.
 *
 * The dispatcher starts no program (sys/process.rs), so the launcher runs
 * ssl_passphrase_command for it, with the server's own function.  It sends
 * the output before each PARAMETERS message that makes the dispatcher load
 * the key.  The launcher alone determines which command that is.
 *
 * run_ssl_passphrase_command() (be-secure-common.c, 15 to 18) reads the first
 * line of the command's output, without its end, and logs a failure; it needs
 * no transaction.  A slow command delays the launcher, as it does the
 * postmaster.
 */

/* The size of OpenSSL's own buffer for a passphrase (PEM_BUFSIZE). */
#define PASSPHRASE_SIZE 1024

/* The longest part of a key file that is examined. */
#define KEY_FILE_SIZE (64 * 1024)

/*
 * OpenSSL's prompt for a passphrase (ssl_external_passwd_cb,
 * be-secure-openssl.c).
 */
#define PROMPT "Enter PEM pass phrase:"

/*
 * Both PEM markers contain this word: "BEGIN ENCRYPTED PRIVATE KEY" (PKCS #8),
 * and "Proc-Type: 4,ENCRYPTED" (RFC 1421).  Base64 contains it only by chance;
 * then the command is run although its answer is not needed.
 */
static bool
is_encrypted(const char *file)
{
	char	   *content = palloc(KEY_FILE_SIZE);
	int			fd = open(file, O_RDONLY | O_CLOEXEC);
	ssize_t		length = fd >= 0 ? read(fd, content, KEY_FILE_SIZE) : -1;
	bool		found = length > 0 && memmem(content, length, "ENCRYPTED", strlen("ENCRYPTED")) != NULL;

	if (fd >= 0)
		close(fd);
	explicit_bzero(content, KEY_FILE_SIZE);
	pfree(content);
	return found;
}

bool
baton_key_passphrase_send(int channel, bool is_start)
{
	char		passphrase[PASSPHRASE_SIZE];
	int			length;
	bool		sent;

	if (!EnableSSL || ssl_passphrase_command[0] == '\0' ||
		(!is_start && !ssl_passphrase_command_supports_reload) ||
		!is_encrypted(ssl_key_file))
		return true;
	length = run_ssl_passphrase_command(PROMPT, false, passphrase, sizeof(passphrase));

	/*
	 * without a passphrase nothing is sent, and the dispatcher does not wait
	 * for one
	 */
	sent = length <= 0 ||
		baton_channel_send(channel, BATON_MSG_PASSPHRASE, 0, passphrase, length);
	explicit_bzero(passphrase, sizeof(passphrase));
	return sent;
}
