/*-------------------------------------------------------------------------
 *
 * hba_match.h
 *		Which line of pg_hba.conf a client of the pool's port matches.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_HBA_MATCH_H
#define BATON_HBA_MATCH_H

#include "libpq/hba.h"
#include "libpq/pqcomm.h"

/* Who wants in; the connection has no GSSAPI encryption. */
typedef struct BatonClient
{
	SockAddr	address;		/* AF_UNIX: a Unix socket */
	bool		is_secure;		/* by TLS */
	const char *user;
	const char *database;
	Oid			role;			/* InvalidOid if there is no such role */
} BatonClient;

/*
 * (Re)reads pg_hba.conf.  A file with errors is reported to the log and
 * leaves what was read before in force, as the postmaster does.
 */
extern void baton_hba_load(void);

/* False if no file without errors has been read yet. */
extern bool baton_hba_loaded(void);

/*
 * The first line that matches, NULL if none does.  Valid until the next load.
 * Within a transaction.  May block while a name server is asked, if lines
 * with host names are reached (hba_host.c).  *by_network is set if name
 * servers or this machine's interfaces had a say: they change unnoticed.
 */
extern HbaLine *baton_hba_match(const BatonClient *client, bool *by_network);

#endif							/* BATON_HBA_MATCH_H */
