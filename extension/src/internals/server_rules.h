/*-------------------------------------------------------------------------
 *
 * server_rules.h
 *		pg_hba.conf and pg_ident.conf, asked of the server's own code.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SERVER_RULES_H
#define BATON_SERVER_RULES_H

#include "libpq/hba.h"
#include "libpq/pqcomm.h"

/* Who wants in; the connection has no GSSAPI encryption. */
typedef struct BatonClient
{
	SockAddr	address;		/* AF_UNIX: a Unix socket */
	bool		is_secure;		/* by TLS */
	const char *user;
	const char *database;
} BatonClient;

/*
 * From _PG_init in the postmaster: what it reads is to outlive the start of the
 * worker with that function.
 */
extern void baton_rules_init(const char *worker_function);

/*
 * In the launcher alone, all below.  Are the postmaster's lines still there?
 * If not, nothing else may be called.
 */
extern bool baton_rules_kept(void);

/* Had the postmaster read a pg_ident.conf? */
extern bool baton_rules_have_maps(void);

/*
 * Reads a file again.  False, and logged, if it has errors or is not there: what
 * was read before, be it by the postmaster, stays in force.
 */
extern bool baton_rules_load_hba(void);
extern bool baton_rules_load_ident(void);

/*
 * The first line that matches, NULL if none does; valid until the next load.
 * host_name is the name of the client's address, looked up both ways; if it is
 * NULL, no line with a host name matches, and no name server is asked.  Within a
 * transaction; reads rows of pg_authid by the catalog caches.
 */
extern const HbaLine *baton_rules_match(const BatonClient *client, const char *host_name);

/* Does that map, or the name if there is none, let the system user be the role? */
extern bool baton_rules_map(const char *map, const char *role, const char *system_user);

/* Do two parses of the files mean the same line by these? */
extern bool baton_rules_same_line(const HbaLine *one, const HbaLine *other);

#endif							/* BATON_SERVER_RULES_H */
