/*-------------------------------------------------------------------------
 *
 * pool_settings.h
 *		What ALTER ROLE, ALTER DATABASE and the configuration set for a pool
 *		and for a backend's start.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_POOL_SETTINGS_H
#define BATON_POOL_SETTINGS_H

#include "access/htup.h"
#include "lib/stringinfo.h"
#include "utils/guc.h"

/* ----------------------------------------------------------------
 *		Noticing on a standby changes of what a backend reads only when it
 *		starts.
 */

/*
 * Called by the launcher, in a transaction, before it answers about a client
 * that logs in.
 */
extern void baton_settings_standby_look(void);

/* ----------------------------------------------------------------
 *		What backends read from the configuration only when they start.
 */

struct config_generic;

/* Does only a starting backend read this parameter? */
extern bool baton_counts_at_start(const struct config_generic *record);

/*
 * All these settings, as text to be compared with the last time's; palloc'd.
 */
extern char *baton_start_settings(void);

/* ----------------------------------------------------------------
 *		What ALTER ROLE and ALTER DATABASE set for a pool.
 */

/* pg_baton.pool_max_backends, pool_min_backends, pool_max_sessions; -1: none */
extern int	baton_pool_max_backends;
extern int	baton_pool_min_backends;
extern int	baton_pool_max_sessions;

/* pg_baton.pool_weight, pool_reserve */
extern int	baton_pool_weight;
extern int	baton_pool_reserve;

/* pg_baton.pool_memory; -1: none */
extern int	baton_pool_memory_kb;

/* pg_baton.pool_mode: BATON_MODE_*, and their names */
extern int	baton_pool_mode;
extern const struct config_enum_entry baton_pool_modes[];

/*
 * Answers a POOL_QUESTION of the dispatcher.  Returns false if it is not
 * understood.
 */
extern bool baton_pool_settings_answer(const char *bytes, Size length, StringInfo answer);

/*
 * For a client that logs in: returns whether a role's sessions in a database
 * are native, the limit of their number (-1: none), and whether backends that
 * serve them must serve no other role.  In a transaction.
 */
extern bool baton_pool_is_native(Oid role, Oid database, int32 *max_sessions, bool *is_apart);

#endif							/* BATON_POOL_SETTINGS_H */
