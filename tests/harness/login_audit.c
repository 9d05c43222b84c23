/*
 * A library as there are for auditing logins: writes each authentication to the log,
 * and refuses those of a role named "banned", whatever they have proved.
 */
#include "postgres.h"

#include "fmgr.h"
#include "libpq/auth.h"
#include "libpq/libpq-be.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static ClientAuthentication_hook_type next = NULL;

static void
audit(Port *port, int status)
{
	if (next)
		next(port, status);
	ereport(LOG,
			(errmsg("audit: %s from %s: %s", port->user_name, port->remote_host,
					status == 0 ? "in" : "out")));
	if (strcmp(port->user_name, "banned") == 0)
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION),
				 errmsg("role \"%s\" is banned", port->user_name)));
}

void
_PG_init(void)
{
	next = ClientAuthentication_hook;
	ClientAuthentication_hook = audit;
}
