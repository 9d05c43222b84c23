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
baton_auth_file_open(const char *name, List **lines, int level)
{
	FILE	   *file;

	*lines = NIL;
#if PG_VERSION_NUM >= 160000
	file = open_auth_file(name, level, 0, NULL);
	if (file != NULL)
		tokenize_auth_file(name, file, lines, level, 0);
#else
	file = AllocateFile(name, "r");
	if (file == NULL)
		ereport(level,
				(errcode_for_file_access(),
				 errmsg("could not open configuration file \"%s\": %m", name)));
	else
		(void) tokenize_auth_file(name, file, lines, level);
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
