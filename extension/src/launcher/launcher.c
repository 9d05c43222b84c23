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
#include "dispatcher_link.h"
#include "hba_match.h"
#include "launcher.h"
#include "login.h"
#include "majors.h"
#include "parameters.h"
#include "parameters_message.h"
#include "pg_hba.h"
#include "pool_settings.h"

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
 *   dispatcher told so.
 * - no question can end the launcher: errors become refusals (login.c).
 */

/* The number of questions answered before signals and reloads are served. */
#define QUESTIONS_A_ROUND 64

/*
 * A dispatcher that ran for less than this died "quickly"; the next start is
 * then delayed, each time twice as long.
 */
#define QUICK_DEATH_US (10 * USECS_PER_SEC)
#define FIRST_DELAY_MS 100
#define LONGEST_DELAY_MS 5000

/* The data directory's lock file (DIRECTORY_LOCK_FILE, private to miscinit.c). */
#define POSTMASTER_PID_FILE "postmaster.pid"

PGDLLEXPORT void baton_launcher_main(Datum argument);
PGDLLEXPORT void baton_index_reader_main(Datum argument);

static BatonDispatcher dispatcher = {.pid = 0,.adopted = -1,.channel = -1};
static int64 started_at_us = 0; /* start of the current dispatcher */
static int64 start_at_us = 0;	/* start of the next, once there is none */
static int	delay_ms = 0;		/* the last delay before a start */
static WaitEventSet *events = NULL;

