/*-------------------------------------------------------------------------
 *
 * pg_process.c
 *		A process as other processes see it: its entry in pg_stat_activity,
 *		barriers, signals, wait sets, login triggers.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_event_trigger.h"
#include "commands/event_trigger.h"
#include "common/string.h"
#include "libpq/libpq-be.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/fd.h"
#include "storage/procsignal.h"
#include "utils/acl.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "pg_process.h"

/* ----------------------------------------------------------------
 *		A time that another process has written.
 *
 * Any process of the server can write into shared memory.  A time out of
 * range (IS_VALID_TIMESTAMP, datatype/timestamp.h; infinity is in range) is
 * an error only when it is shown: timestamp2tm and its callers (timestamp.c)
 * raise 22008, and one such time would make a view of all sessions fail.  So
 * it is replaced by 0, which means "no time" in all shared memory.
 *
 * This is no inline function: the caller has read the word once, and the
 * checked value is the one that is used.
 */

TimestampTz
baton_sound_timestamp(int64 timestamp)
{
	return IS_VALID_TIMESTAMP(timestamp) ? timestamp : 0;
}

/* ----------------------------------------------------------------
 *		What the server shows of a backend, and of which session.
 *
 * pgstat_read_current_status (backend_status.c) copies all entries of
 * BackendStatusArray once a transaction, each as it was at one moment
 * (st_changecount).  The session of a copied entry must therefore stand in
 * the copy. st_clientaddr is a sockaddr_storage of 128 bytes that is copied
 * whole; an address of any family that a client can have ends before byte 110
 * (sockaddr_un), and salen gives its end, so getnameinfo() never reads
 * further.  MyProcPort is allocated with zeroes (ConnCreate, postmaster.c, up
 * to 16; pq_init since 17), so the rest is zero in ordinary backends, and in
 * processes without a client.
 *
 * The address of MyProcPort is copied whole into a new entry: by
 * pgstat_bestart after authentication up to 17, by pgstat_bestart_initial
 * before it in 18.
 *
 * pgstat_bestart (pgstat_bestart_security in 18) writes the entry's TLS
 * before PostgresMain() sends the client anything; the server does not write
 * it later.
 *
 * The copies by number: pgstat_fetch_stat_local_beentry in 15, where the
 * number is the place in the copy plus 1; in 16 it is the backend's own,
 * counted from 1, and since 17 counted from 0 (pg_stat_get_backend_idset,
 * pgstatfuncs.c).
 */

#define MARK_MAGIC 0x62744F4E

typedef struct EntryMark
{
	uint32		magic;			/* MARK_MAGIC: a pooled backend's entry */
	int			pid;			/* process ID of its session; 0: no session is
								 * in place */
} EntryMark;

#define MARK_OFFSET (sizeof(struct sockaddr_storage) - sizeof(EntryMark))

StaticAssertDecl(MARK_OFFSET >= sizeof(struct sockaddr_un),
				 "an address may reach to where the mark is");
StaticAssertDecl(MARK_OFFSET % sizeof(int) == 0, "the mark is not aligned");

#define address_mark(address) \
	((EntryMark *) ((char *) &(address)->addr + MARK_OFFSET))
#define entry_mark(entry) address_mark(&(entry)->st_clientaddr)

static void
set_mark(volatile EntryMark *mark, int pid)
{
	mark->magic = MARK_MAGIC;
	mark->pid = pid;
}

void
baton_entry_begin_without_session(SockAddr *address)
{
	set_mark(address_mark(address), 0);
}

/*
 * As pgstat_bestart (backend_status.c) does once in a backend's life: a reader
 * copies the entry again if st_changecount has changed meanwhile.
 */
void
baton_entry_show(TimestampTz start, const BatonIdentity *identity)
{
	volatile PgBackendStatus *entry = MyBEEntry;
	TimestampTz query_start = identity ? baton_sound_timestamp(identity->query_start_us) : 0;
	TimestampTz state_start = identity ? baton_sound_timestamp(identity->idle_since_us) : 0;

	if (entry == NULL)
		return;
	if (state_start == 0)
		state_start = start;

	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_userid = GetAuthenticatedUserId();
	entry->st_proc_start_timestamp = start;
	memcpy(unvolatize(SockAddr *, &entry->st_clientaddr), &MyProcPort->raddr,
		   sizeof(SockAddr));
	entry->st_clienthostname[0] = '\0';
	entry->st_activity_raw[0] = '\0';
	entry->st_query_id = UINT64CONST(0);
	entry->st_activity_start_timestamp = query_start;
	entry->st_state_start_timestamp = state_start;
	set_mark(entry_mark(entry), identity ? identity->pid : 0);
	PGSTAT_END_WRITE_ACTIVITY(entry);
}

