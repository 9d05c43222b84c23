/*-------------------------------------------------------------------------
 *
 * other_hooks.c
 *		What other libraries' hooks want to be told.
 *
 * The hooks themselves are called by hooks.c, behind ours; here it is asked, by
 * those whom hooks.c calls, whether anybody else would have to be called, too.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "other_hooks.h"

static needs_fmgr_hook_type next_needs_fmgr = NULL;
static ClientAuthentication_hook_type next_client_authentication = NULL;
static ClientAuthentication_hook_type own_client_authentication = NULL;

void
baton_others_were(needs_fmgr_hook_type needs_fmgr,
				  ClientAuthentication_hook_type client_authentication,
				  ClientAuthentication_hook_type ours)
{
	next_needs_fmgr = needs_fmgr;
	next_client_authentication = client_authentication;
	own_client_authentication = ours;
}

bool
baton_others_need_calls(Oid function)
{
	return next_needs_fmgr != NULL && next_needs_fmgr(function);
}

bool
baton_others_authenticate(void)
{
	return next_client_authentication != NULL ||
		ClientAuthentication_hook != own_client_authentication;
}
