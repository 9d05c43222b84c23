/*-------------------------------------------------------------------------
 *
 * pg_hba.h
 *		PostgreSQL's client authentication (hba.c, auth.c): reading, matching
 *		and replacing its rules, and calling hooks without heeding their
 *		refusal.
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
 * valid until baton_auth_file_close.  NULL if the file cannot be opened.
 * Errors are reported at the given level.
 */
extern FILE *baton_auth_file_open(const char *name, List **lines, int level);
extern void baton_auth_file_close(FILE *file);

/* ----------------------------------------------------------------
 *		pg_hba.conf and pg_ident.conf, matched by the server's own code.
 */

/* A client that logs in; its connection has no GSSAPI encryption. */
typedef struct BatonClient
{
	SockAddr	address;		/* AF_UNIX: a Unix socket */
	bool		is_secure;		/* it uses TLS */
	const char *user;
	const char *database;
} BatonClient;

/*
 * Called by _PG_init in the postmaster: keeps the rules that the postmaster
 * reads beyond the start of the worker with that function.
 */
extern void baton_rules_init(const char *worker_function);

/*
 * This function and those below run in the launcher only.  Are the
 * postmaster's lines still there?  If not, no other may be called.
 */
extern bool baton_rules_kept(void);

/* Did the postmaster read a pg_ident.conf? */
extern bool baton_rules_have_maps(void);

/*
 * Reads a file again.  If it has errors or does not exist, logs that and
 * returns false: what the postmaster or this process read before stays in
 * force.
 */
extern bool baton_rules_load_hba(void);
extern bool baton_rules_load_ident(void);

/*
 * The first line that matches, or NULL; valid until the next load. host_name
 * is assumed to be the name of the client's address; if it is NULL, no line
 * with a host name matches.  No name server is asked.  Within a transaction;
 * reads rows of pg_authid by the catalog caches.
 */
extern const HbaLine *baton_rules_match(const BatonClient *client, const char *host_name);

/*
 * Does that map, or equality of the names if there is none, permit the system
 * user to be the role?
 */
extern bool baton_rules_map(const char *map, const char *role, const char *system_user);

/*
 * The line's file and number, and the whole of it, as the server logs them
 * (set_authn_id and auth_failed in auth.c).
 */
extern char *baton_rules_line_place(const HbaLine *line);
extern char *baton_rules_line_detail(const HbaLine *line);

/* Do two parses of the files give the same line? */
extern bool baton_rules_same_line(const HbaLine *one, const HbaLine *other);

/* ----------------------------------------------------------------
 *		The rules for a backend that the dispatcher opens.
 */

/*
 * From now on this process alone uses a pg_hba.conf that admits all clients.
 * Called by a backend after its peer has proved to be the dispatcher, before
 * it authenticates.
 */
extern void baton_trusted_hba_load(void);

/*
 * Does that work?  Checked in the launcher, once, before it loads the file for
 * the first time: until then its rules admit all clients, and must not be
 * used.
 */
extern void baton_trusted_hba_check(void);
extern bool baton_trusted_hba_works(void);

/* ----------------------------------------------------------------
 *		A ClientAuthentication_hook that is called and cannot refuse.
 */

/* Calls the hook; a refusal of the client counts as a return. */
extern void baton_overruled_call(ClientAuthentication_hook_type hook, Port *port, int status);

/*
 * Called by emit_log_hook; does not return if the message is such a refusal.
 */
extern void baton_overruled_log(const ErrorData *edata);

#endif							/* BATON_PG_HBA_H */
