/*-------------------------------------------------------------------------
 *
 * session_pid.c
 *		A session's process ID: the process that serves it, the SQL functions
 *		that return or take process IDs, and signals to sessions.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/backend_status.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "dispatcher_link.h"
#include "later_functions.h"
#include "parameters.h"
#include "pg_process.h"
#include "pg_program.h"
#include "pooled_state.h"
#include "self_check.h"
#include "session_pid.h"

/* ----------------------------------------------------------------
 *		A session's process ID, and the process that serves it.
 *
 * A session's process ID is the number in its BackendKeyData; no process of
 * the operating system can have it.  The dispatcher allots it, and enters the
 * session's slot into a directory in CONTROL, so that any process of the
 * server finds the session of a number.  The number of an ended session finds
 * none: the BatonIdentity of the slot has another number by then.
 *
 * Only the backend itself determines which session it serves.  A process that
 * asks from outside may be late: a backend can switch sessions between two
 * looks at it.  So nothing is ever attributed by looking twice.  What the
 * server shows of a backend contains the session (pg_process.c), or the local
 * transaction ID in which it was done.  Each session that is put in place
 * takes a local transaction ID under which no transaction runs
 * (GetNextLocalTransactionId, sinvaladt.c, counts up and is used by
 * StartTransaction alone).  So the IDs of the session's own transactions are
 * greater, and greater than those of all earlier sessions.
 */

/* A writer finishes within a microsecond, unless it is not scheduled. */
#define READ_TRIES 100000

typedef struct ServingBackend
{
	int			process;
	int			pid;			/* of the session in place; 0: none */
	uint32		switches;
	uint64		served[BATON_BACKEND_SERVED];
} ServingBackend;

struct BatonServing
{
	int			count;
	ServingBackend backends[FLEXIBLE_ARRAY_MEMBER]; /* sorted by process */
};

int			baton_my_pid = 0;

uint64
baton_pid_find(int pid)
{
	uint32		holder;
	BatonIdentity *identity;
	uint64		session;

	if (!baton_pid_is_session(pid) || BatonControlMemory == NULL)
		return 0;
	holder = pg_atomic_read_u32(baton_atomic_u32(*baton_pid_entry(pid)));
	if (holder == 0 || holder > BatonControlMade.session_slots)
		return 0;
	identity = baton_identity(holder - 1);
	session = pg_atomic_read_u64(baton_atomic_u64(identity->id));
	pg_read_barrier();
	if (session == 0 || identity->pid != pid)
		return 0;

	/* the session that had the slot may have ended in between */
	pg_read_barrier();
	return pg_atomic_read_u64(baton_atomic_u64(identity->id)) == session ? session : 0;
}

static void
end_text(uint8 *text, Size size)
{
	text[		size - 1] = '\0';
}

/*
 * Any process may have written there: showing the values must not raise an
 * error.
 */
static void
make_sound(BatonIdentity *copy)
{
	BatonTls   *tls = &copy->tls;
	const char *serial = (const char *) tls->client_serial;

	copy->login_time_us = baton_sound_timestamp(copy->login_time_us);
	copy->query_start_us = baton_sound_timestamp(copy->query_start_us);
	copy->idle_since_us = baton_sound_timestamp(copy->idle_since_us);
	end_text(copy->application_name, sizeof(copy->application_name));
	end_text(tls->version, sizeof(tls->version));
	end_text(tls->cipher, sizeof(tls->cipher));
	end_text(tls->client_dn, sizeof(tls->client_dn));
	end_text(tls->client_serial, sizeof(tls->client_serial));
	end_text(tls->issuer_dn, sizeof(tls->issuer_dn));

	/* the serial must be a number, since the views show it as one */
	if (*serial == '-')
		serial++;
	if (serial[0] == '\0' || serial[strspn(serial, "0123456789")] != '\0')
		tls->client_serial[0] = '\0';
}

