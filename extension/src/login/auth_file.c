/*-------------------------------------------------------------------------
 *
 * auth_file.c
 *		Reading pg_hba.conf and pg_ident.conf.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/hba.h"
#include "storage/fd.h"

#include "auth_file.h"

bool
baton_auth_file_read(const char *name, List **lines)
{
	FILE	   *file;

	*lines = NIL;
#if PG_VERSION_NUM >= 160000
	file = open_auth_file(name, LOG, 0, NULL);
	if (file == NULL)
		return false;
	tokenize_auth_file(name, file, lines, LOG, 0);
	free_auth_file(file, 0);
#else
	file = AllocateFile(name, "r");
	if (file == NULL)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not open configuration file \"%s\": %m", name)));
		return false;
	}
	(void) tokenize_auth_file(name, file, lines, LOG);
	FreeFile(file);
#endif
	return true;
}
