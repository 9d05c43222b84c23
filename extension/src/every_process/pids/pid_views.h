/*-------------------------------------------------------------------------
 *
 * pid_views.h
 *		pg_stat_activity and related views: each session of the pool once,
 *		with or without a backend.
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
 *		Changing the rows that a function of the server has put into a
 *		tuplestore.
 */

/*
 * Handles the nth row (from 0), and may change its values in place.  Returning
 * false leaves the row out.
 */
typedef bool (*BatonRowChange) (TupleDesc columns, int n, Datum *values, bool *nulls,
								void *argument);

/*
 * Replaces the result that a function has just materialized by its changed
 * rows.  More rows may be added to it afterwards.
 */
extern void baton_rows_change(FunctionCallInfo fcinfo, BatonRowChange change, void *argument);

/* The index of the column of that name, or -1. */
extern int	baton_rows_column(TupleDesc columns, const char *name);

/* ----------------------------------------------------------------
 *		What pg_stat_ssl and pg_stat_gssapi show of a session.
 * ----------------------------------------------------------------
 */

/*
 * The TLS of a native backend's client behind a relay (client_ticket.c);
 * in_use is 0 if there is none.
 */
extern BatonTls baton_relayed_tls;

/* A text of a BatonTls, in the database's encoding. */
extern Datum baton_tls_text(const uint8 *bytes);

/* ----------------------------------------------------------------
 *		What the views show of a session that no backend serves.
 */

/* pg_baton.show_idle_sessions */
#define BATON_SHOW_OFF 0
#define BATON_SHOW_ON 1
#define BATON_SHOW_AUTO 2
extern int	baton_show_idle_sessions;

typedef struct BatonIdleSession
{
	BatonIdentity identity;
	bool		is_permitted;	/* may the current user see more than its
								 * identity? */
	bool		is_waiting;		/* it waits for a backend */
	const char *state;			/* as in pg_stat_activity; NULL: none yet */
	const char *wait_event_type;
	const char *wait_event;
	const char *query;
	TimestampTz query_start;	/* 0: none */
	TimestampTz state_change;
	char	   *buffer;
	Oid			asked_role;		/* the last role that a permission was looked
								 * up for */
	bool		asked_answer;
} BatonIdleSession;

#endif							/* BATON_PID_VIEWS_H */