bool
baton_identity_read_slot(uint32 index, BatonIdentity *copy, char *query)
{
	BatonIdentity *identity = baton_identity(index);
	uint32		size = BatonControlMade.query_size;

	for (int i = 0; i < READ_TRIES; i++)
	{
		uint64		session = pg_atomic_read_u64(baton_atomic_u64(identity->id));
		uint32		changes = pg_atomic_read_u32(baton_atomic_u32(identity->changes));

		if (session == 0)
			return false;
		pg_read_barrier();
		if ((changes & 1) == 0)
		{
			memcpy(copy, identity, sizeof(*copy));
			if (query != NULL)
			{
				const char *text = baton_query_text(index);
				Size		length = strnlen(text, size - 1);

				memcpy(query, text, length);
				query[length] = '\0';
			}
			pg_read_barrier();
			if (pg_atomic_read_u32(baton_atomic_u32(identity->changes)) == changes &&
				pg_atomic_read_u64(baton_atomic_u64(identity->id)) == session)
			{
				copy->id = session;
				make_sound(copy);
				return true;
			}
		}
		pg_spin_delay();
	}
	return false;
}

bool
baton_identity_read(uint64 session, BatonIdentity *copy)
{
	return session != 0 && (uint32) session < BatonControlMade.session_slots &&
		baton_identity_read_slot((uint32) session, copy, NULL) && copy->id == session;
}

int
baton_pid_process(uint64 session)
{
	uint32		owner;
	BatonBackendSlot *backend;
	int			process;

	if (!baton_session_is_named(session))
		return 0;
	owner = pg_atomic_read_u32(baton_atomic_u32(baton_session_slot_at((uint32) session)->owner));
	pg_read_barrier();
	if (owner == 0 || owner > BatonControlMade.backend_slots)
		return 0;
	backend = baton_backend_slot(owner - 1);
	process = (int) pg_atomic_read_u32(baton_atomic_u32(backend->pid));
	if (backend->session != session)
		return 0;

	/* the number will be signalled: it must be that of a backend */
	return process > 0 && BackendPidGetProc(process) != NULL ? process : 0;
}

/* --------------------------------
 *		in the backend
 * --------------------------------
 */

void
baton_pid_take(uint64 session)
{
	BatonBackendSlot *slot = BatonSelf.slot;
	uint32		next = (slot->served_last + 1) % BATON_BACKEND_SERVED;

	baton_my_pid = baton_identity((uint32) session)->pid;
	pg_atomic_write_u64(baton_atomic_u64(slot->served[next]),
						(uint64) (uint32) baton_my_pid << 32 | GetNextLocalTransactionId());
	slot->served_last = next;

	/*
	 * a process that reads another owner than this backend has stored
	 * `terminate` before its read
	 */
	pg_memory_barrier();
}

void
baton_pid_note_name(uint64 session)
{
	BatonIdentity *identity = baton_identity((uint32) session);

	if (MyBEEntry == NULL)
		return;
	/* odd, even if a process that died here left it odd */
	identity->changes |= 1;
	pg_write_barrier();
	memcpy(identity->application_name, MyBEEntry->st_appname,
		   sizeof(identity->application_name));
	pg_write_barrier();
	identity->changes++;
}

