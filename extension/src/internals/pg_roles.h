/*-------------------------------------------------------------------------
 *
 * pg_roles.h
 *		PostgreSQL's authenticated user (miscinit.c, acl.c): another one in a
 *		running backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_ROLES_H
#define BATON_PG_ROLES_H

/* ----------------------------------------------------------------
 *		What PostgreSQL's caches hold of one role's rights, forgotten for another's.
 * ----------------------------------------------------------------
 */

/* Once a backend, in a transaction.  What is not as expected; NULL if all is. */
extern const char *baton_role_caches_attach(void);

/* A function is looked up to be executed, or to be copied into its caller. */
extern void baton_role_caches_function(Oid function);

/*
 * The authenticated user has changed.  In a transaction that has nothing open.
 * After an error the process must end.
 */
extern void baton_role_caches_forget(void);

/* ----------------------------------------------------------------
 *		Another authenticated user in a running backend.
 * ----------------------------------------------------------------
 */

/*
 * Can the authenticated user of this process be changed?  NULL if so, else why not: then
 * the backend has one role for life.
 */
extern const char *baton_role_switch_attach(void);

/*
 * Is it the case for all processes of this server, as far as that can be said in any?  If
 * not, roles have pools of their own.
 */
extern bool baton_roles_can_change(void);

/*
 * Makes `role`, whose name was that and which was a superuser or not when its session
 * logged in, the authenticated user, the session user and the current user, and what RESET
 * SESSION AUTHORIZATION returns to.  No catalog is read: the role may have been dropped.
 * SET ROLE must not be active.  After an error the process must end.
 */
extern void baton_role_switch(Oid role, const char *name, bool is_superuser);

/* Is `role` all of these, and the role of this process to others? */
extern bool baton_role_is_in_force(Oid role);

#endif							/* BATON_PG_ROLES_H */