/*
 * Writes one aligned word, which a reader copies whole.  The rest of the entry
 * stays as it is, and then counts as an entry without a session.
 */
void
baton_entry_forget_session(void)
{
	volatile EntryMark *mark = entry_mark(MyBEEntry);

	mark->pid = 0;
}

#ifdef USE_SSL

/*
 * Converts from UTF-8, truncated as X509_NAME_to_cstring (be-secure-openssl.c)
 * and its caller do.
 */
static void
put_text(char *to, const uint8 *text)
{
	const char *from = (const char *) text;
	int			length = pg_encoding_mbcliplen(PG_UTF8, from, strlen(from), NAMEDATALEN - 1);
	char	   *cut = pnstrdup(from, length);

	if (!pg_is_ascii(cut))
	{
		/* a conversion is looked up in the catalogs */
		StartTransactionCommand();
		strlcpy(to, pg_any_to_server(cut, length, PG_UTF8), NAMEDATALEN);
		CommitTransactionCommand();
	}
	else
		strlcpy(to, cut, NAMEDATALEN);
	pfree(cut);
}

#endif

void
baton_entry_set_tls(const BatonTls *tls)
{
#ifdef USE_SSL
	volatile PgBackendStatus *entry = MyBEEntry;
	PgBackendSSLStatus status;

	memset(&status, 0, sizeof(status));
	status.ssl_bits = (int) tls->bits;
	put_text(status.ssl_version, tls->version);
	put_text(status.ssl_cipher, tls->cipher);
	put_text(status.ssl_client_dn, tls->client_dn);
	put_text(status.ssl_client_serial, tls->client_serial);
	put_text(status.ssl_issuer_dn, tls->issuer_dn);

	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_ssl = true;
	*entry->st_sslstatus = status;
	PGSTAT_END_WRITE_ACTIVITY(entry);
#endif
}

bool
baton_entry_session(const PgBackendStatus *entry, int *pid)
{
	const EntryMark *mark = entry_mark(entry);

	if (mark->magic != MARK_MAGIC)
		return false;
	*pid = mark->pid;
	return true;
}

LocalPgBackendStatus *
baton_entry_local(int n)
{
#if PG_VERSION_NUM >= 160000
	return pgstat_get_local_beentry_by_index(n + 1);
#else
	return pgstat_fetch_stat_local_beentry(n + 1);
#endif
}

int
baton_entry_id(int n)
{
#if PG_VERSION_NUM >= 170000
	return baton_entry_local(n)->proc_number;
#elif PG_VERSION_NUM >= 160000
	return (int) baton_entry_local(n)->backend_id;
#else
	return n + 1;
#endif
}

PgBackendStatus *
baton_entry_by_id(int id)
{
#if PG_VERSION_NUM >= 170000
	return pgstat_get_beentry_by_proc_number(id);
#elif PG_VERSION_NUM >= 160000
	return pgstat_get_beentry_by_backend_id(id);
#else
	return pgstat_fetch_stat_beentry(id);
#endif
}

/* ----------------------------------------------------------------
 *		Barriers that a starting process has missed.
 *
 * Problem: a process that emits a barrier (DROP DATABASE does) signals all
 * processes and waits until each has absorbed it (procsignal.c).  A process
 * that is just entering itself there can miss the signal although the emitter
 * waits for it, for ever: up to 15.18 and 16 ProcSignalInit() notes the
 * generation before it publishes the pid; in later minor releases of 15 and
 * 17, and in 18, the pid comes first, but procsignal_sigusr1_handler() does
 * nothing before MyProcSignalSlot is set, a few instructions after the
 * generation was noted.  A server without a pool starts few backends during
 * DROP DATABASE; a pool that has just lost its backends of that database
 * starts them all the time.
 *
 * What PostgreSQL guarantees: ProcessProcSignalBarrier() compares the
 * process's generation with the server's, whatever the caller, and does
 * nothing if they are the same.  A process with an older generation, and no
 * flag set, has only missed changes of what it has not looked at yet: the
 * function notes the generation and wakes the waiting processes.
 * baton_barrier_attach() checks that the call suffices: with nothing missed
 * it ends, and nothing is pending after it.
 */

/*
 * A barrier emitted at that moment is pending as well, but not at each try.
 */
#define TRIES 10

void
baton_barrier_catch_up(void)
{
	ProcSignalBarrierPending = true;
	ProcessProcSignalBarrier();
}

const char *
baton_barrier_attach(void)
{
	for (int i = 0; i < TRIES; i++)
	{
		baton_barrier_catch_up();
		if (!ProcSignalBarrierPending)
			return NULL;
	}
	return "barriers between processes cannot be caught up with";
}

