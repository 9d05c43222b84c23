/*-------------------------------------------------------------------------
 *
 * attach.c
 *		An ordinary backend becomes a pooled one.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "libpq/auth.h"
#include "libpq/libpq-be.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "postmaster/postmaster.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"

#include "arena.h"
#include "attach.h"
#include "boundary.h"
#include "catalog_watch.h"
#include "client_socket.h"
#include "client_ticket.h"
#include "context.h"
#include "database_access.h"
#include "dispatcher_link.h"
#include "function_table.h"
#include "identity.h"
#include "majors.h"
#include "parameters.h"
#include "pg_hba.h"
#include "pg_port.h"
#include "pg_process.h"
#include "pooled_state.h"
#include "self_check.h"
#include "session_start.h"
#include "taint.h"
#include "tally.h"

/* ----------------------------------------------------------------
 *		A backend that the dispatcher opens for a pool's sessions.
 *
 * Problem: a pool's sessions have logged in, and on the server's own port they
 * would not have to log in again. The pool needs further backends, and a
 * backend logs in: by pg_hba.conf, which may not let the dispatcher in as that
 * role; with a password that is stored nowhere; and by what InitPostgres()
 * requires of the role, which may by now be NOLOGIN, or have another name, a
 * CONNECTION LIMIT, or no CONNECT privilege.
 *
 * What PostgreSQL guarantees, in 15 to 18: with the whole startup packet read,
 * and before ClientAuthentication() (auth.c), a starting backend calls out in
 * one case: it answers protocol options that it does not know ("_pq_." and a
 * name) with NegotiateProtocolVersion (ProcessStartupPacket() in postmaster.c,
 * in backend_startup.c since 18), which goes through PqCommMethods, a variable
 * that forked children inherit. InitPostgres() (postinit.c) looks the role up
 * by the pointer that PostgresMain() was given, which is
 * MyProcPort->user_name; it does so after ClientAuthentication_hook, in a
 * transaction, with the shared catalogs available.
 *
 * Decision: the dispatcher sends such an option, and in pg_baton.attach the
 * slot, its token and the OID of a role whose session waits. Such a backend
 * uses rules of ours (pg_hba.c), which let it in. The role's name is written
 * into memory with room for any name, and again after authentication: the
 * role's present name, if the role may log in; otherwise the name of a
 * superuser that may. Later the backend changes to the role that it serves
 * (identity.c).
 *
 * Security: the option requires the slot's attach_token, which the dispatcher
 * has just written to CONTROL. Only the server's system user can read CONTROL,
 * and that user has a superuser's power anyway.
 * ----------------------------------------------------------------
 */

#define NEGOTIATE_PROTOCOL_VERSION 'v'

static const PQcommMethods *server_methods = NULL;
static PQcommMethods methods;

static Oid	opened_for = InvalidOid;

/* The backend must serve no other role. */
static bool is_apart = false;

/* The memory of MyProcPort->user_name, NAMEDATALEN bytes. */
static char *user_name = NULL;

/*
 * The role that the dispatcher opened this backend for, and whether it must
 * serve no other; InvalidOid if the dispatcher did not open it.
 */
static Oid
baton_opened_for(bool *apart)
{
	*apart = is_apart;
	return opened_for;
}

/* ---- before authentication ---------------------------------------------- */

/*
 * Parses the slot that this backend starts for, and its role. Returns NULL if
 * the option does not come from the dispatcher. `options` are as they were
 * sent.
 */
static BatonBackendSlot *
read_slot(const char *options, Oid *role, bool *apart)
{
	const char *value = options == NULL ? NULL : strstr(options, BATON_ATTACH_OPTION);
	unsigned int slot_index;
	unsigned long long token;
	unsigned int apart_number;
	BatonBackendSlot *slot;

	if (value == NULL || BatonControlMemory == NULL)
		return NULL;
	value += strlen(BATON_ATTACH_OPTION);
	if (sscanf(value, "%u:%llx:%u:%u", &slot_index, &token, role, &apart_number) != 4 ||
		slot_index >= BatonControlMade.backend_slots)
		return NULL;

	slot = baton_backend_slot(slot_index);
	if (token == 0 || token != slot->attach_token || !OidIsValid(*role) ||
		pg_atomic_read_u32(baton_atomic_u32(slot->state)) != BATON_BACKEND_STARTING)
		return NULL;
	*apart = apart_number != 0;
	return slot;
}

