/*-------------------------------------------------------------------------
 *
 * child.c
 *		How the launcher and its workers start programs and reach the
 *		dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libpq/libpq.h"
#include "miscadmin.h"
#include "utils/pidfile.h"

#include "baton_shared.h"
#include "child.h"
#include "dispatcher_link.h"

/* The data directory's lock file (DIRECTORY_LOCK_FILE, private to miscinit.c). */
#define POSTMASTER_PID_FILE "postmaster.pid"

/* The most descriptors that a program is started with. */
#define MOST_DESCRIPTORS 16

pg_noreturn static void become_program(const BatonProgram *program, int program_fd,
									   char *const arguments[], const char *oom_score,
									   bool ends_with_launcher, pid_t launcher, int null_fd,
									   const int *descriptors, int count);

/*
 * The postmaster writes that into postmaster.pid
 * before it signals any process (pmdie in postmaster.c).  A launcher that
 * pg_terminate_backend ends must not end the dispatcher.
 */
bool
baton_server_is_stopping(void)
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

int
baton_dispatcher_connect(struct ucred *peer)
{
	socklen_t	length = sizeof(*peer);
	int			fd = baton_channel_try();

	if (fd >= 0 && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &length) != 0 ||
					peer->uid != geteuid()))
	{
		close(fd);
		return -1;
	}
	return fd;
}

bool
baton_worker_hello(int fd, uint16 kind)
{
	StringInfoData hello;
	bool		sent;

	initStringInfo(&hello);
	baton_wire_u32(&hello, BATON_LAYOUT_VERSION);
	baton_wire_u64(&hello, BatonControlMade.secret);
	baton_wire_u32(&hello, (uint32) MyProcPid);
	sent = baton_channel_send(fd, kind, 0, hello.data, hello.len);
	pfree(hello.data);
	return sent;
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

/* Where a started program has its descriptors. */
#define FIRST_NUMBER 3

/* In the child, after fork: only what is safe there.  Never returns. */
static void
become_program(const BatonProgram *program, int program_fd, char *const arguments[],
			   const char *oom_score, bool ends_with_launcher, pid_t launcher,
			   int null_fd, const int *descriptors, int count)
{
	int			program_number = FIRST_NUMBER + count;
	sigset_t	none;

	protect_from_oom(oom_score);

	/* it may have ended before this call */
	if (ends_with_launcher &&
		(prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher))
		_exit(126);

	/* a handler is reset by exec, but an ignored signal stays ignored */
	for (int number = 1; number < NSIG; number++)
		(void) signal(number, SIG_DFL);
	(void) setsid();

	/* the sources are above the targets */
	if (dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0)
		_exit(126);
	for (int i = 0; i < count; i++)
		if (dup2(descriptors[i], FIRST_NUMBER + i) < 0)
			_exit(126);

	/* closed by exec */
	if (program_fd >= 0 && dup3(program_fd, program_number, O_CLOEXEC) < 0)
		_exit(126);
	if (syscall(SYS_close_range, program_number + 1, ~0U, 0) != 0)
	{
		/* a kernel before 5.9 */
		int			most = (int) sysconf(_SC_OPEN_MAX);

		for (int fd = program_number + 1; fd < most; fd++)
			(void) close(fd);
	}

	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
	if (program_fd >= 0)
		(void) syscall(SYS_execveat, program_number, "", arguments, environ, AT_EMPTY_PATH);
	else
	{
		(void) close(program_number);
		(void) execv(program->path, arguments);
	}
	_exit(127);
}

pid_t
baton_program_fork(const BatonProgram *program, char *const arguments[], const char *oom_score,
				   bool ends_with_launcher, const int *descriptors, int count)
{
	int			copies[MOST_DESCRIPTORS + 2];
	int			copied = 0;
	int			null_fd = open(DEVNULL, O_RDWR | O_CLOEXEC);
	bool		is_ready = null_fd >= 0;
	pid_t		launcher = getpid();
	pid_t		pid = -1;
	int			save_errno;
	sigset_t	all;
	sigset_t	old;

	Assert(count <= MOST_DESCRIPTORS);

	/* duplicates that dup2 onto the targets cannot hit */
	for (int i = 0; i < count + 2 && is_ready; i++)
	{
		int			fd = i < count ? descriptors[i] : i == count ? null_fd : program->fd;

		copies[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FIRST_NUMBER + count + 1);
		is_ready = fd < 0 || copies[i] >= 0;
		copied++;
	}
	fflush(stdout);
	fflush(stderr);
	if (is_ready)
	{
		/* no handler of the launcher may run in the child */
		sigfillset(&all);
		(void) sigprocmask(SIG_SETMASK, &all, &old);
		pid = fork();
		if (pid == 0)
			become_program(program, copies[count + 1], arguments, oom_score,
						   ends_with_launcher, launcher, copies[count], copies, count);
		save_errno = errno;
		(void) sigprocmask(SIG_SETMASK, &old, NULL);
	}
	else
		save_errno = errno;
	for (int i = 0; i < copied; i++)
		if (copies[i] >= 0)
			close(copies[i]);
	if (null_fd >= 0)
		close(null_fd);
	errno = save_errno;
	return pid;
}
