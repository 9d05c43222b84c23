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
#include "overruled_hook.h"
#include "parameters.h"

static needs_fmgr_hook_type next_needs_fmgr = NULL;
static ClientAuthentication_hook_type next_client_authentication = NULL;
static ClientAuthentication_hook_type own_client_authentication = NULL;
static ClientAuthentication_hook_type overruling_client_authentication = NULL;

/* What ClientAuthentication_hook was before others were overruled; NULL: they are not. */
static ClientAuthentication_hook_type overruled = NULL;

void
baton_others_were(needs_fmgr_hook_type needs_fmgr,
				  ClientAuthentication_hook_type client_authentication,
				  ClientAuthentication_hook_type ours,
				  ClientAuthentication_hook_type overruling)
{
	next_needs_fmgr = needs_fmgr;
	next_client_authentication = client_authentication;
	own_client_authentication = ours;
	overruling_client_authentication = overruling;
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

bool
baton_server_authenticates(void)
{
	return baton_login == BATON_LOGIN_SERVER ||
		(baton_login == BATON_LOGIN_AUTO && baton_others_authenticate());
}

void
baton_others_overrule(void)
{
	overruled = ClientAuthentication_hook;
	ClientAuthentication_hook = overruling_client_authentication;
}

bool
baton_others_are_overruled(void)
{
	return overruled != NULL;
}

void
baton_others_tell(Port *port, int status)
{
	baton_overruled_call(overruled, port, status);
}
