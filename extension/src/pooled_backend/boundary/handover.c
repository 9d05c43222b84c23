/*-------------------------------------------------------------------------
 *
 * handover.c
 *		A session comes to this backend, and leaves it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "access/xact.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "arena.h"
#include "client_input.h"
#include "client_socket.h"
#include "context.h"
#include "delta.h"
#include "dispatcher_link.h"
#include "function_table.h"
#include "handover.h"
#include "identity.h"
#include "majors.h"
#include "parameters.h"
#include "pg_process.h"
#include "pg_program.h"
#include "pooled_state.h"
#include "self_check.h"
#include "session_pid.h"
#include "session_start.h"
#include "session_statements.h"
#include "statement_cache.h"
#include "statement_tracking.h"
#include "tally.h"
#include "views.h"

/* ----------------------------------------------------------------
 *		The words by which this backend and the dispatcher agree which session
 *		the backend serves: the slot's state, the counter of the pool's ready
 *		queue, and the request for this backend's place.
 *
 * Steps that need a fixed order are modelled, together with the dispatcher's
 * side, in dispatcher/src/shell/link/handshake/model.rs, under the same names.
 * A change here requires the same change there.
 *
 * baton_control_memory.h lists the transitions of the state. Both sides change
 * it by compare-and-swap, so that a backend is claimed once: by the
 * dispatcher, which then sends ASSIGN, or by itself.
 * ----------------------------------------------------------------
 */

void
baton_state_set(uint32 state)
{
	BatonSelf.slot->state_since_us = baton_monotonic_us();
	pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->state), state);
	pg_memory_barrier();
}

void
baton_backend_retire(uint32 cause, const char *why)
{
	uint32		length = strlen(why);
	StringInfoData payload;

	/*
	 * With a session in hand the state stays BUSY until the exit has given
	 * the session back: a search for the session sees that this process may
	 * have it
	 */
	if (BatonSelf.in_hand == 0)
		baton_state_set(BATON_BACKEND_RETIRING);
	if (BatonSelf.control >= 0)
	{
		initStringInfo(&payload);
		appendBinaryStringInfo(&payload, (char *) &cause, sizeof(cause));
		appendBinaryStringInfo(&payload, (char *) &length, sizeof(length));
		appendBinaryStringInfo(&payload, why, length);
		(void) baton_channel_send(BatonSelf.control, BATON_MSG_RETIRING, 0,
								  payload.data, payload.len);
	}
	proc_exit(0);
}

bool
baton_state_claim(uint32 state_after)
{
	uint32		expected = pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->state));

	while (expected != BATON_BACKEND_ASSIGNED)
	{
		if (expected == state_after ||
			pg_atomic_compare_exchange_u32(baton_atomic_u32(BatonSelf.slot->state),
										   &expected, state_after))
			return true;
	}
	return false;
}

bool
baton_queue_has_some(void)
{
	return (int32) pg_atomic_read_u32(baton_atomic_u32(BatonSelf.pool->queued)) > 0;
}

void
baton_queue_is_low(void)
{
	pg_atomic_uint32 *held_back = baton_atomic_u32(BatonSelf.pool->is_held_back);

	if (pg_atomic_read_u32(held_back) != 0 && pg_atomic_exchange_u32(held_back, 0) != 0)
		(void) baton_channel_send(BatonSelf.control, BATON_MSG_RELEASE, 0, NULL, 0);
}

bool
baton_queue_is_readable(void)
{
	char		byte;

	return recv(BatonSelf.queue, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool
baton_retire_asked(void)
{
	uint32		asked = pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->retire));

	if (likely(asked == BATON_RETIRE_NOT))
		return false;
	if (asked == BATON_RETIRE_NOW)
		return true;
	return pg_atomic_compare_exchange_u32(baton_atomic_u32(BatonControlMemory->room_ticket),
										  &asked, BATON_TICKET_TAKEN | BatonSelf.slot_index);
}

/* ----------------------------------------------------------------
 *		Lines of the scheduling log (pg_baton.log_scheduling): which session got
 *		this backend and why, and why it keeps it.
 *
 * Callers check the parameter first. The dispatcher writes the other lines,
 * why a pool has grown or shrunk, with the same prefix
 * (scheduler/carry_out.rs); docs/operations.md describes all of them. Names
 * come last in a line, so that a user-chosen name cannot imitate the other
 * fields.
 *
 * The lines go to the server's log only (LOG_SERVER_ONLY), without a
 * statement, because the last statement that ran here was another session's.
 * Interrupts are held off: errfinish() looks for them after each line (elog.c,
 * 15 to 18), and a log line shall not cancel a session.
 * ----------------------------------------------------------------
 */

