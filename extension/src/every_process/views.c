/*-------------------------------------------------------------------------
 *
 * views.c
 *		The functions beneath the views, and the server's functions that show
 *		the session's own counters and user.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/inet.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "dispatcher_link.h"
#include "later_functions.h"
#include "majors.h"
#include "pg_process.h"
#include "pg_program.h"
#include "pooled_state.h"
#include "self_check.h"
#include "views.h"

/* ----------------------------------------------------------------
 *		The functions beneath the views: they ask the dispatcher.
 *
 * Each call opens a connection of its own to the dispatcher's control socket,
 * sends the secret and the question, and stores the rows of the answer in a
 * tuplestore.  Rows come as texts; the function's result type determines
 * their conversion. docs/views.md describes the columns and the forms of
 * text, for both sides.
 *
 * The texts come from clients (an application_name may be anything), so they
 * are checked against this database's encoding before they become values.
 */

PG_FUNCTION_INFO_V1(pg_baton_get_sessions);
PG_FUNCTION_INFO_V1(pg_baton_get_backends);
PG_FUNCTION_INFO_V1(pg_baton_get_pools);
PG_FUNCTION_INFO_V1(pg_baton_get_pool_users);
PG_FUNCTION_INFO_V1(pg_baton_get_pool_settings);
PG_FUNCTION_INFO_V1(pg_baton_get_dispatchers);
PG_FUNCTION_INFO_V1(pg_baton_get_pauses);
PG_FUNCTION_INFO_V1(pg_baton_get_stats);
PG_FUNCTION_INFO_V1(pg_baton_stats_reset);

static int
ask(uint32 what)
{
	StringInfoData hello;
	int			fd = baton_question_open();

	baton_question_init(&hello, what);
	(void) baton_channel_send(fd, BATON_MSG_HELLO_QUERY, 0, hello.data, hello.len);
	pfree(hello.data);			/* a failed send shows as end of file when the
								 * answer is read */
	return fd;
}

/* A decimal number; a number that needs all 64 bits comes out negative. */
static int64
number_from_text(const char *digits)
{
	char	   *end;
	int64		value;

	errno = 0;
	value = digits[0] == '-' ? (int64) strtoll(digits, &end, 10) : (int64) strtoull(digits, &end, 10);
	if (end == digits || *end != '\0' || errno != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("pg_baton's dispatcher sent \"%s\" where a number was expected", digits)));
	return value;
}

/*
 * Replaces, in place, text that is invalid in this database's encoding by
 * question marks.
 */
static char *
make_valid(char *text)
{
	if (!pg_verifymbstr(text, strlen(text), true))
	{
		for (char *at = text; *at != '\0'; at++)
			if (IS_HIGHBIT_SET(*at))
				*at = '?';
	}
	return text;
}

static Datum
value_from_text(Oid type, char *text)
{
	switch (type)
	{
		case INT4OID:
			return Int32GetDatum((int32) number_from_text(text));
		case OIDOID:
			return ObjectIdGetDatum((Oid) number_from_text(text));
		case JSONBOID:
			return DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
		case INT8OID:
			return Int64GetDatum(number_from_text(text));
		case BOOLOID:
			return BoolGetDatum(strcmp(text, "t") == 0);
		case TIMESTAMPTZOID:
			return TimestampTzGetDatum(baton_sound_timestamp(number_from_text(text)));
		case INTERVALOID:
			{
				Interval   *interval = palloc0(sizeof(Interval));

				interval->time = number_from_text(text);
				return IntervalPGetDatum(interval);
			}
		case INETOID:
			return DirectFunctionCall1(inet_in, CStringGetDatum(text));
		case NAMEOID:
			return DirectFunctionCall1(namein, CStringGetDatum(make_valid(text)));
		case TEXTOID:
			return CStringGetTextDatum(make_valid(text));
		default:
			elog(ERROR, "column of unexpected type %u", type);
			return (Datum) 0;
	}
}

/* Puts one ROW into the result. */
static void
put_row(ReturnSetInfo *result, const BatonIncoming *incoming, Datum *values, bool *nulls)
{
	BatonWireReader in = {
		.at = incoming->payload,
		.end = incoming->payload + incoming->frame.length,
		.bad = false
	};
	TupleDesc	columns = result->setDesc;
	uint32		count = baton_wire_read_u32(&in);

	if (in.bad || count != (uint32) columns->natts)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("pg_baton's dispatcher sent a row of %u columns where %d were expected",
						count, columns->natts),
				 errhint("The program \"baton\" and the extension must be of the same version; ALTER EXTENSION pg_baton UPDATE may be needed.")));

	for (int i = 0; i < columns->natts; i++)
	{
		char	   *column = baton_wire_read_nullable(&in);

		nulls[i] = column == NULL;
		values[i] = nulls[i] || in.bad ? (Datum) 0 :
			value_from_text(TupleDescAttr(columns, i)->atttypid, column);
		if (TupleDescAttr(columns, i)->atttypid == TIMESTAMPTZOID &&
			DatumGetTimestampTz(values[i]) == 0)
			nulls[i] = true;
	}
	if (in.bad)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("pg_baton's dispatcher sent a row that is cut off")));
	tuplestore_putvalues(result->setResult, columns, values, nulls);
}

