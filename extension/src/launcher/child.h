/*-------------------------------------------------------------------------
 *
 * child.h
 *		How the launcher and its workers start programs and reach the
 *		dispatcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CHILD_H
#define BATON_CHILD_H

#include <sys/socket.h>

#include "program.h"

/*
 * Sends the first message of a worker, BATON_MSG_HELLO_LAUNCHER,
 * BATON_MSG_HELLO_LOG or BATON_MSG_HELLO_MONITOR, on a new connection.
 */
extern bool baton_worker_hello(int fd, uint16 kind);

/* Is the server stopping? */
extern bool baton_server_is_stopping(void);

/*
 * Connects to the process that listens on the control socket, if that is one
 * of the server's user.  Returns the connection or -1, and which process that
 * is.
 */
extern int	baton_dispatcher_connect(struct ucred *peer);

/*
 * Starts a program.  It has these descriptors from 3 on, /dev/null as 0 and 1,
 * the server's stderr as 2, and no others.  oom_score: the oom_score_adj that
 * it takes, "" if it keeps the launcher's.  ends_with_launcher: the kernel
 * kills it when this process ends, however that happens.  Returns its process
 * ID, or -1 with errno.
 */
extern pid_t baton_program_fork(const BatonProgram *program, char *const arguments[],
								const char *oom_score, bool ends_with_launcher,
								const int *descriptors, int count);

#endif							/* BATON_CHILD_H */