/* ----------------------------------------------------------------
 *		Which role may cancel or terminate sessions of which other: the rules
 *		and the messages of pg_signal_backend(), pg_cancel_backend() and
 *		pg_terminate_backend() (signalfuncs.c), which know processes only.
 */

static bool
is_protected(Oid role)
{
	return superuser_arg(role) && !superuser();
}

static bool
is_permitted(Oid role)
{
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

bool
baton_may_signal(Oid role)
{
	return !is_protected(role) && is_permitted(role);
}

void
baton_check_may_cancel(Oid role)
{
#if PG_VERSION_NUM >= 160000
	if (is_protected(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to cancel query"),
				 errdetail("Only roles with the %s attribute may cancel queries of roles with the %s attribute.",
						   "SUPERUSER", "SUPERUSER")));
	if (!is_permitted(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to cancel query"),
				 errdetail("Only roles with privileges of the role whose query is being canceled or with privileges of the \"%s\" role may cancel this query.",
						   "pg_signal_backend")));
#else
	if (is_protected(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be a superuser to cancel superuser query")));
	if (!is_permitted(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be a member of the role whose query is being canceled or member of pg_signal_backend")));
#endif
}

void
baton_check_may_terminate(Oid role)
{
#if PG_VERSION_NUM >= 160000
	if (is_protected(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to terminate process"),
				 errdetail("Only roles with the %s attribute may terminate processes of roles with the %s attribute.",
						   "SUPERUSER", "SUPERUSER")));
	if (!is_permitted(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to terminate process"),
				 errdetail("Only roles with privileges of the role whose process is being terminated or with privileges of the \"%s\" role may terminate this process.",
						   "pg_signal_backend")));
#else
	if (is_protected(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be a superuser to terminate superuser process")));
	if (!is_permitted(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be a member of the role whose process is being terminated or member of pg_signal_backend")));
#endif
}

/* ----------------------------------------------------------------
 *		The epoll instance behind a wait set, and a socket's place in it.
 *
 * WaitEventSet is private to latch.c (waiteventset.c in 18), hence the two
 * parts needed here are searched for, once, and checked:
 * - its epoll descriptor: CreateWaitEventSet() opens exactly one descriptor
 *   (epoll_create1; 15 to 18), which is the lowest free number, and must be
 *   an epoll instance;
 * - the data word of the socket's registration: WaitEventAdjustEpoll() stores
 *   the address of the WaitEvent there, and /proc/self/fdinfo shows it.  With
 *   the same word another file on the same number is the same event to
 *   latch.c.
 */

/* The data word under which descriptor `target` is registered, or 0. */
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

/* ----------------------------------------------------------------
 *		Login event triggers, which PostgreSQL 17 introduced.
 *
 * PostgresMain() calls EventTriggerOnLogin() (event_trigger.c) between
 * BackendKeyData and its loop.  That function tests
 * MyDatabaseHasLoginEventTriggers, which InitPostgres() has read from
 * pg_database, where the flag is set when such a trigger is created or
 * enabled (SetDatabaseHasLoginEventTriggers).  So a pooled backend clears the
 * variable before, and sets it for a session that has logged in.
 * baton_login_triggers_attach() checks that the variable is still clear: that
 * the server reads the flag before BackendKeyData, once.
 */

void
baton_login_triggers_hold(void)
{
#if PG_VERSION_NUM >= 170000
	MyDatabaseHasLoginEventTriggers = false;
#endif
}

const char *
baton_login_triggers_attach(void)
{
#if PG_VERSION_NUM >= 170000
	if (MyDatabaseHasLoginEventTriggers)
		return "login event triggers cannot be held back";
#endif
	return NULL;
}

bool
baton_login_triggers_marked(Form_pg_database database)
{
#if PG_VERSION_NUM >= 170000
	return database->dathasloginevt;
#else
	return false;
#endif
}

bool
baton_login_triggers_exist(void)
{
#if PG_VERSION_NUM >= 170000
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	bool		exist = HeapTupleIsValid(tuple) &&
	baton_login_triggers_marked((Form_pg_database) GETSTRUCT(tuple));

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return exist;
#else
	return false;
#endif
}

void
baton_login_triggers_fire(void)
{
#if PG_VERSION_NUM >= 170000
	MyDatabaseHasLoginEventTriggers = true;
	PG_TRY();
	{
		EventTriggerOnLogin();
	}
	PG_FINALLY();
	{
		MyDatabaseHasLoginEventTriggers = false;
	}
	PG_END_TRY();
#endif
}

bool
baton_may_be_login_trigger(Oid catalog)
{
#if PG_VERSION_NUM >= 170000
	return catalog == EventTriggerRelationId;
#else
	return false;
#endif
}