void
baton_pid_leave(uint64 session, bool goes_on)
{
	uint32		index = (uint32) session;
	BatonIdentity *identity = baton_identity(index);
	const PgBackendStatus *entry = MyBEEntry;

	if (entry != NULL)
	{
		/* odd, even if a process that died here left it odd */
		identity->changes |= 1;
		pg_write_barrier();
		if (!pgstat_track_activities)
		{
			baton_query_text(index)[0] = '\0';
			identity->query_id = 0;
			identity->query_start_us = 0;
		}
		else if (entry->st_activity_raw[0] != '\0')
		{
			char	   *text = baton_query_text(index);
			Size		length = strnlen(entry->st_activity_raw,
										 BatonControlMade.query_size - 1);

			memcpy(text, entry->st_activity_raw, length);
			text[		length] = '\0';

			identity->query_id = entry->st_query_id;
			identity->query_start_us = entry->st_activity_start_timestamp;
		}
		identity->idle_since_us = entry->st_state_start_timestamp;
		identity->is_tracked = pgstat_track_activities;
		if (goes_on)
			memcpy(identity->application_name, entry->st_appname,
				   sizeof(identity->application_name));
		pg_write_barrier();
		identity->changes++;

		/* from here on this backend's entry does not show the session */
		baton_entry_forget_session();
	}
	baton_my_pid = 0;
}

bool
baton_pid_is_terminated(uint64 session)
{
	return unlikely(pg_atomic_read_u64(baton_atomic_u64(baton_identity((uint32) session)->terminate)) == session);
}

/* --------------------------------
 *		which session a process served
 */

static int
compare_backends(const void *one, const void *other)
{
	int			a = ((const ServingBackend *) one)->process;
	int			b = ((const ServingBackend *) other)->process;

	return (a > b) - (a < b);
}

BatonServing *
baton_serving_read(void)
{
	uint32		slots = BatonControlMade.backend_slots;
	BatonServing *serving = palloc(offsetof(BatonServing, backends) +
								   sizeof(ServingBackend) * slots);

	serving->count = 0;
	for (uint32 i = 0; i < slots; i++)
	{
		BatonBackendSlot *slot = baton_backend_slot(i);
		ServingBackend *backend = &serving->backends[serving->count];
		BatonIdentity identity;

		backend->process = (int) pg_atomic_read_u32(baton_atomic_u32(slot->pid));
		if (slot->state == BATON_BACKEND_FREE || backend->process == 0)
			continue;
		for (int j = 0; j < BATON_BACKEND_SERVED; j++)
			backend->served[j] = pg_atomic_read_u64(baton_atomic_u64(slot->served[j]));
		backend->switches = (uint32) slot->switches;
		pg_read_barrier();
		backend->pid = baton_identity_read(slot->session, &identity) ? identity.pid : 0;
		serving->count++;
	}
	qsort(serving->backends, serving->count, sizeof(ServingBackend), compare_backends);
	return serving;
}

static const ServingBackend *
find_backend(const BatonServing *serving, int process)
{
	ServingBackend wanted = {.process = process};

	return bsearch(&wanted, serving->backends, serving->count,
				   sizeof(ServingBackend), compare_backends);
}

int
baton_serving_pid(const BatonServing *serving, int process)
{
	const ServingBackend *backend = find_backend(serving, process);

	return backend == NULL ? process : backend->pid;
}

int
baton_serving_pid_at(const BatonServing *serving, int process, uint32 lxid)
{
	const ServingBackend *backend = find_backend(serving, process);
	const uint64 *found = NULL;

	if (backend == NULL)
		return process;
	if (lxid == InvalidLocalTransactionId)
		return backend->pid;
	for (int i = 0; i < BATON_BACKEND_SERVED; i++)
	{
		const uint64 *served = &backend->served[i];

		/* the latest entry that began before lxid; numbers may wrap */
		if (*served != 0 && (int32) ((uint32) *served - lxid) < 0 &&
			(found == NULL || (int32) ((uint32) *served - (uint32) *found) > 0))
			found = served;
	}
	return found == NULL ? process : (int) (*found >> 32);
}

bool
baton_serving_same(const BatonServing *one, const BatonServing *other, int process)
{
	const ServingBackend *before = find_backend(one, process);
	const ServingBackend *after = find_backend(other, process);

	if (before == NULL || after == NULL)
		return before == after;
	return before->pid == after->pid && before->switches == after->switches;
}

