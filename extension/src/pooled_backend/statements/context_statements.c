/*-------------------------------------------------------------------------
 *
 * context_statements.c
 *		The named prepared statements of a session, by SQL and by protocol.
 *
 * When a session is put in place nothing is done for its statements, however
 * many it has; see docs/design/prepared-statements.md.  What the session before
 * has looked up is taken out of the table (statement_held.c).  If it is the same
 * session, and nothing of its statements has changed elsewhere, all stays as it
 * is.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "context_statements.h"
#include "control.h"
#include "plan_source.h"
#include "pooled_state.h"
#include "statement_common.h"
#include "statement_environment.h"
#include "statement_held.h"
#include "statement_notice.h"

static BatonPlacedStatements *const placed = &BatonPlaced.statements;

const char *
baton_statements_attach(void)
{
	const char *problem;

	problem = baton_plan_attach();
	if (problem == NULL)
		problem = baton_notice_check();
	/* last of what may fail: the server's table is replaced */
	if (problem == NULL)
		problem = baton_held_attach();
	if (problem != NULL)
		return problem;
	baton_notice_attach();
	baton_common_attach();
	return NULL;
}

void
baton_statements_install(const BatonSessionRecord *record)
{
	BatonSessionSlot *slot = baton_session_slot(record->id);
	bool		same;

	same = record->id == placed->session && record->context_version != 0 &&
		record->context_version == placed->context_version &&
		slot->counter_version == placed->counter_version;
	baton_notice_reset();
	if (!same)
	{
		placed->session = 0;
		baton_held_close();
		baton_held_open(record);
		placed->session = record->id;
		placed->context_version = record->context_version;
		placed->counter_version = slot->counter_version;
	}
	baton_environment_install(record->context_version, same);
}

void
baton_statements_captured(bool context, bool counters)
{
	if (context)
		placed->context_version = 0;
	if (counters)
		placed->counter_version = ++baton_session_slot(placed->session)->counter_version;
}

void
baton_statements_forget(uint64 session)
{
	if (session == placed->session)
	{
		placed->session = 0;
		baton_held_close();
	}
	baton_notice_reset();
}
