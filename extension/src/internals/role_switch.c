/*-------------------------------------------------------------------------
 *
 * role_switch.c
 *		Another authenticated user in a running backend.
 *
 * Problem: InitializeSessionUserId() (miscinit.c) sets AuthenticatedUserId once, at a
 * backend's start.  SET SESSION AUTHORIZATION does not change it, and it decides who may
 * use that command, what RESET returns to, and MyProc->roleId.
 *
 * What PostgreSQL guarantees: a parallel worker takes its leader's user over by
 * SetAuthenticatedUserId() (miscinit.c; ParallelWorkerMain in parallel.c), which only
 * sets that variable and MyProc->roleId; in 15 and 16 the superuser's flag, too.  The
 * rest of InitializeSessionUserId() is SetConfigOption() of session_authorization with
 * PGC_S_OVERRIDE, which replaces a value and a reset value of that source, and pushes no
 * stack entry (makeDefault in set_config_option).  Its check hook (variable.c, 15 to 18)
 * finds the role by its name; but while InitializingParallelWorker is set it takes the
 * state of the process, without a look at the catalogs, for a leader's role may have been
 * renamed or dropped.
 * SetAuthenticatedUserId() came with 15.9, 16.5 and 17.1; in releases before a backend
 * has one role for life.
 *
 * Decision: these two, as a parallel worker does it, and not InitializeSessionUserId(), whose
 * login checks (rolcanlogin, rolconnlimit) are FATAL.  A session has logged in: on the
 * server's own port nobody would ask it again, whatever has become of its role, and
 * session_authorization and is_superuser stay what they were at its login.
 *
 * Builds with assertions need AuthenticatedUserId to be invalid before.  The variable is
 * static; GetAuthenticatedUserId() loads it, and the first load relative to the
 * instruction pointer in its code is that load.  The address is used only if it lies in
 * the server's data and the function returns what is written there.
 *
 * docs/design/roles.md lists what else belongs to a role.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/parallel.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/guc.h"

#include "program_data.h"
#include "role_switch.h"
#include "self_check.h"

/* SetAuthenticatedUserId(), which not all releases have. */
static void *set_authenticated_user = NULL;

#ifdef USE_ASSERT_CHECKING

static Oid *authenticated_user = NULL;

/* mov register, [rip + offset]: opcode 8b, mod 00, r/m 101 */
static Oid *
variable_loaded_by(const uint8 *code)
{
#if defined(__x86_64__)
	for (int i = 0; i < 48; i++)
	{
		int32		offset;

		if (code[i] != 0x8b || (code[i + 1] & 0xc7) != 0x05)
			continue;
		memcpy(&offset, code + i + 2, sizeof(offset));
		return (Oid *) (code + i + 2 + sizeof(offset) + offset);
	}
#endif
	return NULL;
}

static bool
is_authenticated_user(Oid *variable)
{
	BatonProgramData data;
	Oid			before = GetAuthenticatedUserId();
	bool		follows;

	if (variable == NULL || !baton_program_data(&data) ||
		(uintptr_t) variable < data.start || (uintptr_t) (variable + 1) > data.end ||
		*variable != before)
		return false;
	*variable = before ^ 1;
	follows = GetAuthenticatedUserId() == (before ^ 1);
	*variable = before;
	return follows;
}

static const char *
find_authenticated_user(void)
{
	Oid		   *variable = variable_loaded_by((const uint8 *) GetAuthenticatedUserId);

	if (!is_authenticated_user(variable))
		return "the authenticated user is not where it is expected";
	authenticated_user = variable;
	return NULL;
}

static void
forget_authenticated_user(void)
{
	if (authenticated_user == NULL)
		elog(FATAL, "the authenticated user cannot be changed in this process");
	*authenticated_user = InvalidOid;
}

#else

static const char *
find_authenticated_user(void)
{
	return NULL;
}

static void
forget_authenticated_user(void)
{
}

#endif

bool
baton_roles_can_change(void)
{
	return dlsym(RTLD_DEFAULT, "SetAuthenticatedUserId") != NULL &&
		!baton_self_check_is_broken("roles") &&
		!baton_self_check_has_failed(BATON_COSTS_ROLES) &&
		!baton_self_check_has_failed(BATON_COSTS_POOLING);
}

const char *
baton_role_switch_attach(void)
{
	set_authenticated_user = dlsym(RTLD_DEFAULT, "SetAuthenticatedUserId");
	if (set_authenticated_user == NULL)
		return "the authenticated user cannot be set in this minor release";
	return find_authenticated_user();
}

void
baton_role_switch(Oid role, const char *name, bool is_superuser)
{
	Assert(!OidIsValid(GetCurrentRoleId()));

	forget_authenticated_user();
#if PG_VERSION_NUM >= 170000
	((void (*) (Oid)) set_authenticated_user) (role);
#else
	((void (*) (Oid, bool)) set_authenticated_user) (role, is_superuser);
#endif
	SetSessionAuthorization(role, is_superuser);
	InitializingParallelWorker = true;
	PG_TRY();
	{
		SetConfigOption("session_authorization", name, PGC_BACKEND, PGC_S_OVERRIDE);
	}
	PG_FINALLY();
	{
		InitializingParallelWorker = false;
	}
	PG_END_TRY();
}

bool
baton_role_is_in_force(Oid role)
{
	return GetAuthenticatedUserId() == role && GetSessionUserId() == role &&
		GetOuterUserId() == role && GetUserId() == role && MyProc->roleId == role;
}
