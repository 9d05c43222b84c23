/*-------------------------------------------------------------------------
 *
 * pid_views.h
 *		pg_stat_activity and its like: each session of the pool once, with or
 *		without a backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_VIEWS_H
#define BATON_PID_VIEWS_H

#include "access/tupdesc.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "funcapi.h"

#include "baton_shared.h"
#include "dispatcher_link.h"

/* ----------------------------------------------------------------
 *		Rows that a function of the server has put into a tuplestore, gone
 *		through once more.
 * ----------------------------------------------------------------
 */

/*
 * What becomes of the nth row (from 0), whose values may be changed in place:
 * false leaves it out.
 */
typedef bool (*BatonRowChange) (TupleDesc columns, int n, Datum *values, bool *nulls,
								void *argument);

/*
 * Replaces the result of a function that has just been called, and has
 * materialized it, by its changed rows.  More may be added to it afterwards.
 */
extern void baton_rows_change(FunctionCallInfo fcinfo, BatonRowChange change, void *argument);

/* The place of a column of that name; -1 if there is none. */
extern int	baton_rows_column(TupleDesc columns, const char *name);

/* ----------------------------------------------------------------
 *		What pg_stat_ssl and pg_stat_gssapi show of a session.
 * ----------------------------------------------------------------
 */

/* Of the client of a native backend behind a relay (client_ticket.c); not in use: none. */
extern BatonTls baton_relayed_tls;

/* One of its texts, in the database's encoding. */
extern Datum baton_tls_text(const uint8 *bytes);

/* ----------------------------------------------------------------
 *		What there is to be shown of a session that no backend serves.
 * ----------------------------------------------------------------
 */

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

#endif							/* BATON_PID_VIEWS_H */