static const char *const taken_names[] = {
	[BATON_TAKEN_FROM_QUEUE] = "ready queue",
	[BATON_TAKEN_IDLE] = "idle backend",
	[BATON_TAKEN_LINGERING] = "lingering backend"
};

static void
write_line(uint64 session, const char *what, const char *fields)
{
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("pg_baton: scheduling: %s: session_pid=%d slot=%u backend_pid=%d %s user=%s database=%s",
							 what, baton_identity((uint32) session)->pid,
							 BatonSelf.slot_index, MyProcPid, fields,
							 MyProcPort->user_name, MyProcPort->database_name),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * `is_last`: this backend served the session last, which is why it was chosen,
 * if it was chosen at all (find_backend, dispatch.rs). `waits_since`: 0 if the
 * session has not waited.
 */
static void
scheduling_log_taken(uint64 session, BatonTakenBy why, bool is_last,
					 int64 waits_since)
{
	int64		waited_us = waits_since == 0 ? 0 : baton_monotonic_us() - waits_since;
	char		fields[128];

	/* another process has written waits_since */
	waited_us = Max(waited_us, 0);
	snprintf(fields, sizeof(fields), "waited_ms=%lld.%03d why=\"%s\"",
			 (long long) (waited_us / 1000), (int) (waited_us % 1000),
			 is_last && why != BATON_TAKEN_FROM_QUEUE ? "last backend" : taken_names[why]);
	write_line(session, "assigned", fields);
}

static void
scheduling_log_cause(uint64 session, uint32 cause, uint32 cause_before)
{
	char		fields[128];

	if (cause != BATON_CAUSE_NONE)
		snprintf(fields, sizeof(fields), "why=\"%s\"", baton_cause_names[cause]);
	else
		snprintf(fields, sizeof(fields), "was=\"%s\"", baton_cause_names[cause_before]);
	write_line(session, cause != BATON_CAUSE_NONE ? "dedicated" : "shared", fields);
}

/* ----------------------------------------------------------------
 *		Long waits for a backend (pg_baton.log_min_wait), and sessions that keep
 *		one for long (pg_baton.log_min_pin): a line each, as the session's.
 * ----------------------------------------------------------------
 */

static void
write_long(const char *what, int64 us, const char *why)
{
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg("pg_baton: session %s for %lld.%03d ms: %s", what,
					(long long) (us / 1000), (int) (us % 1000), why),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * Returns -1 if no line is due.  A function of its own: its variable must not
 * become one of baton_session_take(), which calls setjmp().
 */
static pg_noinline int64
long_wait_since(int64 waits_since)
{
	int64		waited_us = baton_monotonic_us() - waits_since;

	return waited_us >= (int64) baton_log_min_wait_ms * 1000 ? waited_us : -1;
}

/* `waits_since`: 0 if the session has not waited. */
static int64
long_wait_us(int64 waits_since)
{
	if (likely(baton_log_min_wait_ms < 0) || waits_since == 0)
		return -1;
	return long_wait_since(waits_since);
}

static void
log_long_wait(int64 waited_us, BatonTakenBy why)
{
	if (unlikely(waited_us >= 0))
		write_long("waited", waited_us, taken_names[why]);
}

/*
 * Once for each time that the session has become dedicated: at the end of the
 * first transaction, or of the session, after the time.  The configuration
 * alone makes no session worth a line.
 */
static void
log_long_pin(void)
{
	uint32		cause = BatonServed.cause;
	int64		kept_us;

	if (baton_log_min_pin_ms < 0 || BatonServed.pin_is_logged ||
		cause == BATON_CAUSE_NONE || cause == BATON_CAUSE_FEW_SESSIONS ||
		cause == BATON_CAUSE_POOL_MODE)
		return;
	kept_us = baton_monotonic_us() - BatonServed.pinned_since_us;
	if (kept_us < (int64) baton_log_min_pin_ms * 1000)
		return;
	BatonServed.pin_is_logged = true;
	write_long("has kept its backend", kept_us, baton_cause_names[cause]);
}

/* ----------------------------------------------------------------
 *		A bound on the memory that a backend keeps beyond one session.
 *
 * Prepared statements (statement_cache.c), compiled PL/pgSQL functions
 * (function_table.c) and catalog caches outlive the session that caused them.
 * pg_baton.backend_cache_memory bounds the growth of the process since it
 * attached. A look is due once a second while the backend works, and once
 * after it has become idle; it reads the process's anonymous memory, which is
 * one system call. If that exceeds the bound:
 * - the backend drops statements and functions, least recently used first,
 *   until the memory contexts have shrunk to three quarters of the bound;
 * - malloc_trim() returns free pages to the kernel (glibc keeps them
 *   otherwise);
 * - if the process is still far beyond the bound (catalog caches, memory that
 *   a library has allocated), the backend ends as it does when it is retired,
 *   and the dispatcher opens another when one is needed.
 *
 * What the session in place uses does not count, because a direct connection
 * would use as much: the statements that the session has looked up, and the
 * functions that were called since the last look.
 * ----------------------------------------------------------------
 */

#define LOOK_INTERVAL_MS 1000

/* A younger backend stays, however much memory it has. */
#define LEAST_AGE_MS 10000

/* A backend ends only if it exceeds twice the bound and this. */
#define RETIRE_SLACK ((Size) 16 * 1024 * 1024)

int			baton_backend_cache_memory_kb = 64 * 1024;

static BatonSelfMemory *const self = &BatonSelf.memory;

/* Milliseconds of the monotonic clock. */
static int64
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static Size
in_contexts(void)
{
	return MemoryContextMemAllocated(TopMemoryContext, true);
}

/*
 * The process's own memory, or that of its memory contexts if /proc does not
 * tell.
 */
static Size
resident(void)
{
	char		line[128];
	unsigned long size;
	unsigned long all;
	unsigned long shared;
	ssize_t		length = -1;
	int			fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
	{
		length = read(fd, line, sizeof(line) - 1);
		close(fd);
	}
	if (length <= 0)
		return in_contexts();
	line[length] = '\0';
	if (sscanf(line, "%lu %lu %lu", &size, &all, &shared) != 3 || all < shared)
		return in_contexts();
	return (Size) (all - shared) * sysconf(_SC_PAGESIZE);
}

void
baton_cache_memory_start(void)
{
	self->first_resident = resident();
	self->first_contexts = in_contexts();
	self->began_ms = self->looked_ms = now_ms();
}

void
baton_cache_memory_used(void)
{
	self->used_since_look = true;
}

long
baton_cache_memory_sleep(void)
{
	return self->used_since_look ? LOOK_INTERVAL_MS : -1;
}

/*
 * Drops caches last used before `before`, least recently used first, until the
 * contexts are no larger than `most`.
 */
static void
drop_caches(Size most, uint64 before)
{
	Size		contexts = in_contexts();

	while (contexts > most)
	{
		uint64		statement = baton_common_oldest();
		uint64		functions = baton_functions_oldest(before);

		if (statement != 0 && (functions == 0 || statement < functions))
			contexts -= Min(contexts, baton_common_drop_oldest());
		else if (functions != 0)
		{
			baton_functions_drop_oldest(before);
			contexts = in_contexts();
		}
		else
			break;
	}
}

static void
shrink(bool is_idle)
{
	Size		bound = (Size) baton_backend_cache_memory_kb * 1024;
	Size		kept;
	Size		now;

	/*
	 * statements that the last session looked up are in place until another
	 * comes
	 */
	if (baton_session_held() == 0)
		baton_statements_forget(BatonPlaced.statements.session);
	kept = bound + baton_held_bytes();
	drop_caches(self->first_contexts + kept - bound / 4,
				is_idle ? PG_UINT64_MAX : self->looked_uses);
	(void) malloc_trim(0);

	now = resident();
	if (now > self->first_resident + kept + bound + RETIRE_SLACK &&
		self->looked_ms - self->began_ms >= LEAST_AGE_MS && !BatonSelf.retire_wanted)
	{
		BatonSelf.retire_wanted = true;
		ereport(LOG,
				(errmsg("pg_baton: backend ends since it has grown by %zu kB, which it cannot free",
						(now - self->first_resident) / 1024),
				 errhint("If this happens often, raise pg_baton.backend_cache_memory.")));
	}
}

void
baton_cache_memory_look(void)
{
	int64		now;
	bool		is_idle;

	if (!self->used_since_look)
		return;
	now = now_ms();

	/*
	 * the coarse clock is up to a tick behind the clock that measures the
	 * sleep
	 */
	if (now - self->looked_ms < LOOK_INTERVAL_MS - 20)
		return;
	is_idle = self->uses == self->looked_uses;
	self->looked_ms = now;
	self->used_since_look = false;
	if (resident() > self->first_resident + (Size) baton_backend_cache_memory_kb * 1024)
	{
		shrink(is_idle);
		/* recently used entries may go when the backend has been idle */
		self->used_since_look = !is_idle;
	}
	self->looked_uses = self->uses;
}

/* ----------------------------------------------------------------
 *		A session comes to this backend, and leaves it.
 *
 * The order in which the shared words are written makes ownership unambiguous:
 * - taking: session slot's owner, then backend slot's session, then the
 *   context is put in place. If the backend dies from here on, the dispatcher
 *   finds the session in its slot and ends it.
 * - giving back: context captured and sent, owner = 0, backend slot's session
 *   = 0, the backend slot's state, and only then the socket is re-armed. From
 *   that moment another backend may serve the session, and this one must not
 *   touch it any more.
 * - in hand: between the ready queue and its slot's owner a session is known
 *   to this process alone. If the process ends then, it gives the session
 *   back.
 *
 * Taking and arming a cancel (baton_session_take, baton_session_arm_cancel)
 * are modelled with the dispatcher's side in
 * dispatcher/src/shell/link/handshake/model.rs. A change here requires the
 * same change there.
 * ----------------------------------------------------------------
 */

void
baton_idle_timeouts_end(void)
{
	if (get_timeout_active(IDLE_SESSION_TIMEOUT))
		disable_timeout(IDLE_SESSION_TIMEOUT, false);
	if (get_timeout_active(IDLE_IN_TRANSACTION_SESSION_TIMEOUT))
		disable_timeout(IDLE_IN_TRANSACTION_SESSION_TIMEOUT, false);

	/*
	 * a timeout that has fired and was not handled belongs to the same
	 * session
	 */
	IdleSessionTimeoutPending = false;
	IdleInTransactionSessionTimeoutPending = false;
}

/*
 * Before the first frame of a message on which the session's context or its
 * end depends. If the dispatcher dies before it has acted on the message, the
 * next one sees that: what is stored is not the session's context
 * (adopt.rs).
 */
static void
will_tell(uint64 session)
{
	baton_identity((uint32) session)->told++;
}

/* Likewise; the message, and the changes before it, are kept until it has. */
static void
will_tell_again(uint64 session, uint16 kind, const char *payload, int length)
{
	will_tell(session);
	baton_unheard_add(session, kind, payload, length);
}

/* Sends a message to the dispatcher; the control socket shows its death. */
static void
tell(uint16 type, uint64 session, const char *payload, Size length)
{
	if (BatonSelf.control >= 0)
		(void) baton_channel_send(BatonSelf.control, type, session, payload, length);
}

/* before_shmem_exit callback: the packet precedes the socket's end. */
static void
give_back_in_hand(int code, Datum argument)
{
	if (BatonSelf.in_hand != 0)
		tell(BATON_MSG_RELEASE, BatonSelf.in_hand, NULL, 0);
	BatonSelf.in_hand = 0;
}

/*
 * pg_terminate_backend() with the process ID of the session in place sets a
 * mark in the session's identity; at the boundary the signal only wakes
 * (identity.c). A backend that waits to send to a dispatcher that reads
 * nothing would not check the mark.
 */
static void
end_if_terminated(void)
{
	baton_terminate_check(BatonServed.session);
}

void
baton_session_start(void)
{
	before_shmem_exit(give_back_in_hand, (Datum) 0);
	baton_channel_look_also(end_if_terminated);
}

void
baton_session_received(uint64 session)
{
	BatonSelf.in_hand = session;
}

void
baton_session_send_fatal(ErrorData *edata)
{
	StringInfoData message;

	ereport(LOG,
			(errcode(edata->sqlerrcode),
			 errmsg_internal("session ended: %s", edata->message),
			 edata->detail ? errdetail_internal("%s", edata->detail) : 0,
			 errhidestmt(true)));

	pq_beginmessage(&message, 'E');
	baton_error_body(&message, edata, "FATAL");
	pq_endmessage(&message);
	pq_flush();
}

/*
 * Sends notices, ParameterStatus, BackendKeyData and ReadyForQuery, as
 * PostgresMain does for a new client (postgres.c, before its loop).
 *
 * Runs in a memory context of its own, which baton_session_take() deletes:
 * thousands of refused clients may come before PostgresMain clears
 * MessageContext.
 */
static void
greet(const BatonSessionRecord *record)
{
	StringInfoData reported;
	StringInfoData notices;
	StringInfoData payload;
	StringInfoData message;
	uint32		lasts;
	bool		login_triggers;

	initStringInfo(&reported);
	initStringInfo(&notices);
	lasts = baton_context_greet(record, &notices, &reported, &login_triggers);
	/* before GREETED: the dispatcher does the same for other sessions */
	baton_keepalive_put(baton_session_slot(record->id));
	/* other sessions may get the same greeting */
	baton_session_slot(record->id)->idle_session_timeout_ms = IdleSessionTimeout;
	initStringInfo(&payload);
	baton_wire_u32(&payload, lasts);
	baton_wire_u64(&payload, BatonSelf.start_settings);
	baton_wire_u32(&payload, notices.len);
	appendBinaryStringInfo(&payload, notices.data, notices.len);
	appendBinaryStringInfo(&payload, reported.data, reported.len);
	will_tell_again(record->id, BATON_MSG_GREETED, payload.data, payload.len);
	baton_delta_send(BatonSelf.control, record->id);
	tell(BATON_MSG_GREETED, record->id, payload.data, payload.len);

	pq_beginmessage(&message, 'K');
	pq_sendint32(&message, record->cancel_pid);
	pq_sendbytes(&message, (const char *) record->cancel_key,
				 Min(record->cancel_key_length, sizeof(record->cancel_key)));
	pq_endmessage(&message);

	if (login_triggers)
	{
		baton_login_triggers_fire();
		/* PostgresMain's loop begins with this; the next capture sees it */
		ReportChangedGUCOptions();
		baton_context_note_message('S');
	}

	pq_beginmessage(&message, 'Z');
	pq_sendbyte(&message, 'I');
	pq_endmessage(&message);
	pq_flush();
}

/*
 * If this process cannot serve the session, ends it, which gives the session
 * back.
 */
static void
look(const BatonSessionRecord *record, Oid role)
{
	switch (baton_become_look(record, role))
	{
		case BATON_BECOMES:
			break;
		case BATON_BECOMES_TOO_OLD:
			baton_backend_retire(BATON_RETIRES_SETTINGS,
								 "a session is of later settings than it was started with");
			break;
		case BATON_BECOMES_NOT:
			baton_backend_retire(BATON_RETIRES_UNCLEAN,
								 "what it keeps is one role's, and a session of another has come");
			break;
	}
}

void
baton_session_take(uint64 session, int fd, BatonTakenBy why, int64 given_us)
{
	BatonSessionSlot *slot = baton_session_slot(session);
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext greeting = NULL;
	const BatonSessionRecord *record = baton_record_if_sound(session);
	bool		is_new = record != NULL && (record->record_flags & BATON_RECORD_GREET) != 0;
	uint32		held_off = QueryCancelHoldoffCount;
	bool		failed = false;
	int64		waits_since;
	int64		waited_us;
	bool		is_last = slot->last_backend == BatonSelf.slot_index + 1;
	Oid			role = baton_identity((uint32) session)->role_oid;

	Assert(BatonServed.session == 0);
	if (unlikely(baton_force_role_changes))
		baton_become_another();
	/* the session is in hand: the exit of this process gives it back */
	if (likely(record != NULL))
		look(record, role);
	BatonServed.greeted_here = is_new;
	BatonServed.input.just_taken = true;
	BatonServed.input.installed = true;

	/* A new session waits for its greeting; all others wait for an answer. */
	baton_cancel_session_asks(!is_new);

	/* a remaining cancel was for a command on another backend */
	baton_identity((uint32) session)->cancel = 0;

	/*
	 * In this order: a process that sees us as the owner may send us its
	 * cancel.
	 */
	BatonSelf.slot->session = session;
	pg_write_barrier();
	slot->owner = BatonSelf.slot_index + 1;

	/*
	 * Before take_cancel reads the flags: the process that sets the mark
	 * looks at the owner after that (mark_cancel, handshake/mod.rs), so one
	 * of the two sees the other.
	 */
	pg_memory_barrier();
	BatonSelf.in_hand = 0;
	waits_since = slot->state == BATON_STATE_WAITING ?
		slot->state_since_us : 0;
	waited_us = long_wait_us(waits_since);
	slot->state = BATON_STATE_ACTIVE;
	slot->state_since_us = baton_monotonic_us();
	if (!is_last)
		slot->migrations++;
	slot->last_backend = BatonSelf.slot_index + 1;
	BatonSelf.slot->switches++;
	BatonServed.role = role;
	BatonServed.session = session;
	baton_own_statistics_begin(slot->state_since_us);
	baton_pid_take(session);
	baton_socket_put(fd);

	/* From now on the session ends with this process and goes to no other. */
	if (unlikely(record == NULL || !OidIsValid(role)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("session record %u is damaged", (uint32) session)));
	BatonServed.tenant = baton_tenant_slot(record->tenant);
	BatonSelf.slot->tenant = record->tenant + 1;
	baton_tally_of(record->tenant, BatonServed.tenant->serial);
	baton_tally_taken(why == BATON_TAKEN_FROM_QUEUE, slot->state_since_us, given_us, waits_since);
	baton_become(role, BatonServed.tenant);
	if (is_new)
		greeting = AllocSetContextCreate(caller, "pg_baton greeting",
										 ALLOCSET_DEFAULT_SIZES);

	PG_TRY();
	{
		baton_role_check();
		/* tests: as if the role had changed since */
		if (unlikely(baton_self_check_is_broken("session_role")) && slot->transactions > 0)
			BatonServed.role = InvalidOid;
		baton_identity_put(record);
		baton_keepalive_relayed(record->is_relayed != 0);
		if (greeting != NULL)
		{
			uint64		sent = BatonSelf.tally->counts[BATON_COUNT_SENT];

			MemoryContextSwitchTo(greeting);
			greet(record);
			/* a greeting that the dispatcher sends is not counted either */
			BatonSelf.tally->counts[BATON_COUNT_SENT] = sent;
		}
		else
		{
			baton_context_install(record);
			baton_keepalive_put(slot);
		}
		/* log lines show the session, and its application_name, from now on */
		if (unlikely(baton_log_scheduling))
			scheduling_log_taken(session, why, is_last, waits_since);
		log_long_wait(waited_us, why);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		/*
		 * What was being built when memory ran out is half made and must not
		 * serve another session: the backend ends, too. The same holds for
		 * state that cannot be removed, because the backend is not pooled.
		 */
		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_INSUFFICIENT_RESOURCES ||
			baton_unpooled())
			PG_RE_THROW();

		/*
		 * memory used for the error is freed with the greeting's, if there is
		 * one
		 */
		MemoryContextSwitchTo(greeting ? greeting : caller);
		edata = CopyErrorData();
		FlushErrorState();
		QueryCancelHoldoffCount = held_off;
		if (IsTransactionState() || IsAbortedTransactionBlockState())
			AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(greeting ? greeting : caller);
		baton_session_send_fatal(edata);
		FreeErrorData(edata);
		failed = true;
	}
	PG_END_TRY();

	MemoryContextSwitchTo(caller);
	if (greeting != NULL)
		MemoryContextDelete(greeting);

	/* any error sets it to zero, even one that was caught further below */
	QueryCancelHoldoffCount = held_off;

	if (failed)
	{
		baton_input_discard_unread();
		baton_session_end(BATON_END_ERROR, BATON_BACKEND_IDLE);
	}
}

/*
 * Did a cancel request come for the held session while it waited for a
 * backend?
 */
static bool
take_cancel(void)
{
	pg_atomic_uint32 *flags = baton_atomic_u32(baton_session_slot(BatonServed.session)->flags);

	if ((pg_atomic_read_u32(flags) & BATON_SESSION_CANCEL) == 0)
		return false;
	pg_atomic_fetch_and_u32(flags, ~(uint32) BATON_SESSION_CANCEL);
	return true;
}

void
baton_session_arm_cancel(void)
{
	if (take_cancel())
		baton_cancel_arm();
}

void
baton_session_void_cancel(void)
{
	(void) take_cancel();
	baton_cancel_session_asks(false);
}

/* Do the collected changes fit now? */
static uint32
lacks_memory(void)
{
	int64		growth = baton_delta_growth();
	Size		size = baton_delta_size();

	if (size > 0 && !baton_arena_has_room(baton_record(BatonServed.session)->account, size) &&
		!(baton_delta_shrinks() && baton_arena_has_room_to_shrink(size)))
		return BATON_CAUSE_CONTEXT_MEMORY;

	/* a session that takes no more memory is accepted even above the limit */
	if (growth > 0 &&
		growth > (int64) pg_atomic_read_u64(baton_atomic_u64(BatonServed.tenant->memory_left)))
		return BATON_CAUSE_POOL_MEMORY;
	return BATON_CAUSE_NONE;
}

uint32
baton_session_lacks_memory(void)
{
	uint64		session = baton_session_held();
	uint32		cause;

	if (session == 0)
		return BATON_CAUSE_NONE;
	cause = lacks_memory();
	if (cause == BATON_CAUSE_NONE || baton_unpooled() || BatonServed.delta_too_large)
		return cause;

	/* The session may have undone the change that did not fit. */
	(void) baton_context_capture(session);
	baton_delta_settle(baton_record(session));
	return lacks_memory();
}

/*
 * The epoll in which the session's socket is armed, as Sockets::epoll() in
 * sockets.rs computes it.
 */
static int
session_epoll(uint64 session)
{
	return BatonSelf.epolls[(uint32) session % BatonSelf.epoll_count];
}

/*
 * Clears BatonServed: no session is in place. Called at each hand-over, after
 * all that must be kept of the session has gone to the dispatcher, and before
 * the backend's slot says that the session has left.
 */
static void
forget_served(void)
{
	static const BatonServedSession nobody;

	/* state that stands elsewhere: a timer, and the buffer of changes */
	baton_message_timeout_end();
	baton_delta_drop();
	/* what the session used counts from now on */
	baton_cache_memory_used();

	BatonServed = nobody;
}

bool
baton_session_release(uint32 state_after, bool tell_always)
{
	BatonSessionSlot *slot = baton_session_slot(BatonServed.session);
	uint64		session = BatonServed.session;
	bool		news;

	Assert(BatonServed.session != 0);

	/* the rest of the message is not for another backend */
	if (unlikely(baton_input_is_within_noop()))
		return false;

	/*
	 * Collects the changes since the session came, or since the last attempt.
	 */
	if (baton_session_lacks_memory() != BATON_CAUSE_NONE)
		return false;
	(void) baton_context_capture(session);
	if (baton_session_lacks_memory() != BATON_CAUSE_NONE)
		return false;
	if (baton_arena_claim(session, baton_delta_size()) && lacks_memory() != BATON_CAUSE_NONE)
	{
		baton_arena_claim_no_more(session);
		return false;
	}

	/*
	 * The socket was armed for its end only. Such an event may have been
	 * taken out of the epoll already. If the session were given back without
	 * a message, the dispatcher could not tell that event from one of the
	 * armed socket, and would hand the session on before it is armed here.
	 */
	news = baton_delta_size() > 0 || tell_always || BatonServed.greeted_here ||
		baton_session_is_counted() || BatonSelf.epoll_count == 0;

	/*
	 * Under forced migration the statistics shall show the session's work as
	 * if it had stayed in one backend, which would flush them in time;
	 * otherwise the rate limit of pgstat_report_stat holds as in stock.
	 */
	if (BatonControlMemory->force_migration != 0)
	{
		pgstat_report_stat(true);
		baton_own_statistics_reported();
	}

	baton_idle_timeouts_end();

	if (news)
		will_tell_again(session, BATON_MSG_RELEASE, NULL, 0);
	baton_delta_send(BatonSelf.control, session);

	slot->state = BATON_STATE_IDLE;
	slot->state_since_us = BatonSelf.slot->state_since_us = baton_monotonic_us();
	slot->idle_session_timeout_ms = IdleSessionTimeout;
	baton_keepalive_leave(slot);
	slot->dedicated_cause = BATON_CAUSE_NONE;
	forget_served();
	baton_pid_leave(session, true);

	pg_write_barrier();
	slot->owner = 0;
	BatonSelf.slot->session = 0;
	pg_write_barrier();
	pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->state), state_after);
	pg_memory_barrier();

	/* the dispatcher ends a session that is to be terminated */
	if (news || baton_pid_is_terminated(session))
		tell(BATON_MSG_RELEASE, session, NULL, 0);
	else
	{
		struct epoll_event event;

		memset(&event, 0, sizeof(event));
		event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
		event.data.u64 = session;

		/*
		 * The item's key is (file, number); the dispatcher added it under
		 * this number. If it is missing, the dispatcher is about to close the
		 * session or has gone, and arming is pointless.
		 */
		(void) epoll_ctl(session_epoll(session), EPOLL_CTL_MOD, BatonSelf.client_number, &event);
	}
	return true;
}

