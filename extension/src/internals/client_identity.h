/*-------------------------------------------------------------------------
 *
 * client_identity.h
 *		How a client has proved itself, and as whom: what SYSTEM_USER says (16).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CLIENT_IDENTITY_H
#define BATON_CLIENT_IDENTITY_H

/* Is there anything to be known?  Not in 15. */
extern bool baton_client_identities(void);

/*
 * As whom this backend has authenticated its client, and how: NULL if it did not
 * have to.
 */
extern const char *baton_client_identity(const char **method);

/*
 * What parallel workers of this backend shall say from now on: method:identity,
 * which stays where it is until the next call; or NULL.
 */
extern void baton_client_identity_put(const char *system_user);

#endif							/* BATON_CLIENT_IDENTITY_H */