/* ----------------------------------------------------------------
 *		SQL functions that return or take process IDs, and their replacements.
 *
 * A session of the pool has one process ID for its life, while the processes
 * that serve it change.  The replacements call the server's function with the
 * process's number, and return the session's for each process in its result.
 * A number that belongs to no session is passed to the server's function as
 * it is.  All backends use the replacements, those on the server's own port
 * included.
 *
 * docs/design/session-pids.md has the details.
 */

static bool active = false;

static Datum
baton_sql_my_pid(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(baton_my_pid != 0 ? baton_my_pid : MyProcPid);
}

static const BatonBuiltin builtins[] =
{
	{F_PG_BACKEND_PID, "pg_backend_pid", pg_backend_pid, baton_sql_my_pid},
	{F_PG_CANCEL_BACKEND, "pg_cancel_backend", pg_cancel_backend, baton_sql_cancel_backend},
	{F_PG_TERMINATE_BACKEND, "pg_terminate_backend", pg_terminate_backend, baton_sql_terminate_backend},
	{F_PG_LOG_BACKEND_MEMORY_CONTEXTS, "pg_log_backend_memory_contexts", pg_log_backend_memory_contexts, baton_sql_log_memory_contexts},
	{F_PG_NOTIFY, "pg_notify", pg_notify, baton_sql_notify},
	{F_PG_STAT_GET_ACTIVITY, "pg_stat_get_activity", pg_stat_get_activity, baton_sql_activity},
	{F_PG_STAT_GET_PROGRESS_INFO, "pg_stat_get_progress_info", pg_stat_get_progress_info, baton_sql_progress},
	{F_PG_GET_REPLICATION_SLOTS, "pg_get_replication_slots", pg_get_replication_slots, baton_sql_replication_slots},
	{F_PG_LOCK_STATUS, "pg_lock_status", pg_lock_status, baton_sql_lock_status},
	{F_PG_BLOCKING_PIDS, "pg_blocking_pids", pg_blocking_pids, baton_sql_blocking_pids},
	{F_PG_SAFE_SNAPSHOT_BLOCKING_PIDS, "pg_safe_snapshot_blocking_pids", pg_safe_snapshot_blocking_pids, baton_sql_safe_snapshot_blocking_pids},
	{F_PG_ISOLATION_TEST_SESSION_IS_BLOCKED, "pg_isolation_test_session_is_blocked", pg_isolation_test_session_is_blocked, baton_sql_isolation_is_blocked},
	{F_PG_STAT_GET_BACKEND_IDSET, "pg_stat_get_backend_idset", pg_stat_get_backend_idset, baton_sql_backend_idset},
	{F_PG_STAT_GET_BACKEND_PID, "pg_stat_get_backend_pid", pg_stat_get_backend_pid, baton_sql_backend_pid},
	{F_PG_STAT_GET_BACKEND_DBID, "pg_stat_get_backend_dbid", pg_stat_get_backend_dbid, baton_sql_backend_dbid},
	{F_PG_STAT_GET_BACKEND_USERID, "pg_stat_get_backend_userid", pg_stat_get_backend_userid, baton_sql_backend_userid},
	{F_PG_STAT_GET_BACKEND_ACTIVITY, "pg_stat_get_backend_activity", pg_stat_get_backend_activity, baton_sql_backend_activity},
	{F_PG_STAT_GET_BACKEND_WAIT_EVENT_TYPE, "pg_stat_get_backend_wait_event_type", pg_stat_get_backend_wait_event_type, baton_sql_backend_wait_event_type},
	{F_PG_STAT_GET_BACKEND_WAIT_EVENT, "pg_stat_get_backend_wait_event", pg_stat_get_backend_wait_event, baton_sql_backend_wait_event},
	{F_PG_STAT_GET_BACKEND_ACTIVITY_START, "pg_stat_get_backend_activity_start", pg_stat_get_backend_activity_start, baton_sql_backend_activity_start},
	{F_PG_STAT_GET_BACKEND_XACT_START, "pg_stat_get_backend_xact_start", pg_stat_get_backend_xact_start, baton_sql_backend_xact_start},
	{F_PG_STAT_GET_BACKEND_START, "pg_stat_get_backend_start", pg_stat_get_backend_start, baton_sql_backend_start},
	{F_PG_STAT_GET_BACKEND_CLIENT_ADDR, "pg_stat_get_backend_client_addr", pg_stat_get_backend_client_addr, baton_sql_backend_client_addr},
	{F_PG_STAT_GET_BACKEND_CLIENT_PORT, "pg_stat_get_backend_client_port", pg_stat_get_backend_client_port, baton_sql_backend_client_port},
	{F_PG_STAT_GET_BACKEND_SUBXACT, "pg_stat_get_backend_subxact", pg_stat_get_backend_subxact, baton_sql_backend_subxact},
	{F_PG_STAT_GET_BACKEND_IO, "pg_stat_get_backend_io", pg_stat_get_backend_io, baton_sql_backend_io},
	{F_PG_STAT_GET_BACKEND_WAL, "pg_stat_get_backend_wal", pg_stat_get_backend_wal, baton_sql_backend_wal},
	{F_PG_STAT_RESET_BACKEND_STATS, "pg_stat_reset_backend_stats", pg_stat_reset_backend_stats, baton_sql_reset_backend_stats},
	{F_PG_GET_AIOS, "pg_get_aios", pg_get_aios, baton_sql_aios},
};

