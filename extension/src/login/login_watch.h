/*-------------------------------------------------------------------------
 *
 * login_watch.h
 *		Noticing what may change who may log in, and how.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LOGIN_WATCH_H
#define BATON_LOGIN_WATCH_H

#include "utility_hook.h"

/* From _PG_init, in the postmaster. */
extern void baton_login_watch_init(void);

/* A utility statement begins (utility_hook.c). */
extern void baton_login_utility_begins(BatonUtility *utility);

/* What a LOGIN_ANSWER depends on has changed: none kept is good any more. */
extern void baton_login_changed(void);

#endif							/* BATON_LOGIN_WATCH_H */