/* The dispatcher has opened this backend, for that slot. */
static void
begin(BatonBackendSlot *slot, Oid role, bool apart)
{
	/* login.c counts connections that do not belong to the pool */
	slot->pid = MyProcPid;
	baton_entry_begin_without_session(&MyProcPort->raddr);

	opened_for = role;
	is_apart = apart;
	user_name = MemoryContextAllocZero(TopMemoryContext, NAMEDATALEN);
	strlcpy(user_name, MyProcPort->user_name, NAMEDATALEN);
	baton_port_set_user(user_name);
	baton_trusted_hba_load();
	baton_others_overrule();
}

/* Handles the process's first message. */
static int
first_message(char type, const char *body, size_t length)
{
	BatonBackendSlot *slot = NULL;
	Oid			role;
	bool		apart;

	PqCommMethods = server_methods;
	if (type == NEGOTIATE_PROTOCOL_VERSION && MyProcPort != NULL)
	{
		if (baton_ticket_take(body, length))
			return 0;
		slot = read_slot(MyProcPort->cmdline_options, &role, &apart);
	}
	if (slot != NULL)
		begin(slot, role, apart);
	return server_methods->putmessage(type, body, length);
}

void
baton_opening_init(void)
{
	server_methods = PqCommMethods;
	methods = *server_methods;
	methods.putmessage = first_message;
	PqCommMethods = &methods;
}

/* ---- the role that the backend starts as -------------------------------- */

/*
 * Would InitializeSessionUserId() in miscinit.c and CheckMyDatabase() in
 * postinit.c accept the role, as far as they look at the role? A list of
 * privileges that cannot be read here is left to them.
 */
static bool
may_log_in(const BatonRole *role, HeapTuple database)
{
	Form_pg_database form = (Form_pg_database) GETSTRUCT(database);

	if (!role->can_login)
		return false;
	if (role->superuser)
		return true;
	return (role->connection_limit < 0 || CountUserBackends(role->oid) < role->connection_limit) &&
		(form->datconnlimit < 0 || CountDBConnections(form->oid) < form->datconnlimit) &&
		baton_connect_privilege(database, role->oid, INT_MAX) != BATON_PRIVILEGE_MISSING;
}

/*
 * ClientAuthentication() is over. The dispatcher has opened this backend, and
 * InitPostgres() has yet to look up the role that it starts as.
 */
static void
opening_authenticated(void)
{
	BatonRole	role;
	HeapTuple	database;
	const char *name = NULL;

	if (!OidIsValid(opened_for))
		return;
	if (MyProcPort->user_name != user_name)
		elog(FATAL, "the name of a backend's role is not where it is expected");
	database = baton_database_row(MyProcPort->database_name);
	/* the server itself refuses a role that does not exist */
	if (!baton_role_by_oid(opened_for, &role))
		name = baton_first_login_superuser();
	else
	{
		if (HeapTupleIsValid(database) && !may_log_in(&role, database))
			name = baton_first_login_superuser();
		strlcpy(user_name, role.name, NAMEDATALEN);
		baton_role_wipe(&role);
	}
	if (name != NULL)
		strlcpy(user_name, name, NAMEDATALEN);
}

/* ----------------------------------------------------------------
 *		An ordinary backend becomes a pooled one.
 *
 * The dispatcher connects as any client would, with the startup option
 * pg_baton.attach=<slot>:<token>:<role>:<apart>. ClientAuthentication_hook,
 * which every backend runs once its client is authenticated, sees the option
 * and puts the boundary in place (boundary.c); the first ReadyForQuery then
 * calls baton_attach. The token is checked before, and by the dispatcher: a
 * client that sends such an option itself is refused.
 * ----------------------------------------------------------------
 */