void
baton_session_bounce(uint64 session, int fd)
{
	close(fd);
	/* one that has ended on its way has left its slot to another */
	if (baton_session_is_named(session))
	{
		/* if this dispatcher dies, the next one asks this backend for it */
		baton_session_slot(session)->last_backend = BatonSelf.slot_index + 1;
		will_tell_again(session, BATON_MSG_RELEASE, NULL, 0);
	}
	tell(BATON_MSG_RELEASE, session, NULL, 0);
	BatonSelf.in_hand = 0;
}

void
baton_session_end(uint32 how, uint32 state_after)
{
	uint64		session = BatonServed.session;
	BatonSessionSlot *slot = baton_session_slot(session);

	Assert(BatonServed.session != 0);

	baton_pid_note_name(session);
	log_long_pin();

	/*
	 * The context goes first: if this fails, the backend dies, and the
	 * dispatcher still finds the session in its slot.
	 */
	baton_context_forget(session);
	baton_idle_timeouts_end();
	forget_served();
	baton_pid_leave(session, false);
	slot->dedicated_cause = BATON_CAUSE_NONE;
	BatonSelf.slot->dedicated_cause = BATON_CAUSE_NONE;
	will_tell(session);
	pg_write_barrier();
	slot->owner = 0;
	BatonSelf.slot->session = 0;
	baton_socket_clear();
	baton_identity_clear();

	/* no dispatcher: the process ends, or waits for one */
	if (BatonSelf.control < 0)
		state_after = BATON_BACKEND_BUSY;

	/*
	 * Before the message: on receipt the dispatcher looks for a free backend.
	 */
	pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->state), state_after);
	pg_memory_barrier();
	tell(BATON_MSG_END, session, (char *) &how, sizeof(how));
}

