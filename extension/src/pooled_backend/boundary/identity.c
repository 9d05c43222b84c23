/*-------------------------------------------------------------------------
 *
 * identity.c
 *		The session that the backend shows itself as: its role, its addresses,
 *		its cancel requests.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "executor/executor.h"
#include "libpq/libpq-be.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "parser/analyze.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/timestamp.h"

#include "arena.h"
#include "context.h"
#include "dispatcher_link.h"
#include "identity.h"
#include "majors.h"
#include "pg_port.h"
#include "pg_process.h"
#include "pg_roles.h"
#include "pooled_state.h"
#include "reset_values.h"
#include "self_check.h"
#include "session_pid.h"
#include "session_start.h"
#include "taint_rules.h"

/* ----------------------------------------------------------------
 *		The client that the backend shows: addresses in MyProcPort (log lines,
 *		inet_client_addr) and in pg_stat_activity, start times, SYSTEM_USER.
 *
 * MyProcPort's strings point to memory of this file; nothing in the server
 * frees them (remote_host and remote_port are set once, in BackendInitialize,
 * postmaster.c, backend_startup.c since 18).
 * ----------------------------------------------------------------
 */

static BatonPlacedIdentity *const placed = &BatonPlaced.identity;

static void
show_local(void)
{
	static char local[] = "[local]";

	placed->remote_port[0] = '\0';
	baton_port_set_remote_text(local, placed->remote_port);
}

/*
 * Shows the client's address as text. Many sessions come from one address, and
 * inet_ntop() costs more than the rest of this section, so its last text is
 * kept.
 */
static void
show_remote(const BatonSessionRecord *record)
{
	StaticAssertStmt(sizeof(placed->address) == sizeof(record->peer_address),
					 "an address has its room");

	if (record->peer_family != AF_INET && record->peer_family != AF_INET6)
	{
		show_local();
		return;
	}
	if (record->peer_family != placed->family ||
		memcmp(record->peer_address, placed->address, sizeof(placed->address)) != 0)
	{
		if (inet_ntop(record->peer_family, record->peer_address,
					  placed->address_text, INET6_ADDRSTRLEN) == NULL)
			strlcpy(placed->address_text, "???", sizeof(placed->address_text));
		placed->family = record->peer_family;
		memcpy(placed->address, record->peer_address, sizeof(placed->address));
	}
	placed->remote_port[pg_ultoa_n(record->peer_port, placed->remote_port)] = '\0';
	baton_port_set_remote_text(placed->address_text, placed->remote_port);
}

/*
 * Shows how the client proved its identity. All sessions of one user share an
 * entry.
 */
static void
put_authenticated(const BatonSessionRecord *record)
{
	BatonStored stored;
	const BatonStored *entry = NULL;
	char	   *copy;

	if (!baton_client_identities())
		return;
	if (record->authenticated != 0)
		entry = baton_entry(&stored, record->authenticated);
	if ((entry != NULL ? entry->serial : 0) == placed->authenticated)
		return;

	/* shows none if there is no memory for the next text */
	baton_client_identity_put(NULL);
	placed->authenticated = 0;
	if (placed->authenticated_as != NULL)
		pfree(placed->authenticated_as);
	placed->authenticated_as = NULL;
	if (entry == NULL || entry->kind != BATON_KIND_AUTHENTICATED)
		return;

	copy = MemoryContextAllocZero(TopMemoryContext,
								  (Size) entry->key_length + 1 + entry->value_length + 1);
	memcpy(copy, entry->key, entry->key_length);
	copy[entry->key_length] = ':';
	memcpy(copy + entry->key_length + 1, entry->value, entry->value_length);
	placed->authenticated_as = copy;
	placed->authenticated = entry->serial;
	baton_client_identity_put(copy);
}