/*
 * The body of the functions: rows are materialized, each in its own memory
 * context.
 */
static Datum
answer(FunctionCallInfo fcinfo, uint32 what)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext row_context;
	MemoryContext old_context;
	Datum	   *values;
	bool	   *nulls;
	int			fd;

	InitMaterializedSRF(fcinfo, 0);
	values = palloc(sizeof(Datum) * result->setDesc->natts);
	nulls = palloc(sizeof(bool) * result->setDesc->natts);
	row_context = AllocSetContextCreate(CurrentMemoryContext, "pg_baton row",
										ALLOCSET_DEFAULT_SIZES);

	fd = ask(what);
	PG_TRY();
	{
		for (;;)
		{
			BatonIncoming incoming;

			baton_answer_require(fd, &incoming);
			if (incoming.frame.kind == BATON_MSG_DONE)
				break;
			if (incoming.frame.kind != BATON_MSG_ROW)
				baton_dispatcher_not_available("Its answer is not understood.");
			old_context = MemoryContextSwitchTo(row_context);
			put_row(result, &incoming, values, nulls);
			MemoryContextSwitchTo(old_context);
			MemoryContextReset(row_context);
		}
	}
	PG_FINALLY();
	{
		baton_question_close(fd);
	}
	PG_END_TRY();
	return (Datum) 0;
}

Datum
pg_baton_get_sessions(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_SESSIONS);
}

Datum
pg_baton_get_backends(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_BACKENDS);
}

Datum
pg_baton_get_pools(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_POOLS);
}

Datum
pg_baton_get_pool_users(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_TENANTS);
}

Datum
pg_baton_get_pool_settings(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_POOL_SETTINGS);
}

Datum
pg_baton_get_dispatchers(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_DISPATCHERS);
}

Datum
pg_baton_get_pauses(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_PAUSES);
}

Datum
pg_baton_get_stats(PG_FUNCTION_ARGS)
{
	return answer(fcinfo, BATON_QUERY_STATISTICS);
}

Datum
pg_baton_stats_reset(PG_FUNCTION_ARGS)
{
	int			fd = ask(BATON_QUERY_RESET_STATISTICS);

	PG_TRY();
	{
		BatonIncoming incoming;

		baton_answer_require(fd, &incoming);
	}
	PG_FINALLY();
	{
		baton_question_close(fd);
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 *		pg_stat_get_xact_*(): counters of the session alone.
 *
 * These functions, and so the views pg_stat_xact_*, show what a process has
 * counted and not yet reported.  It reports after a transaction, but at most
 * once a second (PGSTAT_MIN_INTERVAL, pgstat_report_stat() in pgstat.c, 15 to
 * 18), so a backend of the pool may still have counts of other sessions.
 *
 * Reporting at each hand-over would slow down all sessions for a view that
 * hardly any session reads.  So a backend notes the session of its counters.
 * It reports when a session is put in place or has ended a transaction while
 * the counters are another session's, at most every REPORT_INTERVAL.  If
 * sessions change faster than that, hardly any session finds its own
 * counters: then the interval doubles, up to REPORT_INTERVAL_MOST.  A session
 * that asks while the counters are another's is answered as if nothing had
 * been counted, and for the next WANTED_HAND_OVERS the backend reports
 * whenever a session is put in place.
 */

#define REPORT_INTERVAL 20000	/* microseconds */
#define REPORT_INTERVAL_MOST (16 * REPORT_INTERVAL)

/* More looks than this between two reports mean that sessions change fast. */
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

static const BatonBuiltin statistics_builtins[] =
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
		problem = baton_builtins_replace(statistics_builtins, lengthof(statistics_builtins));
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_STATISTICS, problem);
}

/* ----------------------------------------------------------------
 *		SYSTEM_USER of a session, independent of the backend that serves it.
 *
 * The server knows how this backend was authenticated; but a session's client
 * was authenticated by the dispatcher, or by a backend that has ended.  The
 * grammar turns SYSTEM_USER into a call of system_user() (16 to 18), which is
 * replaced here.  In a parallel worker the server's own function is called,
 * which has the leader's value (pg_port.c).
 */

static Datum
baton_sql_system_user(PG_FUNCTION_ARGS)
{
	const char *user = BatonPlaced.identity.authenticated_as;

	if (BatonSelf.slot == NULL)
		return system_user(fcinfo);
	if (user == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(user));
}

static const BatonBuiltin user_builtins[] =
{
	{F_SYSTEM_USER, "system_user", system_user, baton_sql_system_user},
};

void
baton_system_user_init(void)
{
	const char *problem;

	if (baton_self_check_is_broken("system_user"))
		problem = "broken on purpose";
	else
		problem = baton_builtins_replace(user_builtins, lengthof(user_builtins));
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_SYSTEM_USER, problem);
}