static void attach(void);
pg_noreturn static void refuse(const char *why);

void
baton_attach_authentication_ends(void)
{
	baton_ticket_authenticated();
	baton_barrier_catch_up();
}

void
baton_attach_authenticated(Port *port, int status)
{
	if (status == STATUS_OK && BatonControlMemory != NULL &&
		port->cmdline_options != NULL &&
		strstr(port->cmdline_options, BATON_ATTACH_OPTION) != NULL)
	{
		/* process_settings (postinit.c) runs after authentication */
		baton_role_settings_note();
		baton_opening_notices_begin();
		opening_authenticated();
		baton_boundary_install(attach);
		baton_functions_begin();
	}
}

static void
refuse(const char *why)
{
	ereport(FATAL,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("this backend cannot serve the pool: %s", why)));
	pg_unreachable();
}

/*
 * The dispatcher must not assign sessions to a backend that is exiting. A new
 * dispatcher may have given the slot to another backend, which has written its
 * pid.
 */
static void
retire_at_exit(int code, Datum arg)
{
	if (BatonSelf.slot != NULL && BatonSelf.slot->pid == (uint32) MyProcPid)
		pg_atomic_write_u32(baton_atomic_u32(BatonSelf.slot->state),
							BATON_BACKEND_RETIRING);
}

/* Receives WELCOME or REFUSED. */
static void
receive_welcome(BatonIncoming *welcome, BatonWelcome *said)
{
	BatonWireReader in;

	if (baton_channel_await(BatonSelf.control, welcome) == BATON_RECEIVED_CLOSED)
		refuse("the dispatcher closed the control connection");
	if (welcome->frame.kind == BATON_MSG_REFUSED)
	{
		in = baton_incoming_reader(welcome);
		refuse(psprintf("the dispatcher refused it: %s", baton_wire_read_string(&in)));
	}
	in = baton_incoming_reader(welcome);
	baton_read_welcome(&in, said);
	if (welcome->frame.kind != BATON_MSG_WELCOME || welcome->descriptor_count < 3 || in.bad)
		refuse("the dispatcher's welcome is not understood");
}

/*
 * Checks what pooling depends on. Returns NULL, or the first check that
 * failed.
 */
static const char *
check_server(void)
{
	static const struct
	{
		const char *name;
		const char *(*attach) (void);
	}			checks[] = {
		{"client_port", baton_port_attach},
		{"signal_barriers", baton_barrier_attach},
		{"login_triggers", baton_login_triggers_attach},
		{"keepalives", baton_keepalive_attach},
		{"taint", baton_taint_attach},
		{"context", baton_context_attach},
	};
	MemoryContext caller = CurrentMemoryContext;
	uint32		held_off = QueryCancelHoldoffCount;
	const char *volatile problem = NULL;

	/* known since the library was loaded */
	if (baton_unpooled())
		return NULL;

	PG_TRY();
	{
		for (int i = 0; problem == NULL && i < (int) lengthof(checks); i++)
		{
			problem = checks[i].attach();
			if (problem == NULL && baton_self_check_is_broken(checks[i].name))
				problem = "broken on purpose";
		}
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		edata = CopyErrorData();
		FlushErrorState();
		QueryCancelHoldoffCount = held_off;
		AbortOutOfAnyTransaction();
		problem = pstrdup(edata->message);
		FreeErrorData(edata);
	}
	PG_END_TRY();

	MemoryContextSwitchTo(caller);
	return problem;
}

/*
 * The number of connections that must stay free, as InitPostgres (postinit.c)
 * requires for a role that may not use reserved connections. InitPostgres has
 * not checked that if the backend was started as a superuser. A superuser's
 * backend may take a reserved connection, as on the server's own port, but
 * some are left for superusers that connect there.
 */
static int
connections_to_leave(Oid role)
{
	if (superuser_arg(role))
		return (baton_reserved_connections() + 1) / 2;
	return GetAuthenticatedUserId() == role ? 0 : baton_reserved_connections();
}