void
baton_identity_put(const BatonSessionRecord *record)
{
	const BatonPortEnd remote = {
		.family = record->peer_family,
		.port = record->peer_port,
		.address = record->peer_address,
		.scope = record->peer_scope
	};
	const BatonPortEnd local = {
		.family = record->peer_family,
		.port = record->local_port,
		.address = record->local_address,
		.scope = record->peer_scope
	};

	baton_port_set_ends(&remote, &local);
	show_remote(record);
	baton_port_set_protocol(record->protocol);
	put_authenticated(record);

	/* see client_socket.c */
	baton_port_forget_keepalives();

	MyStartTimestamp = record->login_time_us;
	MyStartTime = timestamptz_to_time_t(MyStartTimestamp);

	/*
	 * elog.c (15 to 18) keeps the start time as text once it has been logged:
	 * %s and the session_start of csvlog and jsonlog would show an earlier
	 * session's.
	 */
	reset_formatted_start_time();
	baton_entry_show(record->login_time_us, baton_identity((uint32) record->id));
	if (placed->shows_no_session)
	{
		/* if the context's own name is the same, it is not assigned */
		pgstat_report_appname(application_name);
		placed->shows_no_session = false;
	}
}

void
baton_identity_clear(void)
{
	const BatonPortEnd nowhere = {.family = AF_UNIX};

	if (placed->shows_no_session)
		return;
	placed->shows_no_session = true;
	baton_port_set_ends(&nowhere, &nowhere);
	show_local();
	baton_entry_show(GetCurrentTimestamp(), NULL);
	pgstat_report_appname("");
}

/* ----------------------------------------------------------------
 *		A pooled backend becomes the role of the session that it takes.
 *
 * docs/design/roles.md says what belongs to a role, and why this is all.
 *
 * baton_become_look runs before the backend owns the session, while it can
 * still give the session back. It decides whether this process can serve the
 * role. If the session is to be greeted, it reads the settings of role and
 * database, without applying them.
 *
 * baton_become then works in this order: the last session's state is removed;
 * the settings of the last role go; the authenticated user changes; the
 * settings of the new role come, if the session is to be greeted. Sessions
 * that have been greeted carry their own settings. Nothing of a session runs
 * meanwhile.
 *
 * Errors: each ends the process (boundary.c), and with it the session that was
 * to be served, and no other. So no step needs a way back.
 *
 * Whether the role still exists and may log in is not checked: its session has
 * logged in, and on the server's own port it would not be checked again.
 * ----------------------------------------------------------------
 */

StaticAssertDecl(NAMEDATALEN <= BATON_TENANT_NAME_SIZE, "a role's name has its room");

/* The name and status with which the authenticated user has logged in. */
static char user_name[NAMEDATALEN];
static bool is_superuser = false;

/*
 * The role whose settings (and its database's) the backend has; InvalidOid:
 * none.
 */
static Oid	settings_role = InvalidOid;

/*
 * Settings to be applied, in a memory context of their own, NULL if there are
 * none.
 */
static List *settings = NIL;
static MemoryContext settings_context = NULL;

bool
baton_become_attach(void)
{
	const char *problem = baton_role_caches_attach();

	/* SET ROLE changes rights in a backend of one role, too */
	if (problem == NULL && baton_self_check_is_broken("relation_cache"))
		problem = "broken on purpose";
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_POOLING, problem);
	problem = baton_self_check_is_broken("roles") ? "broken on purpose" : baton_role_switch_attach();
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_ROLES, problem);
	settings_role = GetAuthenticatedUserId();
	strlcpy(user_name, MyProcPort->user_name, NAMEDATALEN);
	is_superuser = superuser_arg(settings_role);
	return problem == NULL;
}

/*
 * Is this another role than the backend's, or has it logged in under another
 * name or status? A session's user name and superuser status never change.
 */
static bool
is_another(Oid role, const BatonTenantSlot *tenant)
{
	return role != GetAuthenticatedUserId() || is_superuser != (tenant->superuser != 0) ||
		strncmp(user_name, (const char *) tenant->user_name, NAMEDATALEN) != 0;
}

/*
 * ---- while the session can be given back ---------------------------------
 */

