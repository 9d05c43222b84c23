/*-------------------------------------------------------------------------
 *
 * client_identity.c
 *		How a client has proved itself, and as whom: what SYSTEM_USER says (16).
 *
 * What PostgreSQL guarantees, 16 to 18: set_authn_id() (auth.c) writes
 * MyClientConnectionInfo, once, when a client has proved itself.  InitPostgres()
 * (postinit.c) makes of it what system_user() gives, in a variable of
 * miscinit.c's that is written once (InitializeSystemUser), which is why
 * system_user.c has that function be ours.  A parallel worker has the struct from
 * its leader (SerializeClientConnectionInfo, as the workers are begun), and makes
 * its own variable of it (ParallelWorkerMain).  Nothing else reads it once a
 * backend has started, and nobody frees authn_id.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/hba.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"

#include "client_identity.h"

#if PG_VERSION_NUM >= 160000

bool
baton_client_identities(void)
{
	return true;
}

const char *
baton_client_identity(const char **method)
{
	*method = hba_authname(MyClientConnectionInfo.auth_method);
	return MyClientConnectionInfo.authn_id;
}

void
baton_client_identity_put(const char *system_user)
{
	const char *colon = system_user != NULL ? strchr(system_user, ':') : NULL;

	MyClientConnectionInfo.authn_id = NULL;
	if (colon == NULL)
		return;
	for (int i = 0; i <= (int) USER_AUTH_LAST; i++)
	{
		const char *method = hba_authname((UserAuth) i);
		size_t		length = colon - system_user;

		if (strlen(method) == length && strncmp(method, system_user, length) == 0)
		{
			MyClientConnectionInfo.auth_method = (UserAuth) i;
			MyClientConnectionInfo.authn_id = colon + 1;
		}
	}
}

#else

bool
baton_client_identities(void)
{
	return false;
}

const char *
baton_client_identity(const char **method)
{
	*method = "";
	return NULL;
}

void
baton_client_identity_put(const char *system_user)
{
}

#endif
