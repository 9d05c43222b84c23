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
 *		The identity that the backend shows, and the cancel requests that it
 *		obeys.
 * ----------------------------------------------------------------
 */

/* Called once, at attach, when BatonSelf is filled. Takes over SIGUSR2. */
extern void baton_cancel_attach(void);

/*
 * Shows addresses, start time and the rest as a backend of that client would.
 */
extern void baton_identity_put(const BatonSessionRecord *record);

/* No session is in place: nothing of the last session is shown any more. */
extern void baton_identity_clear(void);

/*
 * A cancel request came while the session waited for a backend: the next
 * command that the session runs is cancelled. The next boundary disarms this.
 */
extern void baton_cancel_arm(void);
extern void baton_cancel_disarm(void);

/*
 * Nothing of the client's runs between these two calls. A cancel request for
 * the session in place is kept if the session has sent a request, and is
 * discarded otherwise.
 */
extern void baton_cancel_hold(void);
extern void baton_cancel_unhold(void);

/*
 * Has the session in place sent a request? Discards cancel requests that came
 * before.
 */
extern void baton_cancel_session_asks(bool asks);

/*
 * If the session in place (0: none) is to be terminated, this backend ends
 * with FATAL, as stock does. Called wherever the backend waits for another
 * process.
 */
extern void baton_terminate_check(uint64 session);

/*
 * Between these two calls the boundary may wait for the client of the session
 * in place to read. A request to terminate the session ends that wait.
 */
extern void baton_terminate_ends_write(void);
extern void baton_terminate_ends_no_write(void);

/*
 * A command begins to run: cancels it with ERROR if a cancel request was armed
 * or kept.
 */
extern void baton_cancel_fire(void);

/* ----------------------------------------------------------------
 *		A pooled backend becomes another role's.
 * ----------------------------------------------------------------
 */

/*
 * Called once, at attach, in a transaction. Can this backend serve other
 * roles?
 */
extern bool baton_become_attach(void);

/* Can this backend, which holds no session, serve the given session? */
typedef enum
{
	BATON_BECOMES,
	BATON_BECOMES_TOO_OLD,		/* only a backend that starts now has the
								 * settings that the session must have */
	BATON_BECOMES_NOT			/* the backend keeps state that belongs to its
								 * role */
} BatonBecomes;

/*
 * Called before the backend owns the session. May read settings if the session
 * is to be greeted.
 */
extern BatonBecomes baton_become_look(const BatonSessionRecord *record, Oid role);

/*
 * The backend becomes this role's, with the settings that were read. It now
 * owns the role's session, which is of that tenant.
 */
extern void baton_become(Oid role, const BatonTenantSlot *tenant);

/*
 * For tests (pg_baton.force_role_changes): the backend, which holds no
 * session, becomes the bootstrap superuser's.
 */
extern void baton_become_another(void);

/* Ends the process: the authenticated user is not the session's role. */
pg_noreturn extern void baton_role_is_wrong(void);

/*
 * Called at the start of each command that the session in place runs. Nothing
 * may run as a role that is not the session's, whatever went wrong before.
 */
static inline void
baton_role_check(void)
{
	if (BatonServed.session != 0 && unlikely(BatonServed.role != GetAuthenticatedUserId()))
		baton_role_is_wrong();
}

#endif							/* BATON_IDENTITY_H */