bool
baton_pids_active(void)
{
	return active;
}

void
baton_pids_init(void)
{
	const char *problem;

	if (baton_self_check_is_broken("process_ids"))
		problem = "broken on purpose";
	else
		problem = baton_builtins_replace(builtins, lengthof(builtins));
	active = problem == NULL;
	if (!active)
		baton_self_check_failed(BATON_COSTS_PIDS, problem);
}

/* ----------------------------------------------------------------
 *		pg_cancel_backend(), pg_terminate_backend() and
 *		pg_log_backend_memory_contexts() for sessions of the pool, whatever
 *		their owner.
 *
 * A session that runs is cancelled by a word that names it, and a signal to
 * its backend.  If no backend holds the session, the dispatcher cancels it,
 * as for clients' own cancel requests (requests.rs): it knows whether the
 * session waits, and then answers the session at once.
 *
 * To terminate a session, its BatonIdentity is marked first, and the mark
 * stays until the session has ended (identity.c says which code checks it).
 * Then the session's owner is notified: a backend by a signal, the dispatcher
 * by a question.
 *
 * Sessions that outlived their dispatcher have a backend for life; for them
 * only the backend is signalled.
 */

/* After this time without an answer the dispatcher counts as failed. */
#define ANSWER_TIMEOUT_MS 10000

#define WAIT_STEP_MS 100

/*
 * Has the dispatcher do it, and waits until it has.  Returns false if there is
 * no dispatcher.
 */
static bool
ask_dispatcher(uint32 what, uint64 session)
{
	StringInfoData hello;
	BatonIncoming incoming;
	volatile bool done = false;
	int			fd = baton_channel_connect();

	if (fd < 0)
		return false;
	ReserveExternalFD();
	PG_TRY();
	{
		baton_question_init(&hello, what);
		done = baton_channel_send(fd, BATON_MSG_HELLO_QUERY, session, hello.data, hello.len) &&
			baton_answer_next(fd, ANSWER_TIMEOUT_MS, &incoming) == BATON_RECEIVED_FRAME &&
			incoming.frame.kind == BATON_MSG_DONE;
	}
	PG_FINALLY();
	{
		close(fd);
		ReleaseExternalFD();
	}
	PG_END_TRY();
	return done;
}

/* Signals the backend that holds the session; false if none does. */
static bool
signal_backend(uint64 session, bool cancel)
{
	int			process = baton_pid_process(session);

	if (process == 0)
		return false;
	if (cancel)
		pg_atomic_write_u64(baton_atomic_u64(baton_identity((uint32) session)->cancel), session);
	(void) kill(process, SIGUSR2);
	return true;
}

