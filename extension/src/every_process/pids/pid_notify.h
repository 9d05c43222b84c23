/*-------------------------------------------------------------------------
 *
 * pid_notify.h
 *		A notification names the session that sent it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_NOTIFY_H
#define BATON_PID_NOTIFY_H

#include "access/xact.h"

#include "utility_statement.h"

/* From hooks.c; the first two in the postmaster. */
extern void baton_notify_request_shmem(void);
extern void baton_notify_start_shmem(void);
extern void baton_notify_transaction(XactEvent event);
extern void baton_notify_utility_begins(const BatonUtility *utility);

/*
 * A NotificationResponse as its client shall have it: palloc'd, NULL if it is
 * right as it is.
 */
extern char *baton_notify_name_sender(const char *message, size_t length);

#endif							/* BATON_PID_NOTIFY_H */
