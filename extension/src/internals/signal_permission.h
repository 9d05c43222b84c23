/*-------------------------------------------------------------------------
 *
 * signal_permission.h
 *		Who may cancel or end whose session.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SIGNAL_PERMISSION_H
#define BATON_SIGNAL_PERMISSION_H

/* May the current user cancel or end sessions of the role? */
extern bool baton_may_signal(Oid role);

/* ereport(ERROR) unless the current user may do that to a session of the role. */
extern void baton_check_may_cancel(Oid role);
extern void baton_check_may_terminate(Oid role);

#endif							/* BATON_SIGNAL_PERMISSION_H */
