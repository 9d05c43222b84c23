/*-------------------------------------------------------------------------
 *
 * identity.h
 *		The session that the backend shows itself as: its role, its addresses,
 *		its cancel requests.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_IDENTITY_H
#define BATON_IDENTITY_H

#include "miscadmin.h"

#include "baton_shared.h"
#include "majors.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		Who the backend says it serves, and whose cancel requests it obeys.
 * ----------------------------------------------------------------
 */

/* Once, at attach, when BatonSelf is filled: takes over SIGUSR2. */
extern void baton_cancel_attach(void);

/* Addresses, start time and the rest, as a backend of that client has them. */
extern void baton_identity_put(const BatonSessionRecord *record);

/* No session: nothing of the last one is shown any more. */
extern void baton_identity_clear(void);

/*
 * A cancel came while the session waited for a backend: cancel the next thing
 * it runs.  Disarmed at the next boundary.
 */
extern void baton_cancel_arm(void);
extern void baton_cancel_disarm(void);

/*
 * Between these nothing of the client's runs.  A cancel of the session in place
 * is kept if the session has asked something, and means nothing otherwise.
 */
extern void baton_cancel_hold(void);
extern void baton_cancel_unhold(void);

/* The session in place has asked something, or not; void is what came before. */
extern void baton_cancel_session_asks(bool asks);

/*
 * The session in place, 0 if none: if it shall be ended, this backend ends with
 * FATAL, as in stock.  Wherever it is waited for somebody.
 */
extern void baton_terminate_check(uint64 session);

/* Something begins to run: cancels it, by ERROR, if one was armed or kept. */
extern void baton_cancel_fire(void);

/* ----------------------------------------------------------------
 *		A pooled backend becomes another role's.
 * ----------------------------------------------------------------
 */

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

#endif							/* BATON_IDENTITY_H */
