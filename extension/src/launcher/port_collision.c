/*-------------------------------------------------------------------------
 *
 * port_collision.c
 *		One port for the server and the pool.
 *
 * They can share its number where they listen at different addresses and there
 * are no Unix sockets, whose names hold nothing but the port.  Elsewhere the
 * dispatcher cannot listen, and it and the launcher say which lines to change.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "postmaster/postmaster.h"

#include "guc_table.h"
#include "parameters.h"
#include "port_collision.h"

/* The file and line that set a parameter, or by what else it has its value. */
static char *
place_of(const char *name)
{
	const struct config_generic *record = baton_guc_find(name);

	if (record == NULL)
		return pstrdup(name);
	if (record->sourcefile != NULL)
		return psprintf("\"%s\" (%s line %d)", name, record->sourcefile, record->sourceline);
	return psprintf("\"%s\" (%s)", name, GucSource_Names[record->source]);
}

char *
baton_port_collision(void)
{
	if (baton_port != PostPortNumber)
		return NULL;
	return psprintf("%s or %s", place_of("port"), place_of("pg_baton.port"));
}
