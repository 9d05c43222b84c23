/*-------------------------------------------------------------------------
 *
 * taint.h
 *		Whether a session may leave its backend, and making a backend fit for
 *		others after it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_H
#define BATON_TAINT_H

/*
 * Called once, at attach. Returns NULL, or the reason why this backend cannot
 * pool.
 */
extern const char *baton_taint_attach(void);

/*
 * Is a portal open whose query may run on? A FETCH, or Execute with a number of
 * rows, initialises no expression again.
 */
extern bool baton_portals_may_run(void);

/* BATON_CAUSE_*, 0 if the session may leave this backend. */
extern uint32 baton_taint(void);

/*
 * The dedicated session has ended: cleans the backend. Returns false if that
 * is impossible (a library was loaded); the backend must then exit.
 */
extern bool baton_taint_clean(void);

#endif							/* BATON_TAINT_H */
