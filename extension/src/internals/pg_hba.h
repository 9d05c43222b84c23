/*-------------------------------------------------------------------------
 *
 * pg_hba.h
 *		PostgreSQL's client authentication (hba.c, auth.c): its rules read, asked
 *		and replaced, and hooks whose refusal does not count.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_HBA_H
#define BATON_PG_HBA_H

#include "libpq/auth.h"
#include "libpq/hba.h"
#include "libpq/pqcomm.h"
#include "nodes/pg_list.h"

/* ----------------------------------------------------------------
 *		Reading pg_hba.conf and pg_ident.conf.
 * ----------------------------------------------------------------
 */

/*
 * The file's lines as tokens (TokenizedAuthLine *), in the current context,
 * until baton_auth_file_close.  NULL if it cannot be opened.  What is wrong is
 * reported at that level.
 */
extern FILE *baton_auth_file_open(const char *name, List **lines, int level);
extern void baton_auth_file_close(FILE *file);

/* ----------------------------------------------------------------
 *		pg_hba.conf and pg_ident.conf, asked of the server's own code.
 * ----------------------------------------------------------------
 */

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
 * host_name is taken to be the name of the client's address; if it is NULL, no line
 * with a host name matches.  No name server is asked.  Within a
 * transaction; reads rows of pg_authid by the catalog caches.
 */
extern const HbaLine *baton_rules_match(const BatonClient *client, const char *host_name);

/* Does that map, or the name if there is none, let the system user be the role? */
extern bool baton_rules_map(const char *map, const char *role, const char *system_user);

/* Do two parses of the files mean the same line by these? */
extern bool baton_rules_same_line(const HbaLine *one, const HbaLine *other);

/* ----------------------------------------------------------------
 *		The rules by which a backend that the dispatcher opens is let in.
 * ----------------------------------------------------------------
 */

/*
 * From here on this process, and no other, goes by a pg_hba.conf that lets
 * everybody in: to be called by a backend whose peer has shown that it is the
 * dispatcher, before it authenticates.
 */
extern void baton_trusted_hba_load(void);

/*
 * Does that work?  Checked in the launcher, once, before it loads the file for the
 * first time: until then its rules let everybody in, and must not be asked.
 */
extern void baton_trusted_hba_check(void);
extern bool baton_trusted_hba_works(void);

/* ----------------------------------------------------------------
 *		A ClientAuthentication_hook that is told and cannot refuse.
 * ----------------------------------------------------------------
 */

/* Calls it; if it refuses the client, that is as if it had returned. */
extern void baton_overruled_call(ClientAuthentication_hook_type hook, Port *port, int status);

/* From emit_log_hook; does not return if the message is such a refusal. */
extern void baton_overruled_log(const ErrorData *edata);

#endif							/* BATON_PG_HBA_H */
