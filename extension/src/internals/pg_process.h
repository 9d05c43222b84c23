/*-------------------------------------------------------------------------
 *
 * pg_process.h
 *		A process as the others see it: its entry in pg_stat_activity, barriers,
 *		signals, wait sets, login triggers.
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

/* The time that stands there; 0 if it is none that the server can show. */
extern TimestampTz baton_sound_timestamp(int64 timestamp);

/* ----------------------------------------------------------------
 *		What the server shows of a backend, and whose it is.
 * ----------------------------------------------------------------
 */

/*
 * A backend that starts, before InitPostgres(): the entry that the server makes of
 * its client's address is a pooled backend's from its beginning, and nobody's.
 */
extern void baton_entry_begin_as_nobody(SockAddr *address);

/*
 * This backend's own entry: who is shown there from now on, NULL for nobody, at
 * the address that MyProcPort says, since `start`.
 */
extern void baton_entry_show(TimestampTz start, const BatonIdentity *identity);
extern void baton_entry_forget_session(void);

/* This backend's own entry: the role that it is shown as. */
extern void baton_entry_set_role(Oid role);

/* This backend's own entry: the TLS that its client has with somebody else. */
extern void baton_entry_set_tls(const BatonTls *tls);

/*
 * Whose is an entry?  False if it is no pooled backend's; else the session's
 * process ID, 0 if none is in place.
 */
extern bool baton_entry_session(const PgBackendStatus *entry, int *pid);

/* The transaction's copy of all entries: the nth, from 0; NULL if there is none. */
extern LocalPgBackendStatus *baton_entry_local(int n);

/* The number by which pg_stat_get_backend_pid() and its like know the nth. */
extern int	baton_entry_id(int n);

/* What those functions find under such a number; NULL if nothing. */
extern PgBackendStatus *baton_entry_by_id(int id);

/* ----------------------------------------------------------------
 *		Barriers that a starting process has missed.
 * ----------------------------------------------------------------
 */

/* Takes part in what was asked of all processes while this one started. */
extern void baton_barrier_catch_up(void);

/* Checks it in a pooled backend that starts: NULL, or what is not as expected. */
extern const char *baton_barrier_attach(void);

/* ----------------------------------------------------------------
 *		Who may cancel or end whose session.
 * ----------------------------------------------------------------
 */

/* May the current user cancel or end sessions of the role? */
extern bool baton_may_signal(Oid role);

/* ereport(ERROR) unless the current user may do that to a session of the role. */
extern void baton_check_may_cancel(Oid role);
extern void baton_check_may_terminate(Oid role);

/* ----------------------------------------------------------------
 *		The epoll instance behind a wait set, and a socket's place in it.
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		Event triggers on login, which came with PostgreSQL 17.
 *
 * Before, there are none.
 * ----------------------------------------------------------------
 */

/* None shall fire for the backend's own start, which is nobody's login. */
extern void baton_login_triggers_hold(void);

/* Checks that, when it has started: NULL, or what is not as expected. */
extern const char *baton_login_triggers_attach(void);

/* Does the row of a database say that it has any? */
extern bool baton_login_triggers_marked(Form_pg_database database);

/* Has this database any?  In a transaction. */
extern bool baton_login_triggers_exist(void);

/* Fires them; outside a transaction.  ereport(ERROR)s as they do. */
extern void baton_login_triggers_fire(void);

/* Is that where event triggers are, and may one be of this kind? */
extern bool baton_may_be_login_trigger(Oid catalog);

#endif							/* BATON_PG_PROCESS_H */
