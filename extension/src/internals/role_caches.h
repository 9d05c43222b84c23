/*-------------------------------------------------------------------------
 *
 * role_caches.h
 *		What PostgreSQL's caches hold of one role's rights, forgotten for another's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ROLE_CACHES_H
#define BATON_ROLE_CACHES_H

/* Once a backend, in a transaction.  What is not as expected; NULL if all is. */
extern const char *baton_role_caches_attach(void);

/* A function is looked up to be executed, or to be copied into its caller. */
extern void baton_role_caches_function(Oid function);

/*
 * The authenticated user has changed.  In a transaction that has nothing open.
 * After an error the process must end.
 */
extern void baton_role_caches_forget(void);

#endif							/* BATON_ROLE_CACHES_H */
