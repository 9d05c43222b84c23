/*-------------------------------------------------------------------------
 *
 * identity.h
 *		Who the backend says it serves, and whose cancel requests it obeys.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_IDENTITY_H
#define BATON_IDENTITY_H

#include "baton_shared.h"

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

#endif							/* BATON_IDENTITY_H */
