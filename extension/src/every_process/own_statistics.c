/*-------------------------------------------------------------------------
 *
 * own_statistics.c
 *		pg_stat_get_xact_*(): counters of the session and no other's.
 *
 * These functions, and so the views pg_stat_xact_*, show what a process has
 * counted and not yet reported.  It reports after a transaction, but at most
 * once a second (PGSTAT_MIN_INTERVAL, pgstat_report_stat() in pgstat.c, 15 to 18),
 * so in a backend of the pool there may be what other sessions did.
 *
 * To report at each hand-over would cost all sessions what hardly any asks for.
 * So a backend notes whose the counters are, and reports, as a session comes or
 * has ended a transaction among others' counters, at most every REPORT_INTERVAL.
 * Where sessions change faster, nearly none finds its own counters after all: then
 * the interval doubles, up to REPORT_INTERVAL_MOST.  A session that asks is answered
 * as if nothing had been counted, and for the next WANTED_HAND_OVERS the backend
 * reports as each session comes.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgstat.h"

#include "builtin_table.h"
#include "later_functions.h"
#include "own_statistics.h"
#include "pooled_state.h"
#include "self_check.h"

#define REPORT_INTERVAL 20000	/* microseconds */
#define REPORT_INTERVAL_MOST (16 * REPORT_INTERVAL)

/* So many looks between two reports are of sessions that change fast. */
#define MANY_LOOKS 32

#define WANTED_HAND_OVERS 1000

#define OF_SEVERAL PG_UINT64_MAX

static BatonPlacedStatistics *const placed = &BatonPlaced.statistics;

void
baton_own_statistics_begin(int64 now)
{
	uint64		session = baton_session_held();

	if (placed->session == session)
		return;
	if (placed->session != 0)
	{
		if (likely(placed->wanted == 0) &&
			(uint64) (now - placed->reported_at) < REPORT_INTERVAL + placed->pause)
		{
			placed->session = OF_SEVERAL;
			placed->looks++;
			return;
		}
		placed->pause = placed->looks < MANY_LOOKS ? 0 :
			Min(2 * placed->pause + REPORT_INTERVAL, REPORT_INTERVAL_MOST - REPORT_INTERVAL);
		placed->looks = 0;
		if (placed->wanted > 0)
			placed->wanted--;
		placed->reported_at = now;
		pgstat_report_stat(true);
	}
	placed->session = session;
}

void
baton_own_statistics_reported(void)
{
	placed->session = 0;
}

static bool
counters_are_own(void)
{
	if (BatonSelf.slot == NULL || baton_session_held() == 0)
		return true;			/* an ordinary backend */
	placed->wanted = WANTED_HAND_OVERS;
	return placed->session == baton_session_held();
}

#define COUNTER_OF_TABLE(counter) \
static Datum \
own_##counter(PG_FUNCTION_ARGS) \
{ \
	if (!counters_are_own()) \
		PG_RETURN_INT64(0); \
	return pg_stat_get_xact_##counter(fcinfo); \
}

#define COUNTER_OF_FUNCTION(counter) \
static Datum \
own_##counter(PG_FUNCTION_ARGS) \
{ \
	if (!counters_are_own()) \
		PG_RETURN_NULL(); \
	return pg_stat_get_xact_##counter(fcinfo); \
}

COUNTER_OF_TABLE(numscans)
COUNTER_OF_TABLE(tuples_returned)
COUNTER_OF_TABLE(tuples_fetched)
COUNTER_OF_TABLE(tuples_inserted)
COUNTER_OF_TABLE(tuples_updated)
COUNTER_OF_TABLE(tuples_deleted)
COUNTER_OF_TABLE(tuples_hot_updated)
COUNTER_OF_TABLE(tuples_newpage_updated)
COUNTER_OF_TABLE(blocks_fetched)
COUNTER_OF_TABLE(blocks_hit)
COUNTER_OF_FUNCTION(function_calls)
COUNTER_OF_FUNCTION(function_total_time)
COUNTER_OF_FUNCTION(function_self_time)

#define BUILTIN(OID_PART, counter) \
	{F_PG_STAT_GET_XACT_##OID_PART, "pg_stat_get_xact_" #counter, pg_stat_get_xact_##counter, own_##counter}

static const BatonBuiltin builtins[] =
{
	BUILTIN(NUMSCANS, numscans),
	BUILTIN(TUPLES_RETURNED, tuples_returned),
	BUILTIN(TUPLES_FETCHED, tuples_fetched),
	BUILTIN(TUPLES_INSERTED, tuples_inserted),
	BUILTIN(TUPLES_UPDATED, tuples_updated),
	BUILTIN(TUPLES_DELETED, tuples_deleted),
	BUILTIN(TUPLES_HOT_UPDATED, tuples_hot_updated),
	BUILTIN(TUPLES_NEWPAGE_UPDATED, tuples_newpage_updated),
	BUILTIN(BLOCKS_FETCHED, blocks_fetched),
	BUILTIN(BLOCKS_HIT, blocks_hit),
	BUILTIN(FUNCTION_CALLS, function_calls),
	BUILTIN(FUNCTION_TOTAL_TIME, function_total_time),
	BUILTIN(FUNCTION_SELF_TIME, function_self_time),
};

void
baton_own_statistics_init(void)
{
	const char *problem;

	if (baton_self_check_is_broken("own_statistics"))
		problem = "broken on purpose";
	else
		problem = baton_builtins_replace(builtins, lengthof(builtins));
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_STATISTICS, problem);
}
