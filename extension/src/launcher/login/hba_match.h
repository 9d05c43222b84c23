/*-------------------------------------------------------------------------
 *
 * hba_match.h
 *		Which line of pg_hba.conf a client of the pool's port matches, host names
 *		included.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HBA_MATCH_H
#define BATON_HBA_MATCH_H

#include "libpq/pqcomm.h"

#include "pg_hba.h"

/* ----------------------------------------------------------------
 *		Which line of pg_hba.conf a client of the pool's port matches.
 * ----------------------------------------------------------------
 */

/* Called in the launcher, once, before the first match. */
extern void baton_hba_init(void);

/*
 * (Re)reads pg_hba.conf and pg_ident.conf.  Errors in a file are logged, and
 * leave what was read before in force, as in the postmaster.
 */
extern void baton_hba_load(void);

/*
 * Can the rules be matched for that client?  If not, only a backend can
 * decide.  The client's role, if it exists, must be readable.  Called after
 * baton_roles_hold(), and valid as long as its locks are held.
 */
extern bool baton_hba_can_answer(const BatonClient *client);

/*
 * The first line that matches, or NULL.  Valid until the next load.  Within a
 * transaction, if baton_hba_can_answer(). *by_host_name is set if a line
 * before it matches should the client's address have a certain name: then only
 * a backend can decide. *by_network is set if the result depends on this
 * machine's interfaces, which change without notice. *by_groups is set if it
 * may depend on memberships.
 */
extern const HbaLine *baton_hba_match(const BatonClient *client, bool *by_host_name,
									  bool *by_network, bool *by_groups);

/*
 * Is there a line that only a client with GSSAPI encryption can match and be
 * admitted by, or that refuses all others?  Lines that could not be read are
 * ignored.
 */
extern bool baton_hba_wants_gss(void);

#endif							/* BATON_HBA_MATCH_H */
