/*-------------------------------------------------------------------------
 *
 * opening.c
 *		A backend that the dispatcher opens for a pool's sessions.
 *
 * Problem: a pool's sessions have logged in, and on the server's own port nobody would
 * ask them again.  The pool needs further backends, and a backend logs in: by
 * pg_hba.conf, which may not let the dispatcher in as that role; with a password
 * that nobody keeps; and by what InitPostgres() asks of the role, which may be
 * NOLOGIN by now, or have another name, a CONNECTION LIMIT, no CONNECT privilege.
 *
 * What PostgreSQL guarantees, in 15 to 18: with the whole startup packet read, and
 * before ClientAuthentication() (auth.c), a starting backend calls out in one case:
 * it answers protocol options that it does not know ("_pq_." and a name) with
 * NegotiateProtocolVersion (ProcessStartupPacket() in postmaster.c, in
 * backend_startup.c since 18), which goes through PqCommMethods, a variable that
 * forked children inherit.  InitPostgres() (postinit.c) looks the role up by the
 * pointer that PostgresMain() was given, which is MyProcPort->user_name; after
 * ClientAuthentication_hook, in a transaction, with the shared catalogs at hand.
 *
 * Decision: the dispatcher sends such an option, and in pg_baton.attach the slot,
 * its token and the OID of a role, one of those whose sessions wait.  Such a backend goes
 * by rules of ours (trusted_hba.c), which let it in.  The name is written into memory that
 * has room for any, and once more after authentication: the role's name as it is now, where
 * it may log in; else a superuser's who may.  Whom it serves then it becomes (become.c).
 *
 * Who may do so: whoever knows the slot's attach_token, which the dispatcher
 * has just written to CONTROL.  None but the server's system user can read
 * that, and such a one is superuser anyway.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_database.h"
#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#include "backend_entry.h"
#include "client_port.h"
#include "client_ticket.h"
#include "connect_privilege.h"
#include "control.h"
#include "opening.h"
#include "other_hooks.h"
#include "parameters.h"
#include "shared_catalog.h"
#include "trusted_hba.h"

#define NEGOTIATE_PROTOCOL_VERSION 'v'

static const PQcommMethods *server_methods = NULL;
static PQcommMethods methods;

static Oid	opened_for = InvalidOid;

/* It is to serve no other role. */
static bool is_apart = false;

/* What MyProcPort->user_name is, of NAMEDATALEN bytes. */
static char *user_name = NULL;

Oid
baton_opened_for(bool *apart)
{
	*apart = is_apart;
	return opened_for;
}

/* ---- before authentication ---------------------------------------------- */

/*
 * The slot that this backend is started for, and its role; NULL if that is not the
 * dispatcher's word.  Options come as they were sent.
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
	/* login.c counts connections that are not the pool's */
	slot->pid = MyProcPid;
	baton_entry_begin_as_nobody(&MyProcPort->raddr);

	opened_for = role;
	is_apart = apart;
	user_name = MemoryContextAllocZero(TopMemoryContext, NAMEDATALEN);
	strlcpy(user_name, MyProcPort->user_name, NAMEDATALEN);
	baton_port_set_user(user_name);
	baton_trusted_hba_load();
	baton_others_overrule();
}

/* Each process's first message. */
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

/* ---- as whom it starts -------------------------------------------------- */

/*
 * InitializeSessionUserId() in miscinit.c and CheckMyDatabase() in postinit.c let it
 * in, as far as it is the role that they look at.  A list of privileges that cannot be
 * read here is theirs to read.
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

void
baton_opening_authenticated(void)
{
	BatonRole	role;
	HeapTuple	database;
	const char *name = NULL;

	if (!OidIsValid(opened_for))
		return;
	if (MyProcPort->user_name != user_name)
		elog(FATAL, "the name of a backend's role is not where it is expected");
	database = baton_database_row(MyProcPort->database_name);
	/* one that does not exist is refused with the server's own words */
	if (!baton_role_by_oid(opened_for, &role))
		name = baton_superuser_who_may_log_in();
	else
	{
		if (HeapTupleIsValid(database) && !may_log_in(&role, database))
			name = baton_superuser_who_may_log_in();
		strlcpy(user_name, role.name, NAMEDATALEN);
		baton_role_wipe(&role);
	}
	if (name != NULL)
		strlcpy(user_name, name, NAMEDATALEN);
}
