/*-------------------------------------------------------------------------
 *
 * become.c
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
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "libpq/libpq-be.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"

#include "backend_entry.h"
#include "become.h"
#include "client_port.h"
#include "context.h"
#include "control.h"
#include "identity.h"
#include "opening_notices.h"
#include "own_transaction.h"
#include "reset_item.h"
#include "reset_plain.h"
#include "role_caches.h"
#include "role_settings.h"
#include "role_switch.h"
#include "self_check.h"
#include "stop_point.h"
#include "taint_library.h"

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
	snprintf(title, sizeof(title), "%s %s [local]", user_name, MyProcPort->database_name);
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
