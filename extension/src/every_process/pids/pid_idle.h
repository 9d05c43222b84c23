/*-------------------------------------------------------------------------
 *
 * pid_idle.h
 *		What there is to be shown of a session that no backend serves.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_IDLE_H
#define BATON_PID_IDLE_H

#include "datatype/timestamp.h"

#include "control.h"

typedef struct BatonIdleSession
{
	BatonIdentity identity;
	bool		is_permitted;	/* may the current user see more than who it
								 * is */
	bool		is_waiting;		/* for a backend */
	const char *state;			/* as in pg_stat_activity; NULL: none yet */
	const char *wait_event_type;
	const char *wait_event;
	const char *query;
	TimestampTz query_start;	/* 0: none */
	TimestampTz state_change;
	char	   *buffer;
	Oid			asked_role;		/* whose permission was looked up last */
	bool		asked_answer;
} BatonIdleSession;

/* palloc'd; to be filled again and again. */
extern BatonIdleSession *baton_idle_begin(void);

/* Of whatever session has that slot; false if none has. */
extern bool baton_idle_read(uint32 index, BatonIdleSession *idle);

extern bool baton_idle_has_address(const BatonIdleSession *idle);
extern Datum baton_idle_address(const BatonIdleSession *idle);	/* inet */
extern int	baton_idle_port(const BatonIdleSession *idle);

#endif							/* BATON_PID_IDLE_H */
