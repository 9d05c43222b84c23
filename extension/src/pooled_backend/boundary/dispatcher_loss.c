/*-------------------------------------------------------------------------
 *
 * dispatcher_loss.c
 *		What becomes of a pooled backend whose dispatcher has died.
 *
 * Its end of the control socket is closed.  A backend without a session exits;
 * one with a session serves it on, as an ordinary backend would, until it
 * ends.  The next dispatcher knows nothing of either.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "storage/fd.h"
#include "storage/ipc.h"

#include "batch_scheduling.h"
#include "dispatcher_loss.h"
#include "handover.h"
#include "pooled_state.h"

static void
let_go(int *descriptor)
{
	close(*descriptor);
	ReleaseExternalFD();
	*descriptor = -1;
}

/*
 * Whatever is still in its ready queue is lost with it: those clients see
 * their connections close when the last of us has closed the queue.
 */
void
baton_dispatcher_gone(void)
{
	let_go(&BatonSelf.control);
	let_go(&BatonSelf.queue);
	for (int i = 0; i < BatonSelf.epoll_count; i++)
		let_go(&BatonSelf.epolls[i]);
	baton_batch_scheduling_end();
	if (baton_session_held() == 0)
		proc_exit(0);
	baton_session_orphaned();
}

bool
baton_dispatcher_is_there(void)
{
	char		byte;
	ssize_t		length;

	length = recv(BatonSelf.control, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	if (length > 0 ||
		(length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)))
		return true;
	baton_dispatcher_gone();
	return false;
}
