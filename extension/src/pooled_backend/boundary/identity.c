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
 *		Who the backend says it serves: addresses in MyProcPort (log lines,
 *		inet_client_addr) and in pg_stat_activity, start times, SYSTEM_USER.
 *
 * MyProcPort's strings point to memory of this file's; nothing in the server
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
 * The client's address as text.  Many sessions come from one address, and
 * inet_ntop() costs more than the rest of this section, so its last text is kept.
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

/* How its client has proved itself.  All sessions of one user share an entry. */
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

	/* nobody's, should there be no memory for the next one's */
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
	 * elog.c (15 to 18) keeps the start as text once it has been logged: %s
	 * and the session_start of csvlog and jsonlog would be an earlier
	 * session's.
	 */
	reset_formatted_start_time();
	baton_entry_show(record->login_time_us, baton_identity((uint32) record->id));
	if (placed->is_nobody)
	{
		/* the context's own may be the same, and then is not assigned */
		pgstat_report_appname(application_name);
		placed->is_nobody = false;
	}
}

void
baton_identity_clear(void)
{
	const BatonPortEnd nowhere = {.family = AF_UNIX};

	if (placed->is_nobody)
		return;
	placed->is_nobody = true;
	baton_port_set_ends(&nowhere, &nowhere);
	show_local();
	baton_entry_show(GetCurrentTimestamp(), NULL);
	pgstat_report_appname("");
}

/* ----------------------------------------------------------------
 *		A pooled backend becomes the role of the session that it takes.
 *
 * docs/design/roles.md has what belongs to a role, and why this is all.
 *
 * Before the session is its own, while it can still be given back: whether this process
 * can be the role's, and, for a session that is to be greeted, the settings of its role and
 * database, which are read but not applied (baton_become_look).
 *
 * Then, in this order (baton_become): what the last session has left is taken away; the
 * settings of the last role go; the authenticated user changes; the settings of the new role
 * come, if the session is to be greeted; sessions that have been greeted carry their own.
 * Nothing of a session's runs meanwhile.
 *
 * Errors: each ends the process (boundary.c), and with it the session that it was for, and
 * no other.  So no step needs a way back.
 *
 * Whether the role may log in, or is there still, is not asked: its session has logged in,
 * and on the server's own port nobody would ask it again.
 * ----------------------------------------------------------------
 */

StaticAssertDecl(NAMEDATALEN <= BATON_TENANT_NAME_SIZE, "a role's name has its room");

/* As what the authenticated user has logged in. */
static char user_name[NAMEDATALEN];
static bool is_superuser = false;

/* Whose settings, with its database's, the backend's own are; InvalidOid: nobody's. */
static Oid	settings_role = InvalidOid;

/* To be applied; in a memory context of their own, NULL if there are none. */
static List *settings = NIL;
static MemoryContext settings_context = NULL;

bool
baton_become_attach(void)
{
	const char *problem = baton_role_switch_attach();

	if (problem == NULL)
		problem = baton_role_caches_attach();
	if (problem == NULL && baton_self_check_is_broken("roles"))
		problem = "broken on purpose";
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_ROLES, problem);
	settings_role = GetAuthenticatedUserId();
	strlcpy(user_name, MyProcPort->user_name, NAMEDATALEN);
	is_superuser = superuser_arg(settings_role);
	return problem == NULL;
}

/*
 * Is this another role than the backend's, or has it logged in as something else?  A name
 * and a superuser's status stay with a session for life.
 */
static bool
is_another(Oid role, const BatonTenantSlot *tenant)
{
	return role != GetAuthenticatedUserId() || is_superuser != (tenant->superuser != 0) ||
		strncmp(user_name, (const char *) tenant->user_name, NAMEDATALEN) != 0;
}

/* ---- while it can be given back ------------------------------------------ */

/* False: the backend cannot have them, and nothing has changed. */
static BATON_STOP_POINT bool
read_settings(Oid role)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		need_start;

	/* it has applied none by itself, and could not take any back */
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
	/* what the configuration says to starting backends was another then */
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

/* ---- from then on --------------------------------------------------------- */

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

