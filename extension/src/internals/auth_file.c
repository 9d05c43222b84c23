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

FILE *
baton_auth_file_open(const char *name, List **lines)
{
	FILE	   *file;

	*lines = NIL;
#if PG_VERSION_NUM >= 160000
	file = open_auth_file(name, LOG, 0, NULL);
	if (file != NULL)
		tokenize_auth_file(name, file, lines, LOG, 0);
#else
	file = AllocateFile(name, "r");
	if (file == NULL)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not open configuration file \"%s\": %m", name)));
	else
		(void) tokenize_auth_file(name, file, lines, LOG);
#endif
	return file;
}

void
baton_auth_file_close(FILE *file)
{
	if (file == NULL)
		return;
#if PG_VERSION_NUM >= 160000
	free_auth_file(file, 0);	/* and the lines with it */
#else
	FreeFile(file);
#endif
}
