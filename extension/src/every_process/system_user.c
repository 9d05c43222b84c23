/*-------------------------------------------------------------------------
 *
 * system_user.c
 *		SYSTEM_USER of a session, whichever backend serves it.
 *
 * The server knows how this backend was let in; a session's client was let in by
 * the dispatcher, or by a backend that has ended.  The grammar makes a call of
 * system_user() of SYSTEM_USER (16 to 18), and that is ours.  A parallel worker's
 * is the server's own, which knows what its leader does (client_identity.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "builtin_table.h"
#include "later_functions.h"
#include "pooled_state.h"
#include "self_check.h"
#include "system_user.h"

static Datum
baton_sql_system_user(PG_FUNCTION_ARGS)
{
	const char *user = BatonPlaced.identity.authenticated_as;

	if (BatonSelf.slot == NULL)
		return system_user(fcinfo);
	if (user == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(user));
}

static const BatonBuiltin builtins[] =
{
	{F_SYSTEM_USER, "system_user", system_user, baton_sql_system_user},
};

void
baton_system_user_init(void)
{
	const char *problem;

	if (baton_self_check_is_broken("system_user"))
		problem = "broken on purpose";
	else
		problem = baton_builtins_replace(builtins, lengthof(builtins));
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_SYSTEM_USER, problem);
}