void
baton_launcher_register(void)
{
	BackgroundWorker worker;

	/* pg_upgrade needs its servers for itself: no client may log in */
	if (IsBinaryUpgrade)
		return;
	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "pg_baton launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "pg_baton launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "pg_baton", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, BATON_LAUNCHER_FUNCTION, BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	/* as soon as clients may log in, on a standby as well */
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/*
 * Is the server stopping?  The postmaster writes that into postmaster.pid
 * before it signals any process (pmdie in postmaster.c).  A launcher that
 * pg_terminate_backend ends must not end the dispatcher.
 */
static bool
server_is_stopping(void)
{
	char		contents[1024];
	char	   *line = contents;
	ssize_t		length;
	int			fd;

	/* unlike AllocateFile's, this descriptor needs no resource owner */
	fd = open(POSTMASTER_PID_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;			/* no file, no server */
	length = read(fd, contents, sizeof(contents) - 1);
	close(fd);
	if (length <= 0)
		return false;
	contents[length] = '\0';
	for (int i = 1; i < LOCK_FILE_LINE_PM_STATUS && line != NULL; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line != NULL &&
		strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
}

/*
 * Called whenever the launcher exits: informs the dispatcher if the server is
 * stopping.
 */
static void
tell_shutdown(int code, Datum argument)
{
	const uint32 stopping = 1;

	if (dispatcher.channel >= 0 && server_is_stopping())
		(void) baton_channel_send(dispatcher.channel, BATON_MSG_SHUTDOWN, 0,
								  (const char *) &stopping, sizeof(stopping));
}

/* Creates the wait set, again for each new channel. */
static void
watch(void)
{
	if (events != NULL)
		FreeWaitEventSet(events);
	events = baton_wait_set_create(3);
	AddWaitEventToSet(events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	if (dispatcher.channel >= 0)
		AddWaitEventToSet(events, WL_SOCKET_READABLE, dispatcher.channel, NULL, NULL);
}

static void
lose_dispatcher(void)
{
	bool		quick = baton_monotonic_us() - started_at_us < QUICK_DEATH_US;

	baton_dispatcher_end(&dispatcher);
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
		lose_dispatcher();
}

/*
 * Adopts or starts a dispatcher.  Not while the server is stopping: a smart
 * shutdown waits for sessions long after the dispatcher has closed its port.
 */
static void
get_dispatcher(void)
{
	bool		is_adopted;

	started_at_us = baton_monotonic_us();
	if (server_is_stopping() ||
		(!(is_adopted = baton_dispatcher_adopt(&dispatcher)) &&
		 !baton_dispatcher_spawn(&dispatcher)))
	{
		start_at_us = started_at_us + LONGEST_DELAY_MS * INT64CONST(1000);
		return;
	}
	watch();
	send_parameters(!is_adopted);
}

static void
reload(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	baton_hba_load();
	baton_login_changed();
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
			lose_dispatcher();
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
	watch();
	start_at_us = baton_monotonic_us();

	for (;;)
	{
		WaitEvent	event;
		long		timeout_ms = -1;

		/*
		 * Without a message, unlike CHECK_FOR_INTERRUPTS.  The exit code is
		 * not 0, or the launcher would not be restarted.
		 */
		if (ProcDiePending)
			proc_exit(1);
		housekeeping();

		if (dispatcher.channel < 0)
		{
			timeout_ms = baton_ms_until(start_at_us);
			if (timeout_ms <= 0)
			{
				get_dispatcher();
				continue;
			}
		}

		if (WaitEventSetWait(events, timeout_ms, &event, 1, PG_WAIT_EXTENSION) == 0)
			continue;
		if (event.events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if ((event.events & WL_SOCKET_READABLE) && dispatcher.channel >= 0)
			answer_questions();
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

#define CHANNEL_NUMBER 3
#define CONTROL_NUMBER 4

/* The longest a send may take before the dispatcher counts as hung. */
#define SEND_TIMEOUT_S 10

/* The longest a process may take to end before it is killed. */
#define END_WAIT_MS 2000
#define END_STEP_MS 10

/*
 * The directory of `make install`, tried if the PATH does not have the
 * program.
 */
#define LAST_RESORT "/usr/local/bin"

pg_noreturn static void become_dispatcher(const char *path, char *const arguments[],
										  const char *oom_score, int null_fd, int channel_fd, int control_fd);

static bool
is_program(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* Full path of the dispatcher's program; false if it is not found. */
static bool
find_program(char *path)
{
	const char *name = baton_dispatcher_program;
	const char *at;
	char		directory[MAXPGPATH];

	if (strchr(name, '/') != NULL)
	{
		strlcpy(path, name, MAXPGPATH);
		return is_program(path);
	}

	/* beside the server's own program */
	strlcpy(directory, my_exec_path, sizeof(directory));
	get_parent_directory(directory);
	join_path_components(path, directory, name);
	if (is_program(path))
		return true;

	for (at = getenv("PATH"); at != NULL && *at != '\0';)
	{
		Size		length = strcspn(at, ":");

		if (length > 0 && length < sizeof(directory))
		{
			memcpy(directory, at, length);
			directory[length] = '\0';
			join_path_components(path, directory, name);
			if (is_program(path))
				return true;
		}
		at += length;
		if (*at == ':')
			at++;
	}

	join_path_components(path, LAST_RESORT, name);
	return is_program(path);
}

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

/*
 * The dispatcher's end ends every session, as the postmaster's does.  Without
 * CAP_SYS_RESOURCE a process may go down to the value that a process with it
 * has set before (__set_oom_adj, fs/proc/base.c), which is the service
 * manager's value.
 */
static void
protect_from_oom(const char *score)
{
	int			fd = score[0] == '\0' ? -1 : open("/proc/self/oom_score_adj", O_WRONLY);

	if (fd >= 0)
	{
		(void) !write(fd, score, strlen(score));
		(void) close(fd);
	}
}

/* In the child, after fork: only what is safe there.  Never returns. */
static void
become_dispatcher(const char *path, char *const arguments[], const char *oom_score,
				  int null_fd, int channel_fd, int control_fd)
{
	sigset_t	none;

	protect_from_oom(oom_score);

	/* a handler is reset by exec, but an ignored signal stays ignored */
	for (int number = 1; number < NSIG; number++)
		(void) signal(number, SIG_DFL);
	(void) setsid();

	/* the sources are above the targets, see above_targets */
	if (dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 ||
		dup2(channel_fd, CHANNEL_NUMBER) < 0 || dup2(control_fd, CONTROL_NUMBER) < 0)
		_exit(126);
	if (syscall(SYS_close_range, CONTROL_NUMBER + 1, ~0U, 0) != 0)
	{
		/* a kernel before 5.9 */
		int			most = (int) sysconf(_SC_OPEN_MAX);

		for (int fd = CONTROL_NUMBER + 1; fd < most; fd++)
			(void) close(fd);
	}

	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
	execv(path, arguments);
	_exit(127);
}

/* A duplicate that dup2 onto the targets cannot hit, or -1. */
static int
above_targets(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, CONTROL_NUMBER + 1);
}

bool
baton_dispatcher_spawn(BatonDispatcher *dispatcher)
{
	char		path[MAXPGPATH];
	char	   *arguments[] = {"baton-dispatcher", NULL};
	char		oom_score[16];
	struct timeval send_timeout = {.tv_sec = SEND_TIMEOUT_S,.tv_usec = 0};
	sigset_t	all;
	sigset_t	old;
	int			pair[2];
	int			null_fd;
	int			channel_fd;
	int			control_fd;
	pid_t		pid;

	if (!find_program(path))
	{
		ereport(LOG,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not find pg_baton's dispatcher program \"%s\"",
						baton_dispatcher_program),
				 errhint("Set pg_baton.dispatcher_program to the path of \"baton-dispatcher\".")));
		return false;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
	{
		ereport(LOG,
				(errcode_for_socket_access(),
				 errmsg("could not create the channel to pg_baton's dispatcher: %m")));
		return false;
	}
	(void) setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof(send_timeout));
	null_fd = open(DEVNULL, O_RDWR | O_CLOEXEC);
	if (null_fd >= 0 && null_fd <= CONTROL_NUMBER)
	{
		int			moved = above_targets(null_fd);

		close(null_fd);
		null_fd = moved;
	}
	channel_fd = above_targets(pair[1]);
	control_fd = above_targets(BatonControlFd);
	close(pair[1]);

	/* before the fork, since it may allocate */
	if (baton_dispatcher_log[0] != '\0')
		setenv("BATON_LOG", baton_dispatcher_log, 1);
	else
		unsetenv("BATON_LOG");

	read_oom_score(oom_score, sizeof(oom_score));

	/* the dispatcher maps what the header describes */
	baton_control_restore();

	fflush(stdout);
	fflush(stderr);
	pid = -1;
	if (null_fd >= 0 && channel_fd >= 0 && control_fd >= 0)
	{
		/* no handler of the launcher may run in the child */
		sigfillset(&all);
		(void) sigprocmask(SIG_SETMASK, &all, &old);
		pid = fork();
		if (pid == 0)
			become_dispatcher(path, arguments, oom_score, null_fd, channel_fd, control_fd);
		{
			int			save_errno = errno;

			(void) sigprocmask(SIG_SETMASK, &old, NULL);
			errno = save_errno;
		}
	}
	if (pid < 0)
		ereport(LOG,
				(errmsg("could not start pg_baton's dispatcher: %m")));
	if (null_fd >= 0)
		close(null_fd);
	if (channel_fd >= 0)
		close(channel_fd);
	if (control_fd >= 0)
		close(control_fd);
	if (pid < 0)
	{
		close(pair[0]);
		return false;
	}

	ereport(LOG,
			(errmsg("pg_baton's dispatcher started with process ID %d", (int) pid),
			 errdetail("Program \"%s\".", path)));
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
	socklen_t	peer_length = sizeof(peer);
	StringInfoData hello;
	int			process = -1;
	int			fd;
	bool		sent;

	if (BatonControlMemory->dispatcher_pid == 0 && BatonControlMemory->dispatcher_epoch == 0)
		return false;
	fd = baton_channel_connect();
	if (fd < 0)
		return false;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_length) == 0 &&
		peer.uid == geteuid())
		process = pidfd_open(peer.pid, 0);

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

	initStringInfo(&hello);
	baton_wire_u32(&hello, BATON_LAYOUT_VERSION);
	baton_wire_u64(&hello, BatonControlMade.secret);
	baton_wire_u32(&hello, (uint32) MyProcPid);
	sent = baton_channel_send(fd, BATON_MSG_HELLO_LAUNCHER, 0, hello.data, hello.len);
	pfree(hello.data);
	if (!sent)
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

void
baton_dispatcher_end(BatonDispatcher *dispatcher)
{
	int			status = 0;
	bool		killed = false;

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
			/* the number of a child that is not reaped cannot be reused */
			if (dispatcher->adopted >= 0)
				(void) pidfd_send_signal(dispatcher->adopted, SIGKILL, NULL, 0);
			else
				(void) kill((pid_t) dispatcher->pid, SIGKILL);
			killed = true;
		}
		if (waited_ms >= 2 * END_WAIT_MS)
			break;				/* only the kernel can end it now */
		pg_usleep(END_STEP_MS * 1000L);
	}
	report_end(dispatcher, status);

	if (dispatcher->adopted >= 0)
	{
		close(dispatcher->adopted);
		ReleaseExternalFD();
	}

	/* the dispatcher's own word; a killed dispatcher could not clear it */
	if (BatonControlMemory->dispatcher_pid == (uint32) dispatcher->pid)
		BatonControlMemory->dispatcher_pid = 0;
	*dispatcher = BATON_NO_DISPATCHER;
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
