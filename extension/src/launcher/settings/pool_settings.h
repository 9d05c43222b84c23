/*-------------------------------------------------------------------------
 *
 * pool_settings.h
 *		What ALTER ROLE, ALTER DATABASE and the configuration say about a pool and
 *		about a backend's start.
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
 *		Noticing on a standby what a backend reads only when it starts.
 * ----------------------------------------------------------------
 */

/* The launcher, in a transaction, before it answers a client that logs in. */
extern void baton_settings_standby_look(void);

/* ----------------------------------------------------------------
 *		What backends take from the configuration only when they start.
 * ----------------------------------------------------------------
 */

struct config_generic;

/* Is this parameter for a starting backend alone to take? */
extern bool baton_counts_at_start(const struct config_generic *record);

/* All of it, as text to be compared with the last time's; palloc'd. */
extern char *baton_start_settings(void);

/* ----------------------------------------------------------------
 *		What ALTER ROLE and ALTER DATABASE say about a pool.
 * ----------------------------------------------------------------
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
 * Answers a POOL_QUESTION of the dispatcher.  False if it is not understood.
 */
extern bool baton_pool_settings_answer(const char *bytes, Size length, StringInfo answer);

/*
 * For a client that logs in: shall a role's sessions in a database be native, how
 * many may there be (-1: no limit), and must backends that serve them serve no other role?
 * In a transaction.
 */
extern bool baton_pool_is_native(Oid role, Oid database, int32 *max_sessions, bool *is_apart);

#endif							/* BATON_POOL_SETTINGS_H */
