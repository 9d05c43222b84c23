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
 * Settings of its own role that have changed are read anew in the same way, when a session
 * is to be greeted that began after that, and at no other time: sessions that have been
 * greeted carry their own.
 *
 * Errors: each ends the process (boundary.c), and with it no session.  So no step needs a
 * way back.  A role that is not to be had is no error: the process ends as one that was
 * asked to, and the dispatcher opens a backend for the pool, by which the cause is told.
 *
 * Whether the role may log in is not asked: its sessions have, and on the server's own port
 * nobody would ask them again after NOLOGIN, CONNECTION LIMIT or REVOKE CONNECT.
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
#include "libpq/libpq-be.h"
#include "storage/ipc.h"
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

/* As it is now, but for the name. */
typedef struct Role
{
	Oid			oid;
	bool		is_superuser;
	const char *login_name;		/* as its sessions have logged in */
	char		name[NAMEDATALEN];
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
	return problem == NULL;
}

/* ---- the role ------------------------------------------------------------ */

/* False if it has been dropped. */
static bool
look_up(Role *role)
{
	HeapTuple	row = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role->oid));
	Form_pg_authid form;

	if (!HeapTupleIsValid(row))
		return false;
	form = (Form_pg_authid) GETSTRUCT(row);
	role->is_superuser = form->rolsuper;
	strlcpy(role->name, NameStr(form->rolname), NAMEDATALEN);
	ReleaseSysCache(row);
	return true;
}

/* What log lines, the views and ps say. */
static void
show_role(const Role *role)
{
	char	   *title;

	strlcpy(BatonPlaced.identity.user_name, role->login_name, NAMEDATALEN);
	baton_port_set_user(BatonPlaced.identity.user_name);
	baton_entry_set_role(role->oid);
	title = psprintf("%s %s [local]", role->login_name, MyProcPort->database_name);
	init_ps_display(title);
	pfree(title);
}

/* Why not, if the role is not to be had; nothing has changed then. */
static BATON_STOP_POINT const char *
take_role(Role *role)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *settings = NIL;
	const char *why = NULL;

	baton_context_leave();
	/* what pg_stat_activity shows of it is not the next role's to see */
	baton_identity_clear();

	baton_role_settings_note();
	baton_own_transaction_start();
	AcceptInvalidationMessages();
	if (!look_up(role))
		why = "the role has been dropped";
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
			baton_role_switch(role->oid, role->name, role->is_superuser);
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
	if (why == NULL)
		BatonSelf.is_superuser = role->is_superuser;
	return why;
}

/* ---- settings that have changed ------------------------------------------ */

/* False: it cannot have them, and nothing has changed. */
static BATON_STOP_POINT bool
read_settings_again(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *settings;
	bool		need_start;

	/* it has applied none by itself, and could not take any back */
	if (baton_unpooled())
		return false;
	baton_context_leave();
	baton_role_settings_note();
	baton_own_transaction_start();
	AcceptInvalidationMessages();
	settings = baton_role_settings_read(GetAuthenticatedUserId());
	need_start = baton_role_settings_need_start(settings);
	if (!need_start)
	{
		baton_plain_forget_settings();
		baton_role_settings_apply(settings);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return !need_start;
}

bool
baton_settings_suit(const BatonSessionRecord *record)
{
	/* what the configuration says to starting backends was another then */
	if (unlikely((int32) (BatonSelf.starts - record->starts) < 0))
		return false;
	if ((record->record_flags & BATON_RECORD_GREET) == 0)
		return likely(record->start_settings == BatonSelf.start_settings) ||
			baton_role_settings_are_of(record->settings_marks);
	return likely(baton_role_settings_are_of(record->settings_marks)) || read_settings_again();
}

const char *
baton_become_role(Oid role, const char *login_name)
{
	Role		own = {.oid = role,.login_name = login_name};

	return take_role(&own);
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
	role->login_name = baton_wire_read_string(&in);
	return !in.bad && in.at == in.end && role->login_name != NULL &&
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
		baton_backend_retire(BATON_RETIRES_UNCLEAN, why);

	close(BatonSelf.queue);
	BatonSelf.queue = incoming->descriptors[0];
	BatonSelf.pool = baton_pool_slot(pool);
	BatonSelf.slot->transactions = 0;
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
	Role		own = {.oid = GetAuthenticatedUserId(),.login_name = pstrdup(MyProcPort->user_name)};
	Role		other = {.oid = BOOTSTRAP_SUPERUSERID,.login_name = "another"};
	bool		is_there;

	/* a role that is gone cannot be had again */
	baton_own_transaction_start();
	is_there = look_up(&own);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	if (is_there && take_role(&other) == NULL && take_role(&own) != NULL)
		elog(FATAL, "the backend's own role is not to be had any more");
	pfree(unconstify(char *, own.login_name));
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