/*
 * Returns false, having changed nothing, if the backend cannot have the
 * settings.
 */
static BATON_STOP_POINT bool
read_settings(Oid role)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		need_start;

	/*
	 * an unpooled backend applied no settings itself, and could not remove
	 * any
	 */
	if (baton_unpooled())
		return false;
	baton_role_settings_note();
	baton_own_transaction_start();
	AcceptInvalidationMessages();
	settings_context = AllocSetContextCreate(TopMemoryContext, "pg_baton settings",
											 ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(settings_context);
	settings = baton_role_settings_read(role);
	need_start = baton_role_settings_need_start(settings);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return !need_start;
}

static bool
can_be_another(void)
{
	return BatonSelf.serves_roles && baton_taint_library_of_one_role() == NULL &&
		baton_plain_can_be_forgotten();
}

BatonBecomes
baton_become_look(const BatonSessionRecord *record, Oid role)
{
	if (is_another(role, baton_tenant_slot(record->tenant)) && !can_be_another())
		return BATON_BECOMES_NOT;
	/* the configuration for starting backends was different then */
	if (unlikely((int32) (BatonSelf.starts - record->starts) < 0))
		return BATON_BECOMES_TOO_OLD;
	if ((record->record_flags & BATON_RECORD_GREET) == 0)
	{
		if (unlikely(record->start_settings != BatonSelf.start_settings) &&
			!baton_role_settings_are_of(role, record->settings_marks))
			return BATON_BECOMES_TOO_OLD;
	}
	else if (baton_opening_notices_may_be_past())
		return BATON_BECOMES_TOO_OLD;
	else if ((unlikely(role != settings_role) ||
			  unlikely(!baton_role_settings_are_of(role, record->settings_marks))) &&
			 !read_settings(role))
		return BATON_BECOMES_TOO_OLD;
	return BATON_BECOMES;
}

/*
 * ---- after that ----------------------------------------------------------
 */

static BATON_STOP_POINT void
apply_settings(Oid role)
{
	MemoryContext caller = CurrentMemoryContext;

	baton_own_transaction_start();
	baton_role_settings_apply(settings);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(settings_context);
	settings_context = NULL;
	settings = NIL;
	settings_role = role;
}

/*
 * Sets the role that log lines and ps show. The views show the last session
 * until baton_identity_put replaces role and session in one write.
 */
static void
show_role(void)
{
	static char rest[NAMEDATALEN + 16] = "";
	char		title[sizeof(user_name) + sizeof(rest)];
	Size		length = strlen(user_name);

	/* a backend's database never changes */
	if (rest[0] == '\0')
		snprintf(rest, sizeof(rest), " %s [local]", MyProcPort->database_name);
	baton_port_set_user(user_name);
	memcpy(title, user_name, length);
	memcpy(title + length, rest, sizeof(rest));
	init_ps_display(title);
}

static void
change_role(Oid role, const char *name, bool superuser)
{
	/* any process could have written it: it may lack a terminator */
	memset(user_name, 0, NAMEDATALEN);
	memcpy(user_name, name, strnlen(name, NAMEDATALEN - 1));
	is_superuser = superuser;
	if (!baton_self_check_is_broken("role_switch"))
	{
		baton_role_switch(role, user_name, is_superuser);
		baton_role_caches_forget();
		baton_reset_items_follow_role();
		if (!baton_role_is_in_force(role))
			elog(FATAL, "the backend is not of role %u as it should be", role);
	}
	show_role();
}

/*
 * Removes the last session's state, and the settings of its role. The reset
 * values may stay for comparison with the next session's; a session that is to
 * be greeted begins without.
 */
static void
leave(bool resets_may_stay)
{
	if (!resets_may_stay || !baton_context_leave_resets())
		baton_context_leave();
	if (baton_plain_any())
		baton_plain_forget_settings();
	settings_role = InvalidOid;
}

