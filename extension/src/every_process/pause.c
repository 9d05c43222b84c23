/*-------------------------------------------------------------------------
 *
 * pause.c
 *		The SQL functions that pause and resume sessions.
 *
 * The dispatcher does both (core/pause.rs).  While pg_baton_pause() waits for
 * transactions that run, the pause depends on its connection to the
 * dispatcher: however the function ends without success, even if its process
 * is killed, the connection closes and the sessions are resumed.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "commands/dbcommands.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "dispatcher_link.h"
#include "majors.h"
#include "pooled_state.h"

/* What is in the way is asked for again, at first soon. */
#define FIRST_STEP_MS 1
#define LAST_STEP_MS 100

/* Neither waiting nor a pause lasts longer. */
#define MOST_US USECS_PER_DAY

/* Sessions that an answer names: MOST_NAMED of pause.rs. */
#define MOST_NAMED 10

PG_FUNCTION_INFO_V1(pg_baton_pause);
PG_FUNCTION_INFO_V1(pg_baton_resume);

/* What the dispatcher answers. */
typedef struct Answer
{
	bool		ended;			/* the pause has been ended by others */
	uint64		in_the_way;		/* how many sessions */
	int			named;
	uint64		sessions[MOST_NAMED];
} Answer;

/* An argument, or InvalidOid if it is NULL: any database, any role. */
static Oid
database_argument(FunctionCallInfo fcinfo, int number)
{
	return PG_ARGISNULL(number) ? InvalidOid :
		get_database_oid(NameStr(*PG_GETARG_NAME(number)), false);
}

static Oid
role_argument(FunctionCallInfo fcinfo, int number)
{
	return PG_ARGISNULL(number) ? InvalidOid :
		get_role_oid(NameStr(*PG_GETARG_NAME(number)), false);
}

static uint64
time_argument(FunctionCallInfo fcinfo, int number, const char *name, int64 least_us)
{
	const Interval *interval;
	double		us;

	if (PG_ARGISNULL(number))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("\"%s\" must not be NULL", name)));
	interval = PG_GETARG_INTERVAL_P(number);
	us = (double) interval->time + (double) interval->day * USECS_PER_DAY +
		(double) interval->month * DAYS_PER_MONTH * USECS_PER_DAY;
	if (!(us >= least_us && us <= MOST_US))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 least_us > 0 ?
				 errmsg("\"%s\" must be longer than zero and at most a day", name) :
				 errmsg("\"%s\" must not be negative, and at most a day", name)));
	return (uint64) us;
}

/* The next row of an answer; false at its end. */
static bool
next_row(int fd, uint32 *what, uint64 *value)
{
	BatonIncoming incoming;
	BatonWireReader in;

	baton_answer_require(fd, &incoming);
	if (incoming.frame.kind == BATON_MSG_DONE)
		return false;
	in.at = incoming.payload;
	in.end = incoming.payload + incoming.frame.length;
	in.bad = incoming.frame.kind != BATON_MSG_ROW;
	*what = baton_wire_read_u32(&in);
	*value = baton_wire_read_u64(&in);
	if (in.bad)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("pg_baton's dispatcher sent an answer that is not understood")));
	return true;
}

static void
ask(int fd, const StringInfoData *question, Answer *answer)
{
	uint32		what;
	uint64		value;

	memset(answer, 0, sizeof(*answer));
	/* a failed send shows as end of file when the answer is read */
	(void) baton_channel_send(fd, BATON_MSG_HELLO_QUERY, baton_session_held(),
							  question->data, question->len);
	while (next_row(fd, &what, &value))
	{
		if (what == BATON_PAUSE_ENDED)
			answer->ended = true;
		else if (what == BATON_PAUSE_SESSIONS)
			answer->in_the_way = value;
		else if (what == BATON_PAUSE_SESSION && answer->named < MOST_NAMED &&
				 (uint32) value < BatonControlMade.session_slots)
			answer->sessions[answer->named++] = value;
	}
}

static const char *
state_text(const BatonSessionSlot *slot)
{
	switch (slot->state)
	{
		case BATON_STATE_ACTIVE:
			return "active";
		case BATON_STATE_IDLE_IN_TRANSACTION:
			return "idle in transaction";
		case BATON_STATE_LOGIN:
			return "login";
		case BATON_STATE_WAITING:
			return "waiting";
		default:
			return "idle";
	}
}

