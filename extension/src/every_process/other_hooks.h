/*-------------------------------------------------------------------------
 *
 * other_hooks.h
 *		What other libraries' hooks want to be told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_OTHER_HOOKS_H
#define BATON_OTHER_HOOKS_H

#include "fmgr.h"
#include "libpq/auth.h"

/*
 * From hooks.c as it installs ours: those that were there before, NULL for none,
 * and which one of ClientAuthentication_hook is ours; and which is in its place where
 * others are overruled.
 */
extern void baton_others_were(needs_fmgr_hook_type needs_fmgr,
							  ClientAuthentication_hook_type client_authentication,
							  ClientAuthentication_hook_type ours,
							  ClientAuthentication_hook_type overruling);

/* Does another library want to see calls of this function? */
extern bool baton_others_need_calls(Oid function);

/* Does another library hear of each client's authentication? */
extern bool baton_others_authenticate(void);

/*
 * This backend is the dispatcher's to open: other libraries, loaded before us or
 * after, cannot refuse it (overruled_hook.c).
 */
extern void baton_others_overrule(void);
extern bool baton_others_are_overruled(void);

/* From the hook in their place: they are told. */
extern void baton_others_tell(Port *port, int status);

/* Do backends authenticate all clients, by pg_baton.login or for such a library? */
extern bool baton_server_authenticates(void);

#endif							/* BATON_OTHER_HOOKS_H */
