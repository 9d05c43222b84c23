/*-------------------------------------------------------------------------
 *
 * system_user.h
 *		SYSTEM_USER of a session, whichever backend serves it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SYSTEM_USER_H
#define BATON_SYSTEM_USER_H

/* Postmaster only, from _PG_init. */
extern void baton_system_user_init(void);

#endif							/* BATON_SYSTEM_USER_H */