/*
 * Called at the first boundary: contacts the dispatcher and takes the socket
 * over. Raises FATAL, to the dispatcher's own connection, if this backend
 * cannot pool.
 */
static void
attach(void)
{
	unsigned int slot_index;
	unsigned long long token;
	BatonIncoming welcome;
	StringInfoData hello;
	BatonHelloBackend about_us;
	BatonWelcome said;
	uint32		role;
	uint64		epoch;
	int			to_leave;
	const char *problem;

	role = baton_opened_for(&BatonSelf.is_apart);
	if (baton_attach_option == NULL || !OidIsValid(role) ||
		sscanf(baton_attach_option, "%u:%llx", &slot_index, &token) != 2 ||
		slot_index >= BatonControlMade.backend_slots)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": only pg_baton's dispatcher may set it",
						"pg_baton.attach")));

	/* superuser_arg() may read pg_authid */
	StartTransactionCommand();
	to_leave = connections_to_leave(role);
	BatonSelf.serves_roles = baton_become_attach();
	CommitTransactionCommand();
	problem = baton_role_settings_attach();
	if (problem != NULL)
		refuse(problem);
	/* this backend cannot change its role, and its pool is that role's */
	if (BatonSelf.is_apart && GetAuthenticatedUserId() != role)
		refuse("the role may not log in, and its sessions share no backends with other roles'");
	if (!baton_has_free_connections(to_leave))
		baton_connections_are_reserved();

	epoch = BatonControlMemory->dispatcher_epoch;
	pg_read_barrier();
	BatonSelf.control = baton_channel_connect();
	if (BatonSelf.control < 0)
		ereport(FATAL,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not connect to pg_baton's dispatcher: %m")));
	ReserveExternalFD();

	initStringInfo(&hello);
	baton_wire_u32(&hello, BATON_LAYOUT_VERSION);
	about_us.slot = slot_index;
	about_us.attach_token = token;
	about_us.pid = (uint32) MyProcPid;
	about_us.role_oid = role;
	about_us.database_oid = MyDatabaseId;
	baton_write_hello_backend(&hello, &about_us);
	if (!baton_channel_send(BatonSelf.control, BATON_MSG_HELLO_BACKEND, 0,
							hello.data, hello.len))
		refuse("the dispatcher closed the control connection");
	receive_welcome(&welcome, &said);
	BatonSelf.queue = welcome.descriptors[0];
	ReserveExternalFD();
	for (int i = 2; i < welcome.descriptor_count; i++)
	{
		BatonSelf.epolls[BatonSelf.epoll_count++] = welcome.descriptors[i];
		ReserveExternalFD();
	}
	problem = baton_arena_map(welcome.descriptors[1], said.arena_size);
	if (problem != NULL)
		refuse(problem);
	/* reset_values.c applies the settings again, and warns again */
	baton_opening_notices_end();
	problem = check_server();
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_POOLING, problem);
	BatonSelf.serves_roles &= !baton_unpooled() && !BatonSelf.is_apart;

	/*
	 * A dispatcher that takes over frees the slots of backends that are still
	 * starting (take_over() in control.rs), and then starts others there.
	 */
	pg_memory_barrier();
	if (epoch != BatonControlMemory->dispatcher_epoch)
		refuse("the dispatcher has been replaced");

	BatonSelf.slot_index = slot_index;
	BatonSelf.slot = baton_backend_slot(slot_index);
	BatonSelf.pool = baton_pool_slot(BatonSelf.slot->pool);
	BatonSelf.slot->pid = MyProcPid;
	BatonSelf.slot->session = 0;
	BatonSelf.slot->transactions = 0;
	BatonSelf.slot->switches = 0;
	BatonSelf.slot->dedicated_cause = BATON_CAUSE_NONE;
	BatonSelf.starts = BatonSelf.slot->starts;
	baton_tally_attach();

	problem = baton_socket_attach((int) said.client_fd_number);
	if (problem != NULL)
		refuse(problem);
	before_shmem_exit(retire_at_exit, (Datum) 0);
	baton_cancel_attach();
	baton_identity_clear();
}
