/*-------------------------------------------------------------------------
 *
 * role_switch.h
 *		Another authenticated user in a running backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ROLE_SWITCH_H
#define BATON_ROLE_SWITCH_H

/*
 * Can the authenticated user of this process be changed?  NULL if so, else why not: then
 * the backend has one role for life.
 */
extern const char *baton_role_switch_attach(void);

/*
 * Makes `role`, whose name is that now, the authenticated user, the session user and the
 * current user, and what RESET SESSION AUTHORIZATION returns to.  In a transaction; SET
 * ROLE must not be active.
 * After an error the process must end.
 */
extern void baton_role_switch(Oid role, const char *name, bool is_superuser);

/* Is `role` all of these, and the role of this process to others? */
extern bool baton_role_is_in_force(Oid role);

#endif							/* BATON_ROLE_SWITCH_H */
