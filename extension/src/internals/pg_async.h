/*-------------------------------------------------------------------------
 *
 * pg_async.h
 *		Which transaction sent a notification that this backend delivers (async.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_ASYNC_H
#define BATON_PG_ASYNC_H

/*
 * Finds the queue, in an ordinary process of the server, once.  Returns what
 * prevents it, or NULL.
 */
extern const char *baton_notify_queue_find(void);

/*
 * Called while async.c delivers: the transaction that sent the notification
 * being delivered, or InvalidTransactionId if it is not known.  Strings are as
 * the client gets them.  Each call continues behind the entry that the
 * previous call found.
 */
extern TransactionId baton_notify_queue_sender(int process, const char *channel,
											   const char *payload);

#endif							/* BATON_PG_ASYNC_H */
