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

#include "access/xact.h"
#include "utils/resowner.h"

#include "utility_statement.h"

/* From hooks.c: a utility statement begins; a transaction is on its way. */
extern void baton_login_utility_begins(BatonUtility *utility);
extern void baton_login_transaction(XactEvent event);
extern void baton_login_release(ResourceReleasePhase phase, bool is_commit, bool is_top);

/* What a LOGIN_ANSWER depends on has changed: none kept is good any more. */
extern void baton_login_changed(void);

#endif							/* BATON_LOGIN_WATCH_H */
