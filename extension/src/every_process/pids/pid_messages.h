/*-------------------------------------------------------------------------
 *
 * pid_messages.h
 *		Process IDs in messages: log lines, reports of deadlocks, notifications.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_MESSAGES_H
#define BATON_PID_MESSAGES_H

#include "access/xact.h"

#include "catalog_watch.h"

/* ----------------------------------------------------------------
 *		Lines of the server's log contain their session's ID.
 */

/*
 * Called by emit_log_hook (pg_baton.c): writes the line, if it is a session's.
 */
extern void baton_pid_log(ErrorData *edata);

/* ----------------------------------------------------------------
 *		A notification names the session that sent it.
 * ----------------------------------------------------------------
 */

/* Called by pg_baton.c; the first two in the postmaster. */
extern void baton_notify_request_shmem(void);
extern void baton_notify_start_shmem(void);
extern void baton_notify_transaction(XactEvent event);
extern void baton_notify_utility_begins(const BatonUtility *utility);

/*
 * Returns a NotificationResponse that names the sending session, palloc'd, or
 * NULL if the message needs no change.
 */
extern char *baton_notify_name_sender(const char *message, size_t length);

#endif							/* BATON_PID_MESSAGES_H */
