/*-------------------------------------------------------------------------
 *
 * become.h
 *		A pooled backend becomes another role's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BECOME_H
#define BATON_BECOME_H

#include "miscadmin.h"

#include "majors.h"
#include "pooled_state.h"

/* Once, at attach, in a transaction.  Can this backend become another role's? */
extern bool baton_become_attach(void);

/*
 * It becomes this one's, whose sessions have logged in by that name: at attach, if it was
 * started as somebody who may log in.  Why not, if the role is not to be had.
 */
extern const char *baton_become_role(Oid role, const char *login_name);

/*
 * The backend has taken the ticket, holds no session, and its slot is RETIRING: it tells
 * the dispatcher, and returns when it is idle in another pool; or exits.
 */
extern void baton_become_or_retire(void);

/*
 * May the backend, which holds no session, serve this one?  Before it greets it, it reads
 * settings again that have changed.  If only a starting backend takes what has, it has to
 * end.
 */
extern bool baton_settings_suit(const BatonSessionRecord *record);

/*
 * For tests (pg_baton.force_role_changes): the backend becomes the bootstrap superuser's,
 * and its own role's again.  It must hold no session.
 */
extern void baton_become_there_and_back(void);

/* Ends the process: the authenticated user is not the session's. */
pg_noreturn extern void baton_role_is_wrong(void);

/*
 * At the start of whatever the session in place runs.  Nothing may run as a role that is
 * not the session's, whatever went wrong before.
 */
static inline void
baton_role_check(void)
{
	if (BatonServed.session != 0 && unlikely(BatonServed.role != GetAuthenticatedUserId()))
		baton_role_is_wrong();
}

#endif							/* BATON_BECOME_H */