void
baton_become(Oid role, const BatonTenantSlot *tenant)
{
	bool		changes_role = is_another(role, tenant);

	if (likely(!changes_role && settings_context == NULL))
		return;
	leave(settings_context == NULL);
	if (changes_role)
		change_role(role, (const char *) tenant->user_name, tenant->superuser != 0);
	/* a setting may be for role */
	if (settings_context != NULL)
		apply_settings(role);
}

/* ---- tests, and the last line of defence ---------------------------------- */

void
baton_become_another(void)
{
	if (GetAuthenticatedUserId() == BOOTSTRAP_SUPERUSERID || !can_be_another())
		return;
	leave(false);
	change_role(BOOTSTRAP_SUPERUSERID, "another", true);
}

void
baton_role_is_wrong(void)
{
	ereport(FATAL,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("backend is of role %u, and the session of role %u",
					GetAuthenticatedUserId(), BatonServed.role),
			 errhint("This is a bug of pg_baton. Nothing was run.")));
	pg_unreachable();
}

/* ----------------------------------------------------------------
 *		The cancel requests that this backend obeys.
 *
 * A cancel must reach the session it names and no other. The dispatcher writes
 * the session's id into the backend slot, then sends SIGUSR2. The signal
 * handler takes the word and acts only if that session is still here.
 * pg_cancel_backend() with a session's process ID does the same with the
 * session's own word if it finds a backend that holds the session, and
 * otherwise asks the dispatcher. SIGUSR2 has no other meaning in a backend
 * (PostgresMain, postgres.c, 15 to 18, ignores it unless it is a walsender),
 * and none by itself: a signal that comes late, or twice, finds no word. A
 * SIGINT comes from pg_cancel_backend() with the process ID of the backend, or
 * from a timeout (StatementTimeoutHandler and LockTimeoutHandler, postgres.c,
 * signal their own process); both mean the session that is served now, as in
 * stock.
 *
 * A request to terminate a session (pg_terminate_backend() with its process
 * ID) stands in its BatonIdentity until the session has ended. Each new owner
 * of the session looks there after it has written the owner; the process that
 * writes the request looks at the owner after that. The signal only speeds
 * this up.
 *
 * A cancel for a session that waits for a backend is a flag in its session
 * slot. The backend that takes the session arms a cancel.
 *
 * Putting a session in place takes longer than stock's reading of a message.
 * If the session was handed over because it has sent a request, a cancel that
 * names it and comes before that request begins to run applies to the request,
 * and is kept until then. This does not hold for a session that idles in
 * place: what is in its socket when the backend looks may have been sent after
 * the cancel.
 *
 * PostgresMain (postgres.c, 15 to 18) discards a cancel that is raised before
 * it has read the message. Its flag, DoingCommandRead, is static. But every
 * message that may wait begins with start_xact_command() (postgres.c), and no
 * transaction is open before a request's first message. So an armed or kept
 * cancel is raised when a transaction is open, at the latest by the first
 * command that is analysed or started (pg_baton.c has the hooks). A statement
 * may wait before any hook: for a lock in its analysis, or for its snapshot. So
 * the signal handler looks again every CANCEL_LOOK_MS while a cancel is armed
 * or kept. It uses a timer of the kernel, which a signal handler may set; those
 * of timeout.c it may not.
 *
 * session_signal() and the order of the words it reads are modelled with the
 * dispatcher's side in dispatcher/src/shell/link/handshake/model.rs. A change
 * here requires the same change there.
 * ----------------------------------------------------------------
 */

#define CANCEL_LOOK_MS 10

/* Called by the signal handler, too. */
static void
look_again(void)
{
	const struct itimerspec after = {.it_value.tv_nsec = CANCEL_LOOK_MS * 1000000L};

	if (BatonSelf.has_cancel_timer)
		(void) timer_settime(BatonSelf.cancel_timer, 0, &after, NULL);
}