/*
 * Raises an ERROR if the caller may not signal a session of this role.  For
 * the caller's own session the server's function raises it, so that the error
 * has its place in the server's source: called for this process, which has the
 * same role, it gives the same result (pg_signal_backend, signalfuncs.c).  It
 * is not called for another session's process, which may serve a different
 * session by then.
 */
static void
check_permission(uint64 session, Oid role, PGFunction original,
				 void (*check) (Oid))
{
	if (session == baton_session_held() && !baton_may_signal(role))
		(void) DirectFunctionCall2(original, Int32GetDatum(MyProcPid), Int64GetDatum(0));
	check(role);
}

Datum
baton_sql_cancel_backend(PG_FUNCTION_ARGS)
{
	uint64		session = baton_pid_find(PG_GETARG_INT32(0));
	BatonIdentity identity;

	if (session == 0 || !baton_identity_read(session, &identity))
		return pg_cancel_backend(fcinfo);
	check_permission(session, identity.role_oid, pg_cancel_backend,
					 baton_check_may_cancel);
	PG_RETURN_BOOL(signal_backend(session, true) ||
				   ask_dispatcher(BATON_QUERY_CANCEL, session));
}

/* Has the session ended, and also the backend that it ended in? */
static bool
has_ended(uint64 session, int process)
{
	BatonIdentity identity;

	if (baton_identity_read(session, &identity))
		return false;
	return process == 0 || kill(process, 0) != 0;
}

static bool
wait_until_ended(uint64 session, int process, int pid, int64 timeout_ms)
{
	int64		left_ms = timeout_ms;

	while (!has_ended(session, process))
	{
		int64		step_ms = Min(left_ms, WAIT_STEP_MS);

		if (left_ms <= 0)
		{
			ereport(WARNING,
					(errmsg_plural("backend with PID %d did not terminate within %lld millisecond",
								   "backend with PID %d did not terminate within %lld milliseconds",
								   timeout_ms,
								   pid, (long long int) timeout_ms)));
			return false;
		}
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 step_ms, WAIT_EVENT_BACKEND_TERMINATION);
		ResetLatch(MyLatch);
		left_ms -= step_ms;
	}
	return true;
}

Datum
baton_sql_terminate_backend(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	int64		timeout_ms = PG_GETARG_INT64(1);
	uint64		session = baton_pid_find(pid);
	BatonIdentity identity;
	int			process;

	/*
	 * the server's function rejects a negative time before it looks at the
	 * number
	 */
	if (session == 0 || timeout_ms < 0 || !baton_identity_read(session, &identity))
		return pg_terminate_backend(fcinfo);
	check_permission(session, identity.role_oid, pg_terminate_backend,
					 baton_check_may_terminate);

	pg_atomic_write_u64(baton_atomic_u64(baton_identity((uint32) session)->terminate), session);
	pg_memory_barrier();

	/* the session's locks are held until the process has ended */
	process = baton_pid_process(session);
	if (!signal_backend(session, false))
		(void) ask_dispatcher(BATON_QUERY_TERMINATE, session);
	PG_RETURN_BOOL(timeout_ms == 0 || wait_until_ended(session, process, pid, timeout_ms));
}

Datum
baton_sql_log_memory_contexts(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	uint64		session = baton_pid_find(pid);
	int			process;

	if (session == 0)
		return pg_log_backend_memory_contexts(fcinfo);
	process = baton_pid_process(session);
	if (process == 0)
	{
		ereport(WARNING,
				(errmsg("session with PID %d has no memory contexts, as no backend serves it", pid)));
		PG_RETURN_BOOL(false);
	}
	return DirectFunctionCall1(pg_log_backend_memory_contexts, Int32GetDatum(process));
}
