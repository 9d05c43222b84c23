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

/* Can the backend, which holds no session, be a session's? */
typedef enum
{
	BATON_BECOMES,
	BATON_BECOMES_TOO_OLD,		/* only one that starts now has what the
								 * session is to have */
	BATON_BECOMES_NOT			/* what was done here keeps it its role's */
} BatonBecomes;

/* Before the session is its own.  For one that is to be greeted settings may be read. */
extern BatonBecomes baton_become_look(const BatonSessionRecord *record, Oid role);

/*
 * It becomes this role's, whose session of that tenant is its own from now on, with the
 * settings that were read.
 */
extern void baton_become(Oid role, const BatonTenantSlot *tenant);

/*
 * For tests (pg_baton.force_role_changes): the backend, which holds no session, becomes the
 * bootstrap superuser's.
 */
extern void baton_become_another(void);

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
