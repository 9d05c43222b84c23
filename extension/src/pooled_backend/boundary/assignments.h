/*-------------------------------------------------------------------------
 *
 * assignments.h
 *		What the dispatcher sends to a pooled backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ASSIGNMENTS_H
#define BATON_ASSIGNMENTS_H

/*
 * Takes the next session from the ready queue, giving back the one in place.
 * The slot must be BUSY.  False if there was none after all.
 */
extern bool baton_assignments_take_next(void);

/*
 * Reads what has come by the control socket, and does it; returns when there
 * is no more, or when another session is in place, or none.  `cause`: why the
 * one in place is dedicated.
 */
extern void baton_assignments_handle(uint32 cause);

#endif							/* BATON_ASSIGNMENTS_H */
