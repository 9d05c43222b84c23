/*
 * A library as there are for auditing logins: writes each authentication to the log,
 * and refuses those of the role in login_audit.banned, whatever they have proved.
 */
#include "postgres.h"

#include "fmgr.h"
#include "libpq/auth.h"
#include "libpq/libpq-be.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static ClientAuthentication_hook_type next = NULL;
static char *banned = NULL;

static void
audit(Port *port, int status)
{
	if (next)
		next(port, status);
	ereport(LOG,
			(errmsg("audit: %s from %s: %s", port->user_name, port->remote_host,
					status == 0 ? "in" : "out")));
	if (strcmp(port->user_name, banned) == 0)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
				 errmsg("role \"%s\" is banned", port->user_name)));
}

void
_PG_init(void)
{
	DefineCustomStringVariable("login_audit.banned", "Who is not let in.", NULL, &banned, "banned",
							   PGC_SIGHUP, 0, NULL, NULL, NULL);
	next = ClientAuthentication_hook;
	ClientAuthentication_hook = audit;
}
