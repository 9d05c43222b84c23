/*-------------------------------------------------------------------------
 *
 * launcher_spawn.c
 *		How a dispatcher is started, taken over, and seen out.
 *
 * The dispatcher is a program of its own, started in the data directory with
 * these descriptors and no others: 0 and 1 /dev/null, 2 the server's stderr,
 * 3 the channel, 4 the CONTROL memory.  It is in a session of its own
 * (setsid), so that a signal to the server's process group does not reach it;
 * it watches the postmaster by itself.  Its oom_score_adj is the
 * postmaster's, where the kernel lets us go back to that (protect_from_oom).
 *
 * Between fork and exec the child calls what is safe after a fork only:
 * everything that allocates, or asks where the program is, comes before.
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

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "port.h"
#include "storage/fd.h"

#include "channel.h"
#include "control.h"
#include "launcher.h"
#include "majors.h"
#include "parameters.h"
#include "port_collision.h"
#include "wire.h"

#define CHANNEL_NUMBER 3
#define CONTROL_NUMBER 4

/* How long a send may take before the dispatcher counts as hung. */
#define SEND_TIMEOUT_S 10

/* How long a process may take to end before it is killed. */
#define END_WAIT_MS 2000
#define END_STEP_MS 10

/* Where the program is put by `make install`, if the PATH does not say so. */
#define LAST_RESORT "/usr/local/bin"

pg_noreturn static void become_dispatcher(const char *path, char *const arguments[],
										  const char *oom_score, int null_fd, int channel_fd, int control_fd);

static bool
is_program(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* Full path of the dispatcher's program; false if there is none. */
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
 * The postmaster's oom_score_adj, "" if it cannot be read.  Where PG_OOM_ADJUST_FILE
 * is set fork_process() (fork_process.c, 15 to 18) has raised ours, so that the kernel ends a backend before the postmaster.
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
 * The dispatcher's end is every session's, like the postmaster's.  Without
 * CAP_SYS_RESOURCE a process may go down to what one with it has set before
 * (__set_oom_adj, fs/proc/base.c), which is the service manager's value.
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

	/* the sources stand above the targets, see above_targets */
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

/* A duplicate that dup2 onto the targets cannot hit; -1 if there is none. */
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

	/* what the child must not do after the fork: it may allocate */
	if (baton_dispatcher_log[0] != '\0')
		setenv("BATON_LOG", baton_dispatcher_log, 1);
	else
		unsetenv("BATON_LOG");

	read_oom_score(oom_score, sizeof(oom_score));

	/* it maps what the header describes */
	baton_control_restore();

	fflush(stdout);
	fflush(stderr);
	pid = -1;
	if (null_fd >= 0 && channel_fd >= 0 && control_fd >= 0)
	{
		/* no handler of ours may run in the child */
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

/* Has it ended?  A pidfd is readable from then on, reaped or not. */
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
 * CONTROL says whether there has been one since the server started, in two words,
 * as any process of the server could have written one of them.  Its control
 * socket says whether there is one, and the kernel which process it is: that one
 * alone may be signalled.
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

	/* it was that process if it has not ended since: no number is given twice */
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

/* Has the process gone?  If it was our child, *status says how. */
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

	/* A dispatcher that merely lost us would go on and hold the port. */
	for (int waited_ms = 0; !has_ended(dispatcher, &status); waited_ms += END_STEP_MS)
	{
		if (waited_ms >= END_WAIT_MS && !killed)
		{
			ereport(LOG,
					(errmsg("pg_baton's dispatcher (PID %d) does not answer, killing it",
							dispatcher->pid)));
			/* the number of a child that is not reaped is nobody else's */
			if (dispatcher->adopted >= 0)
				(void) pidfd_send_signal(dispatcher->adopted, SIGKILL, NULL, 0);
			else
				(void) kill((pid_t) dispatcher->pid, SIGKILL);
			killed = true;
		}
		if (waited_ms >= 2 * END_WAIT_MS)
			break;				/* in the kernel's hands */
		pg_usleep(END_STEP_MS * 1000L);
	}
	report_end(dispatcher, status);

	if (dispatcher->adopted >= 0)
	{
		close(dispatcher->adopted);
		ReleaseExternalFD();
	}

	/* its own word; a dispatcher that was killed could not take it back */
	if (BatonControlMemory->dispatcher_pid == (uint32) dispatcher->pid)
		BatonControlMemory->dispatcher_pid = 0;
	*dispatcher = BATON_NO_DISPATCHER;
}
