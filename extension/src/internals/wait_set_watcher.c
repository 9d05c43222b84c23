/*-------------------------------------------------------------------------
 *
 * wait_set_watcher.c
 *		The epoll instance behind a wait set, and a socket's place in it.
 *
 * WaitEventSet is private to latch.c (waiteventset.c in 18), hence what we need of
 * it is found by looking, once, and checked:
 *	- its epoll descriptor: CreateWaitEventSet() opens exactly one descriptor
 *	  (epoll_create1; 15 to 18), which is the lowest free number, and must be an
 *	  epoll instance;
 *	- the data word of the socket's registration: WaitEventAdjustEpoll() stores the
 *	  address of the WaitEvent there, and /proc/self/fdinfo shows it.  With the same
 *	  word another file on the same number is the same event to latch.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "storage/fd.h"

#include "wait_set_watcher.h"

/* The data word under which descriptor `target` is registered; 0 if not. */
static uint64
registration_data(int epoll_fd, int target)
{
	char		path[64];
	char		line[256];
	FILE	   *file;
	uint64		found = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll_fd);
	file = AllocateFile(path, "r");
	if (file == NULL)
		return 0;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		int			tfd;
		unsigned int events;
		unsigned long long data;

		if (sscanf(line, "tfd: %d events: %x data: %llx", &tfd, &events, &data) == 3 &&
			tfd == target)
			found = data;
	}
	FreeFile(file);
	return found;
}

static bool
is_epoll(int fd)
{
	char		path[64];
	char		target[64];
	ssize_t		length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0)
		return false;
	target[length] = '\0';
	return strcmp(target, "anon_inode:[eventpoll]") == 0;
}

int
baton_watcher_next_number(void)
{
	int			number = epoll_create1(EPOLL_CLOEXEC);

	if (number >= 0)
		close(number);
	return number;
}

const char *
baton_watcher_find(BatonWatcher *watcher, int epoll, int socket)
{
	watcher->epoll = epoll;
	if (!is_epoll(epoll))
		return "could not find the epoll descriptor of a wait set";
	watcher->data = registration_data(epoll, socket);
	if (watcher->data == 0)
		return "could not find the registration of the client socket";
	watcher->watching = true;
	return NULL;
}

void
baton_watcher_begin(BatonWatcher *watcher, int socket)
{
	struct epoll_event event;

	if (watcher->watching)
		return;
	memset(&event, 0, sizeof(event));
	event.events = EPOLLERR | EPOLLHUP | EPOLLIN;
	event.data.u64 = watcher->data;
	if (epoll_ctl(watcher->epoll, EPOLL_CTL_ADD, socket, &event) != 0)
		elog(FATAL, "could not add a client socket to a wait set: %m");
	watcher->watching = true;
}

void
baton_watcher_end(BatonWatcher *watcher, int socket)
{
	if (!watcher->watching)
		return;
	if (epoll_ctl(watcher->epoll, EPOLL_CTL_DEL, socket, NULL) != 0)
		elog(FATAL, "could not remove a client socket from a wait set: %m");
	watcher->watching = false;
}