/* One line about a session.  It may change meanwhile, or end. */
static void
describe(StringInfo text, uint64 session)
{
	const BatonIdentity *identity = baton_identity((uint32) session);
	const BatonSessionSlot *slot = baton_session_slot(session);
	uint32		cause = slot->dedicated_cause;
	char	   *role = GetUserNameFromId(identity->role_oid, true);
	char	   *database = get_database_name(identity->database_oid);

	if (identity->id != session)
		return;
	if (text->len > 0)
		appendStringInfoChar(text, '\n');
	appendStringInfo(text,
					 _("Session with PID %d of role \"%s\" in database \"%s\": %s for %.1f s"),
					 identity->pid, role ? role : "?", database ? database : "?",
					 state_text(slot),
					 Max(baton_monotonic_us() - slot->state_since_us, 0) / 1e6);
	if (cause != BATON_CAUSE_NONE && cause < BATON_CAUSE_COUNT)
		appendStringInfo(text, _(", dedicated (%s)"), baton_cause_names[cause]);
	appendStringInfoChar(text, '.');
}

pg_noreturn static void gives_up(const Answer *answer);

static void
gives_up(const Answer *answer)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < answer->named; i++)
		describe(&text, answer->sessions[i]);
	if (answer->in_the_way > (uint64) answer->named)
		appendStringInfo(&text, _("\nThere are %llu more."),
						 (unsigned long long) (answer->in_the_way - answer->named));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg_plural("could not pause: %llu session still runs a transaction",
						   "could not pause: %llu sessions still run transactions",
						   (unsigned long) answer->in_the_way,
						   (unsigned long long) answer->in_the_way),
			 text.len > 0 ? errdetail_internal("%s", text.data) : 0,
			 errhint("The sessions are resumed.")));
	pg_unreachable();
}

/* Waits until nothing is in the way. */
static void
pause_by(int fd, const StringInfoData *question, uint64 timeout_us)
{
	int64		give_up_us = baton_monotonic_us() + (int64) timeout_us;
	long		step_ms = FIRST_STEP_MS;

	for (;;)
	{
		Answer		answer;
		long		left_ms;

		ask(fd, question, &answer);
		if (answer.ended)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("could not pause: the sessions have been resumed, or there are too many pauses")));
		if (answer.in_the_way == 0)
			return;
		left_ms = baton_ms_until(give_up_us);
		if (left_ms <= 0)
			gives_up(&answer);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(step_ms, left_ms), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		step_ms = Min(2 * step_ms, LAST_STEP_MS);
	}
}

Datum
pg_baton_pause(PG_FUNCTION_ARGS)
{
	Oid			database = database_argument(fcinfo, 0);
	Oid			role = role_argument(fcinfo, 1);
	uint64		timeout_us = time_argument(fcinfo, 2, "timeout", 0);
	uint64		limit_us = time_argument(fcinfo, 3, "for", 1);
	StringInfoData question;
	int			fd = baton_question_open();

	PG_TRY();
	{
		baton_question_init(&question, BATON_QUERY_PAUSE);
		baton_wire_u32(&question, role);
		baton_wire_u32(&question, database);
		baton_wire_u32(&question, GetAuthenticatedUserId());
		baton_wire_u64(&question, timeout_us);
		baton_wire_u64(&question, limit_us);
		pause_by(fd, &question, timeout_us);
	}
	PG_FINALLY();
	{
		baton_question_close(fd);
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

Datum
pg_baton_resume(PG_FUNCTION_ARGS)
{
	Oid			database = database_argument(fcinfo, 0);
	Oid			role = role_argument(fcinfo, 1);
	StringInfoData question;
	uint32		what;
	uint64		value;
	volatile uint64 ended = 0;
	int			fd = baton_question_open();

	PG_TRY();
	{
		baton_question_init(&question, BATON_QUERY_RESUME);
		baton_wire_u32(&question, role);
		baton_wire_u32(&question, database);
		(void) baton_channel_send(fd, BATON_MSG_HELLO_QUERY, 0, question.data, question.len);
		while (next_row(fd, &what, &value))
			ended = value;
	}
	PG_FINALLY();
	{
		baton_question_close(fd);
	}
	PG_END_TRY();
	PG_RETURN_INT32((int32) ended);
}
