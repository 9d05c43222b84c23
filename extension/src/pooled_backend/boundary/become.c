/*-------------------------------------------------------------------------
 *
 * become.c
 *		A pooled backend becomes another role's.
 *
 * docs/design/roles.md has what belongs to a role, and why this is all.
 *
 * The order: what the last session has left is taken away; the new role is looked at, and
 * may be refused; the settings of the old role go; the authenticated user changes; the
 * settings of the new role come; then what others see of the process.  Nothing of a
 * session's runs meanwhile: none is in place, and none can be sent, for the slot's state
 * is not one in which the dispatcher assigns.
 *
 * Errors: each ends the process (boundary.c), and with it no session.  So no step needs a
 * way back.  A role that may not log in is no error: the process ends as one that was
 * asked to, and the dispatcher opens a backend for the pool, by which the cause is told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "libpq/libpq-be.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"
#include "utils/syscache.h"

#include "arena.h"
#include "backend_entry.h"
#include "backend_state.h"
#include "become.h"
#include "channel.h"
#include "client_port.h"
#include "context.h"
#include "control.h"
#include "identity.h"
#include "majors.h"
#include "own_transaction.h"
#include "parameters.h"
#include "reset_plain.h"
#include "role_caches.h"
#include "role_settings.h"
#include "role_switch.h"
#include "self_check.h"
#include "stop_point.h"
#include "taint_library.h"
#include "wire.h"

/* What a role must be for the backend to become its. */
typedef struct Role
{
	Oid			oid;
	bool		is_superuser;
	const char *name;			/* as its sessions have logged in */
} Role;

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
	else
		baton_role_settings_attach();
	return problem == NULL;
}

/* ---- the role ------------------------------------------------------------ */

/*
 * Why a starting backend would not be let in, or would not be what the pool's are:
 * InitializeSessionUserId() in miscinit.c and CheckMyDatabase() in postinit.c.
 */
static const char *
why_not(const Role *role)
{
	HeapTuple	row = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role->oid));
	HeapTuple	database;
	Form_pg_authid form;
	const char *why = NULL;

	if (!HeapTupleIsValid(row))
		return "the role has been dropped";
	form = (Form_pg_authid) GETSTRUCT(row);
	if (form->rolsuper != role->is_superuser)
		why = "the role has become a superuser, or is none any more";
	else if (!form->rolcanlogin)
		why = "the role is not permitted to log in";
	else if (form->rolconnlimit >= 0 && !form->rolsuper &&
			 CountUserBackends(role->oid) >= form->rolconnlimit)
		why = "too many connections for the role";
	ReleaseSysCache(row);
	if (why != NULL)
		return why;

	database = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (!HeapTupleIsValid(database))
		return "the database has been dropped";
	if (!((Form_pg_database) GETSTRUCT(database))->datallowconn)
		why = "the database is not currently accepting connections";
	ReleaseSysCache(database);
	if (why == NULL && !role->is_superuser &&
		baton_database_aclcheck(MyDatabaseId, role->oid, ACL_CONNECT) != ACLCHECK_OK)
		why = "permission denied for database";
	return why;
}

/* What log lines, the views and ps say. */
static void
show_role(const Role *role)
{
	char	   *title;

	strlcpy(BatonPlaced.identity.user_name, role->name, NAMEDATALEN);
	baton_port_set_user(BatonPlaced.identity.user_name);
	baton_entry_set_role(role->oid);
	title = psprintf("%s %s [local]", role->name, MyProcPort->database_name);
	init_ps_display(title);
	pfree(title);
}

/* Why not, if the role is not to be had; nothing has changed then. */
static BATON_STOP_POINT const char *
take_role(const Role *role)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *settings = NIL;
	uint64		generation;
	const char *why;

	baton_context_leave();
	/* what pg_stat_activity shows of it is not the next role's to see */
	baton_identity_clear();

	/*
	 * before settings are read: what is committed later makes the backend out
	 * of date
	 */
	generation = pg_atomic_read_u64(baton_atomic_u64(BatonControlMemory->settings_generation));

	baton_own_transaction_start();
	AcceptInvalidationMessages();
	why = why_not(role);
	if (why == NULL && baton_taint_library_of_one_role() != NULL)
		why = "a library keeps what is its role's";
	if (why == NULL)
		settings = baton_role_settings_read(role->oid);
	if (why == NULL && baton_role_settings_need_start(settings))
		why = "libraries are preloaded for the role, or it has other local buffers";
	if (why == NULL)
	{
		baton_plain_forget_settings();
		if (!baton_self_check_is_broken("role_switch"))
		{
			baton_role_switch(role->oid);
			baton_role_caches_forget();
			if (!baton_role_is_in_force(role->oid))
				elog(FATAL, "the backend is not of role %u as it should be", role->oid);
		}
		/* one of them may be role */
		baton_role_settings_apply(settings);
		show_role(role);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	if (why != NULL)
		return why;

	BatonSelf.slot->settings_generation = generation;
	return NULL;
}

