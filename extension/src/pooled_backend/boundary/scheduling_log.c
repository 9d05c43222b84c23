/*-------------------------------------------------------------------------
 *
 * scheduling_log.c
 *		Lines of the scheduling log (pg_baton.log_scheduling): which session has
 *		got this backend and why, and why it keeps it.
 *
 * Who calls looks at the parameter first.  The dispatcher writes the others, why
 * a pool has grown or shrunk, with the same prefix (scheduler/carry_out.rs);
 * docs/operations.md has them all.  Names come last in a line: nothing that
 * precedes them can be what somebody has called himself.
 *
 * They are the server's alone (LOG_SERVER_ONLY), and come without a statement,
 * for the last one that ran here was another session's.  Interrupts are held
 * off: errfinish() looks for them after each line (elog.c, 15 to 18), and a line
 * shall not be where a session is cancelled.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/libpq-be.h"
#include "miscadmin.h"

#include "monotonic.h"
#include "pooled_state.h"
#include "scheduling_log.h"

/* As pg_baton_sessions.dedicated_cause has them. */
static const char *const cause_names[BATON_CAUSE_COUNT] = {
	[BATON_CAUSE_NONE] = "",
#define BATON_CAUSE(name, text) [BATON_CAUSE_##name] = text,
#include "causes.inc"
#undef BATON_CAUSE
};

static const char *const taken_names[] = {
	[BATON_TAKEN_FROM_QUEUE] = "ready queue",
	[BATON_TAKEN_IDLE] = "idle backend",
	[BATON_TAKEN_LINGERING] = "lingering backend"
};

static void
write_line(uint64 session, const char *what, const char *fields)
{
	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("pg_baton: scheduling: %s: session_pid=%d slot=%u backend_pid=%d %s user=%s database=%s",
							 what, baton_identity((uint32) session)->pid,
							 BatonSelf.slot_index, MyProcPid, fields,
							 MyProcPort->user_name, MyProcPort->database_name),
			 errhidestmt(true), errhidecontext(true)));
	RESUME_INTERRUPTS();
}

/*
 * `is_last`: it has served this session last, which is what it was chosen for if it
 * was chosen at all (choose_backend, pool.rs).  `waits_since`: 0 if the session has
 * not waited.
 */
void
baton_scheduling_log_taken(uint64 session, BatonTakenBy why, bool is_last,
						   int64 waits_since)
{
	int64		waited_us = waits_since == 0 ? 0 : baton_monotonic_us() - waits_since;
	char		fields[128];

	/* another process has written it */
	waited_us = Max(waited_us, 0);
	snprintf(fields, sizeof(fields), "waited_ms=%lld.%03d why=\"%s\"",
			 (long long) (waited_us / 1000), (int) (waited_us % 1000),
			 is_last && why != BATON_TAKEN_FROM_QUEUE ? "last backend" : taken_names[why]);
	write_line(session, "assigned", fields);
}

void
baton_scheduling_log_cause(uint64 session, uint32 cause, uint32 cause_before)
{
	char		fields[128];

	if (cause != BATON_CAUSE_NONE)
		snprintf(fields, sizeof(fields), "why=\"%s\"", cause_names[cause]);
	else
		snprintf(fields, sizeof(fields), "was=\"%s\"", cause_names[cause_before]);
	write_line(session, cause != BATON_CAUSE_NONE ? "dedicated" : "shared", fields);
}
