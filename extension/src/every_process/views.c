/*-------------------------------------------------------------------------
 *
 * views.c
 *		The functions beneath the views: they ask the dispatcher.
 *
 * Each call opens a connection of its own to the dispatcher's control socket,
 * shows the secret, says what it wants, and turns the rows that come into a
 * tuplestore.  Rows come as texts; the function's own result type says what
 * each is to become.  docs/views.md holds the columns and the forms of text,
 * for both sides.
 *
 * The texts are the clients' (an application_name may be anything), so they
 * are checked against this database's encoding before they become values.
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
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/inet.h"
#include "utils/timestamp.h"

#include "control.h"
#include "majors.h"
#include "question.h"
#include "sound_timestamp.h"
#include "wire.h"

/* A dispatcher that says nothing for so long is not well. */
#define ANSWER_TIMEOUT_MS 10000

PG_FUNCTION_INFO_V1(pg_baton_get_sessions);
PG_FUNCTION_INFO_V1(pg_baton_get_backends);
PG_FUNCTION_INFO_V1(pg_baton_get_pools);
PG_FUNCTION_INFO_V1(pg_baton_get_pool_users);
PG_FUNCTION_INFO_V1(pg_baton_get_pool_settings);
PG_FUNCTION_INFO_V1(pg_baton_get_dispatchers);

pg_noreturn static void not_available(const char *why);

static void
not_available(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pg_baton's dispatcher is not available"),
			 errdetail("%s", why),
			 errhint("The launcher starts it again by itself; the server's log says what keeps it.")));
	pg_unreachable();
}

static int
ask(uint32 what)
{
	StringInfoData hello;
	int			fd;

	if (BatonControlMemory == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_baton is not loaded"),
				 errhint("Add pg_baton to shared_preload_libraries and restart the server.")));

	fd = baton_channel_connect();
	if (fd < 0)
		not_available("It accepts no connection on its control socket.");
	ReserveExternalFD();

	baton_question_init(&hello, what);
	(void) baton_channel_send(fd, BATON_MSG_HELLO_QUERY, 0, hello.data, hello.len);
	pfree(hello.data);			/* a failed send shows as end of file */
	return fd;
}

/* The next frame of the answer. */
static void
next_frame(int fd, BatonIncoming *incoming)
{
	switch (baton_answer_next(fd, ANSWER_TIMEOUT_MS, incoming))
	{
		case BATON_RECEIVED_FRAME:
			return;
		case BATON_RECEIVED_CLOSED:
			not_available("It closed the connection before it had answered.");
			break;
		case BATON_RECEIVED_NOTHING:
			not_available("It does not answer.");
			break;
	}
}

/* A decimal number; one that needs all 64 bits comes out negative. */
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

/* In place: what is no text in this database's encoding is made question marks. */
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
		char	   *column = baton_wire_read_string(&in);

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

/* The whole of a function: rows are materialized, one context a row. */
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

			next_frame(fd, &incoming);
			if (incoming.frame.type == BATON_MSG_DONE)
				break;
			if (incoming.frame.type != BATON_MSG_ROW)
				not_available("Its answer is not understood.");
			old_context = MemoryContextSwitchTo(row_context);
			put_row(result, &incoming, values, nulls);
			MemoryContextSwitchTo(old_context);
			MemoryContextReset(row_context);
		}
	}
	PG_FINALLY();
	{
		close(fd);
		ReleaseExternalFD();
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
