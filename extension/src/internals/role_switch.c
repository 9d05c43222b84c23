/*-------------------------------------------------------------------------
 *
 * role_switch.c
 *		Another authenticated user in a running backend.
 *
 * Problem: InitializeSessionUserId() (miscinit.c) sets AuthenticatedUserId once, at a
 * backend's start.  SET SESSION AUTHORIZATION does not change it, and it decides who may
 * use that command, what RESET returns to, and MyProc->roleId.
 *
 * What PostgreSQL 15 to 18 guarantee: nothing in InitializeSessionUserId() depends on
 * being called once, but Assert(!OidIsValid(AuthenticatedUserId)) in
 * SetAuthenticatedUserId() (in 15 before 15.9, 16 before 16.5 and 17 before 17.1 in the
 * function itself).  SetConfigOption() with PGC_S_OVERRIDE replaces a value and a reset
 * value of that source, and pushes no stack entry (makeDefault in set_config_option).
 *
 * Decision: it is called again, by OID, as a starting backend calls it.  Its login checks
 * (rolcanlogin, rolconnlimit) are FATAL; the caller has made them before, and can go on
 * without the role, so here they fail only if something has changed since.
 *
 * Tried and left: IsUnderPostmaster = false for the call, which leaves these checks out.
 * A process that ended then had not told the postmaster that it has cleaned up
 * (ProcKill, proc.c, up to 17): the server restarted as after a crash.
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

#include "miscadmin.h"
#include "storage/proc.h"

#include "program_data.h"
#include "role_switch.h"

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

const char *
baton_role_switch_attach(void)
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

const char *
baton_role_switch_attach(void)
{
	return NULL;
}

static void
forget_authenticated_user(void)
{
}

#endif

void
baton_role_switch(Oid role)
{
	Assert(!OidIsValid(GetCurrentRoleId()));

	forget_authenticated_user();
#if PG_VERSION_NUM >= 170000
	InitializeSessionUserId(NULL, role, false);
#else
	InitializeSessionUserId(NULL, role);
#endif
}

bool
baton_role_is_in_force(Oid role)
{
	return GetAuthenticatedUserId() == role && GetSessionUserId() == role &&
		GetOuterUserId() == role && GetUserId() == role && MyProc->roleId == role;
}
