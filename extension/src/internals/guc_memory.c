/*-------------------------------------------------------------------------
 *
 * guc_memory.c
 *		The memory that guc.c keeps values in.
 *
 * guc.c frees strings, extras and last_reported with free() up to 15; from 16
 * on all of that lives in GUCMemoryContext.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "guc_memory.h"

char *
baton_guc_strdup(const char *string)
{
#if PG_VERSION_NUM >= 160000
	return guc_strdup(ERROR, string);
#else
	char	   *copy = strdup(string);

	if (copy == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	return copy;
#endif
}

void
baton_guc_free(void *pointer)
{
#if PG_VERSION_NUM >= 160000
	guc_free(pointer);
#else
	free(pointer);
#endif
}