/* From here on the handler raises cancels itself. */
static bool
take_kept(void)
{
	BatonServedCancel *cancel = &BatonServed.cancel;
	bool		kept;

	cancel->has_spoken = false;
	kept = cancel->held_back || cancel->armed;
	cancel->held_back = false;
	cancel->armed = false;
	return kept;
}

static void
session_signal(SIGNAL_ARGS)
{
	int			save_errno = errno;
	uint64		here = pg_atomic_read_u64(baton_atomic_u64(BatonSelf.slot->session));
	uint64		session;
	bool		cancelled;

	/* no error may be raised here */
	if ((uint32) here >= BatonControlMade.session_slots)
		here = 0;
	session = pg_atomic_exchange_u64(baton_atomic_u64(BatonSelf.slot->cancel), 0);
	cancelled = session != 0 && session == here;
	if (here != 0)
	{
		BatonIdentity *identity = baton_identity((uint32) here);

		session = here;
		if (pg_atomic_compare_exchange_u64(baton_atomic_u64(identity->cancel), &session, 0))
			cancelled = true;
	}
	if (cancelled && BatonServed.cancel.has_spoken)
	{
		BatonServed.cancel.held_back = true;
		cancelled = false;
		SetLatch(MyLatch);		/* the request may wait for the end of a pause */
	}
	if (BatonServed.cancel.held_back || BatonServed.cancel.armed)
	{
		if (!BatonSelf.holds_cancels && IsTransactionState())
			cancelled = take_kept();
		else
			look_again();
	}
	if (cancelled && !BatonSelf.holds_cancels)
		StatementCancelHandler(SIGINT);
	if (here != 0 && baton_pid_is_terminated(here))
	{
		if (!BatonSelf.holds_cancels || BatonSelf.writes_in_boundary)
			die(SIGTERM);
		else
			SetLatch(MyLatch);	/* the wait looks again */
	}
	if (BatonSelf.control < 0)
		SetLatch(MyLatch);		/* another dispatcher has adopted this process */

	errno = save_errno;
}

void
baton_cancel_hold(void)
{
	BatonSelf.holds_cancels = true;
}

void
baton_cancel_unhold(void)
{
	BatonSelf.holds_cancels = false;
	if (BatonServed.session != 0 && baton_pid_is_terminated(BatonServed.session))
		die(SIGTERM);
}

void
baton_terminate_check(uint64 session)
{
	if (session == 0 || likely(!baton_pid_is_terminated(session)))
		return;
	die(SIGTERM);
	CHECK_FOR_INTERRUPTS();
}

/*
 * ProcessClientWriteInterrupt (postgres.c) looks at what die() sets. The flag
 * comes first: a request that is older than the flag is seen here, a later one
 * by the signal handler.
 */
void
baton_terminate_ends_write(void)
{
	BatonSelf.writes_in_boundary = true;
	if (BatonServed.session != 0 && baton_pid_is_terminated(BatonServed.session))
		die(SIGTERM);
}

void
baton_terminate_ends_no_write(void)
{
	BatonSelf.writes_in_boundary = false;
}

void
baton_cancel_session_asks(bool asks)
{
	BatonServed.cancel.has_spoken = asks;
	BatonServed.cancel.held_back = false;
}

void
baton_cancel_attach(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL,.sigev_signo = SIGUSR2};

	pqsignal(SIGUSR2, session_signal);
	/* without a timer, a kept cancel waits until a command is analysed */
	BatonSelf.has_cancel_timer =
		timer_create(CLOCK_MONOTONIC, &event, &BatonSelf.cancel_timer) == 0;
}

void
baton_cancel_arm(void)
{
	BatonServed.cancel.armed = true;
	look_again();
}

void
baton_cancel_disarm(void)
{
	baton_cancel_session_asks(false);
	BatonServed.cancel.armed = false;
}

void
baton_cancel_fire(void)
{
	if (likely(!BatonServed.cancel.has_spoken && !BatonServed.cancel.armed))
		return;
	/* an injected message */
	if (BatonSelf.holds_cancels)
		return;
	if (take_kept())
	{
		QueryCancelPending = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}
