/*-------------------------------------------------------------------------
 *
 * pid_rows.h
 *		Rows that a function of the server has put into a tuplestore, gone
 *		through once more.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PID_ROWS_H
#define BATON_PID_ROWS_H

#include "fmgr.h"
#include "funcapi.h"

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

#endif							/* BATON_PID_ROWS_H */
