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

/* In the launcher, once, before it is first asked. */
extern void baton_hba_init(void);

/*
 * (Re)reads pg_hba.conf and pg_ident.conf.  A file with errors is reported to
 * the log and leaves what was read before in force, as the postmaster does.
 */
extern void baton_hba_load(void);

/*
 * May the rules be asked about that client, whose role can be read, if there is
 * one?  If not, nobody but a backend can say.  After baton_roles_hold(), and good
 * as long as that.
 */
extern bool baton_hba_can_answer(const BatonClient *client);

/*
 * The first line that matches, NULL if none does.  Valid until the next load.
 * Within a transaction, if baton_hba_can_answer().  *by_host_name is set if a line
 * before it matches should the client's address have a certain name: only a backend
 * can say.  *by_network is set if this machine's interfaces had a say: they change
 * unnoticed.  *by_groups is set if memberships may have had one.
 */
extern const HbaLine *baton_hba_match(const BatonClient *client, bool *by_host_name,
									  bool *by_network, bool *by_groups);

/*
 * Is there a line that only a client with GSSAPI encryption can come in by, or that
 * refuses all others?  Of lines that could not be read nothing is known.
 */
extern bool baton_hba_wants_gss(void);

#endif							/* BATON_HBA_MATCH_H */
