/*-------------------------------------------------------------------------
 *
 * pg_process.h
 *		A process as other processes see it: its entry in pg_stat_activity,
 *		barriers, signals, wait sets, login triggers.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_PROCESS_H
#define BATON_PG_PROCESS_H

#include "catalog/pg_database.h"
#include "datatype/timestamp.h"
#include "libpq/pqcomm.h"
#include "utils/backend_status.h"

#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		A time that another process has written.
 * ----------------------------------------------------------------
 */

/* Returns the time, or 0 if the server cannot show it. */
extern TimestampTz baton_sound_timestamp(int64 timestamp);

/* ----------------------------------------------------------------
 *		What the server shows of a backend, and of which session.
 */

/*
 * In a backend that starts, before InitPostgres(): marks the client's address,
 * so that the entry which the server makes of it belongs to a pooled backend
 * without a session from its beginning.
 */
extern void baton_entry_begin_without_session(SockAddr *address);

/*
 * This backend's own entry: shows this session (NULL: none) from now on, with
 * the address of MyProcPort and the authenticated user, since `start`.
 */
extern void baton_entry_show(TimestampTz start, const BatonIdentity *identity);
extern void baton_entry_forget_session(void);

/*
 * This backend's own entry: the TLS that its client speaks with the
 * dispatcher.
 */
extern void baton_entry_set_tls(const BatonTls *tls);

/*
 * Returns false if the entry is no pooled backend's.  Else *pid is the process
 * ID of its session, or 0 if no session is in place.
 */
extern bool baton_entry_session(const PgBackendStatus *entry, int *pid);

/*
 * The transaction's copy of all entries: the nth, from 0, or NULL if there is
 * none.
 */
extern LocalPgBackendStatus *baton_entry_local(int n);

/*
 * The number by which pg_stat_get_backend_pid() and its like know the nth
 * entry.
 */
extern int	baton_entry_id(int n);

/* The entry that those functions find under such a number, or NULL. */
extern PgBackendStatus *baton_entry_by_id(int id);

/* ----------------------------------------------------------------
 *		Barriers that a starting process has missed.
 * ----------------------------------------------------------------
 */

/* Absorbs the barriers that were emitted while this process started. */
extern void baton_barrier_catch_up(void);

/*
 * Checks this in a pooled backend that starts.  Returns NULL, or what is not
 * as expected.
 */
extern const char *baton_barrier_attach(void);

/* ----------------------------------------------------------------
 *		Which role may cancel or terminate sessions of which other.
 */

/* May the current user cancel or terminate sessions of the role? */
extern bool baton_may_signal(Oid role);

/*
 * ereport(ERROR) unless the current user may do so with a session of the role.
 */
extern void baton_check_may_cancel(Oid role);
extern void baton_check_may_terminate(Oid role);

/* ----------------------------------------------------------------
 *		The epoll instance behind a wait set, and a socket's place in it.
 * ----------------------------------------------------------------
 */

/* A wait set in which the file on the socket's number may be registered. */
typedef struct BatonWatcher
{
	int			epoll;			/* the wait set's epoll descriptor */
	uint64		data;			/* its data word for the socket */
	bool		watching;		/* the file on the socket's number is
								 * registered */
} BatonWatcher;

/* The number that the next descriptor will get, or -1 if there is none. */
extern int	baton_watcher_next_number(void);

/*
 * Finds the wait set that was created when `epoll` was the next number, and
 * the socket in it.  Returns NULL, or what is not as expected.
 */
extern const char *baton_watcher_find(BatonWatcher *watcher, int epoll, int socket);

/* Registers the file on that number for reading, or ends its registration. */
extern void baton_watcher_begin(BatonWatcher *watcher, int socket);
extern void baton_watcher_end(BatonWatcher *watcher, int socket);

/* ----------------------------------------------------------------
 *		Login event triggers, which PostgreSQL 17 introduced.
 *
 * Up to 16 there are none.
 */

/*
 * Keeps them from firing at the backend's own start, which is no client's
 * login.
 */
extern void baton_login_triggers_hold(void);

/* Checks that after the start.  Returns NULL, or what is not as expected. */
extern const char *baton_login_triggers_attach(void);

/* Does the row of a database say that the database has login triggers? */
extern bool baton_login_triggers_marked(Form_pg_database database);

/* Does this database have login triggers?  In a transaction. */
extern bool baton_login_triggers_exist(void);

/* Fires the login triggers; outside a transaction.  Raises their errors. */
extern void baton_login_triggers_fire(void);

/* Does the catalog hold event triggers, and may they be login triggers? */
extern bool baton_may_be_login_trigger(Oid catalog);

#endif							/* BATON_PG_PROCESS_H */