void
baton_session_note_cause(uint32 cause)
{
	uint32		cause_before = BatonServed.cause;

	if (BatonServed.session == 0)
		return;
	log_long_pin();
	if (cause == cause_before)
		return;
	if (cause_before == BATON_CAUSE_NONE)
	{
		BatonServed.pinned_since_us = baton_monotonic_us();
		BatonServed.pin_is_logged = false;
	}
	BatonServed.cause = cause;
	baton_session_slot(BatonServed.session)->dedicated_cause = cause;
	BatonSelf.slot->dedicated_cause = cause;
	tell(BATON_MSG_DEDICATED, BatonServed.session, (char *) &cause, sizeof(cause));
	if (unlikely(baton_log_scheduling))
		scheduling_log_cause(BatonServed.session, cause, cause_before);
}

void
baton_session_orphaned(void)
{
	BatonBackendSlot *slot = BatonSelf.slot;
	uint32		cause_before = BatonServed.cause;
	uint32		state;

	/* a dispatcher that lives has ended this process, and freed the slot */
	if (slot->pid == (uint32) MyProcPid)
	{
		if (BatonServed.session != 0)
			slot->dedicated_cause = BATON_CAUSE_DISPATCHER_GONE;
		/* it may have claimed this process, and died before it sent a session */
		state = pg_atomic_read_u32(baton_atomic_u32(slot->state));
		if (state != BATON_BACKEND_FREE && state != BATON_BACKEND_STARTING)
			(void) pg_atomic_compare_exchange_u32(baton_atomic_u32(slot->state),
												  &state, BATON_BACKEND_BUSY);
	}
	if (BatonServed.session == 0)
		return;
	BatonServed.cause = BATON_CAUSE_DISPATCHER_GONE;
	if (unlikely(baton_log_scheduling))
		scheduling_log_cause(BatonServed.session, BatonServed.cause, cause_before);
}