/* What log lines, the views and ps say. */
static void
show_role(Oid role)
{
	char		title[2 * NAMEDATALEN + 16];

	baton_port_set_user(user_name);
	baton_entry_set_role(role);
	strlcpy(title, user_name, sizeof(title));
	strlcat(title, " ", sizeof(title));
	strlcat(title, MyProcPort->database_name, sizeof(title));
	strlcat(title, " [local]", sizeof(title));
	init_ps_display(title);
}

static void
change_role(Oid role, const char *name, bool superuser)
{
	/* anybody could have written it: it may have no end */
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
	show_role(role);
}

/*
 * What the last session has left, and the settings of its role.  Its reset values may stay,
 * for the next session's to be compared with; one that is to be greeted begins without.
 */
static void
leave(bool resets_may_stay)
{
	if (!resets_may_stay || !baton_context_leave_resets())
		baton_context_leave();
	/* what pg_stat_activity shows of it is not the next role's to see */
	baton_identity_clear();
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
	/* one of them may be role */
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
 *		Whose cancel requests this backend obeys.
 *
 * A cancel must reach the session it names and no other.  The dispatcher
 * writes the session's id into the backend slot, then sends SIGUSR2; the
 * signal handler takes the word and acts only if that session is still here.
 * pg_cancel_backend() with a session's number does the same with the session's
 * own word, if it finds a backend that holds it, and else asks the dispatcher.
 * SIGUSR2 means nothing else in a backend (PostgresMain, postgres.c, 15 to 18,
 * ignores it unless it is a walsender), and nothing by itself: one that comes
 * late, or twice, finds no word.
 * A SIGINT comes from pg_cancel_backend() with the number of the process, or
 * from a timeout (StatementTimeoutHandler and LockTimeoutHandler, postgres.c,
 * signal their own process), which mean whoever is served now, as in stock.
 *
 * That a session shall be ended (pg_terminate_backend() with its number) stands
 * in its BatonIdentity, and holds until it has ended: where the session goes,
 * whoever owns it looks there after it has written the owner, and whoever wrote
 * it looks at the owner after that.  The signal only hurries.
 *
 * A cancel for a session that waits for a backend is a flag in its session
 * slot.  The backend that takes it arms a cancel which fires when the first
 * thing it runs is analysed or started, a utility statement by
 * pg_baton.c, a function that a message calls by taint_watch.c:
 * PostgresMain throws away cancels that arrive before a command has been read,
 * so it cannot be raised earlier.
 *
 * Putting a session in place takes longer than stock's reading of a message
 * that is there.  If it was handed over because it has asked something, a
 * cancel that names it and comes before anything of that runs means it, and is
 * kept until then; PostgresMain throws away one that is raised before it has
 * read the message.  Not so for one that idles in place: whatever is in its
 * socket when we come to look may have been sent after the cancel.
 *
 * session_signal() and the order of the words it reads are modelled with the
 * dispatcher's side in dispatcher/src/shell/link/handshake/model.rs: who
 * changes the one changes the other.
 * ----------------------------------------------------------------
 */

static void
session_signal(SIGNAL_ARGS)
{
	int			save_errno = errno;
	uint64		here = pg_atomic_read_u64(baton_atomic_u64(BatonSelf.slot->session));
	uint64		session;
	bool		cancelled;

	/* nothing may be thrown here */
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
	if (cancelled)
	{
		if (BatonServed.cancel.has_spoken)
			BatonServed.cancel.held_back = true;
		else if (!BatonSelf.holds_cancels)
			StatementCancelHandler(SIGINT);
	}
	if (here != 0 && baton_pid_is_terminated(here))
	{
		if (!BatonSelf.holds_cancels)
			die(SIGTERM);
		else
			SetLatch(MyLatch);	/* the wait looks again */
	}

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

void
baton_cancel_session_asks(bool asks)
{
	BatonServed.cancel.has_spoken = asks;
	BatonServed.cancel.held_back = false;
}

void
baton_cancel_attach(void)
{
	pqsignal(SIGUSR2, session_signal);
}

void
baton_cancel_arm(void)
{
	BatonServed.cancel.armed = true;
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
	/* a message of ours */
	if (BatonSelf.holds_cancels)
		return;
	/* from here on the handler raises it itself */
	BatonServed.cancel.has_spoken = false;
	if (BatonServed.cancel.held_back || BatonServed.cancel.armed)
	{
		BatonServed.cancel.held_back = false;
		BatonServed.cancel.armed = false;
		QueryCancelPending = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}
