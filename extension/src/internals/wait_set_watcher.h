/*-------------------------------------------------------------------------
 *
 * wait_set_watcher.h
 *		The epoll instance behind a wait set, and a socket's place in it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_WAIT_SET_WATCHER_H
#define BATON_WAIT_SET_WATCHER_H

/* A wait set in which what stands on the socket's number may be registered. */
typedef struct BatonWatcher
{
	int			epoll;			/* the wait set's epoll descriptor */
	uint64		data;			/* its data word for the socket */
	bool		watching;		/* what stands there is registered */
} BatonWatcher;

/* The number that the next descriptor will get; -1 if there is none. */
extern int	baton_watcher_next_number(void);

/*
 * The wait set that was created as `epoll` was the next number, and the socket in
 * it: NULL, or what is not as expected.
 */
extern const char *baton_watcher_find(BatonWatcher *watcher, int epoll, int socket);

/* What stands on that number is registered from here on, to be read; or not any more. */
extern void baton_watcher_begin(BatonWatcher *watcher, int socket);
extern void baton_watcher_end(BatonWatcher *watcher, int socket);

#endif							/* BATON_WAIT_SET_WATCHER_H */
