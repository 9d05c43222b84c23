/*-------------------------------------------------------------------------
 *
 * pg_roles.h
 *		PostgreSQL's authenticated user (miscinit.c, acl.c): changing it in a
 *		running backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_ROLES_H
#define BATON_PG_ROLES_H

/* ----------------------------------------------------------------
 *		Dropping from PostgreSQL's caches what depends on a role's rights.
 */

/*
 * Called once in a backend, in a transaction.  Returns NULL, or what is not as
 * expected.
 */
extern const char *baton_role_caches_attach(void);

/*
 * Called when a function is looked up to be executed, or to be copied into its
 * caller.
 */
extern void baton_role_caches_function(Oid function);

/*
 * Called when the authenticated user has changed, in a transaction in which
 * nothing is open.  After an error the process must end.
 */
extern void baton_role_caches_forget(void);

/* Called when another session is put in place. */
extern void baton_role_caches_session_changes(void);

/*
 * Called in a transaction, before rows may be written by the role in force:
 * drops what earlier sessions have planned for other roles.
 */
extern void baton_role_caches_write(void);

/* ----------------------------------------------------------------
 *		Functions that the process has looked up once, and their owners.
 */

/* Called once in a backend.  Returns NULL, or what is not as expected. */
extern const char *baton_kept_functions_attach(void);

/* Called when a command begins: looks up those that have changed. */
extern void baton_kept_functions_renew(void);

/* ----------------------------------------------------------------
 *		Changing the authenticated user in a running backend.
 */

/*
 * Can the authenticated user of this process be changed?  Returns NULL if so,
 * else why not: then the backend has one role for life.
 */
extern const char *baton_role_switch_attach(void);

/*
 * Can all processes of this server do so, as far as any process can tell?  If
 * not, roles have separate pools.
 */
extern bool baton_roles_can_change(void);

/*
 * Makes `role` the authenticated user, the session user and the current user,
 * and what RESET SESSION AUTHORIZATION returns to.  Name and is_superuser are
 * those of the session's login.  No catalog is read: the role may have been
 * dropped.  SET ROLE must not be active.  After an error the process must end.
 */
extern void baton_role_switch(Oid role, const char *name, bool is_superuser);

/*
 * Is `role` all of these, and the role that other processes see for this one?
 */
extern bool baton_role_is_in_force(Oid role);

#endif							/* BATON_PG_ROLES_H */