/* ---- another pool -------------------------------------------------------- */

/* BECOME, to the letter; false if it is not. */
static bool
read_become(const BatonIncoming *incoming, uint32 *pool, Oid *database, Role *role)
{
	BatonWireReader in = {
		.at = incoming->payload,
		.end = incoming->payload + incoming->frame.length
	};

	*pool = baton_wire_read_u32(&in);
	role->oid = baton_wire_read_u32(&in);
	*database = baton_wire_read_u32(&in);
	role->is_superuser = baton_wire_read_u8(&in) != 0;
	role->name = baton_wire_read_string(&in);
	return !in.bad && in.at == in.end && role->name != NULL &&
		*pool < BatonControlMade.pool_slots && incoming->descriptor_count == 1;
}

static void
become(const BatonIncoming *incoming)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext own = AllocSetContextCreate(caller, "pg_baton role", ALLOCSET_SMALL_SIZES);
	uint32		pool;
	Oid			database;
	Role		role;
	const char *why;
	StringInfoData payload;

	MemoryContextSwitchTo(own);
	if (!read_become(incoming, &pool, &database, &role) || database != MyDatabaseId)
		elog(FATAL, "the dispatcher's word of another role is not understood");
	why = take_role(&role);
	if (why != NULL)
		baton_backend_retire(why);

	close(BatonSelf.queue);
	BatonSelf.queue = incoming->descriptors[0];
	BatonSelf.pool = baton_pool_slot(pool);
	BatonSelf.slot->transactions = 0;
	BatonSelf.is_superuser = role.is_superuser;
	BatonSelf.retire_wanted = false;
	BatonSelf.has_ticket = false;

	/*
	 * from here on it may be assigned a session, whatever has been heard of
	 * it
	 */
	baton_state_set(BATON_BACKEND_IDLE);
	initStringInfo(&payload);
	baton_wire_u32(&payload, role.oid);
	baton_wire_u32(&payload, database);
	baton_wire_u8(&payload, role.is_superuser ? 1 : 0);
	(void) baton_channel_send(BatonSelf.control, BATON_MSG_BECAME, 0, payload.data, payload.len);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(own);
}

void
baton_become_or_retire(void)
{
	BatonIncoming incoming;

	(void) baton_channel_send(BatonSelf.control, BATON_MSG_GIVES_WAY, 0, NULL, 0);
	for (;;)
	{
		if (baton_channel_await(BatonSelf.control, &incoming) == BATON_RECEIVED_CLOSED)
			proc_exit(0);
		switch (incoming.frame.type)
		{
			case BATON_MSG_BECOME:
				become(&incoming);
				return;
			case BATON_MSG_RETIRE:
				/* not one that told of the ticket */
				if (pg_atomic_read_u32(baton_atomic_u32(BatonSelf.slot->retire)) == BATON_RETIRE_NOW)
					proc_exit(0);
				break;
			default:
				break;
		}
		/* of what came before: it goes where it came from */
		baton_incoming_close(&incoming);
	}
}

/* ---- tests, and the last line of defence ---------------------------------- */

void
baton_become_there_and_back(void)
{
	MemoryContext caller = CurrentMemoryContext;
	Role		own = {
		.oid = GetAuthenticatedUserId(),
		.is_superuser = BatonSelf.is_superuser,
		.name = pstrdup(MyProcPort->user_name)
	};
	const Role	other = {.oid = BOOTSTRAP_SUPERUSERID,.is_superuser = true,.name = "another"};
	const char *why;

	/*
	 * a role that is gone, is another by now or may not log in, cannot be had
	 * again
	 */
	baton_own_transaction_start();
	why = why_not(&own);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	if (why == NULL && take_role(&other) == NULL && take_role(&own) != NULL)
		elog(FATAL, "the backend's own role is not to be had any more");
	pfree(unconstify(char *, own.name));
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
