/*-------------------------------------------------------------------------
 *
 * log_settings.c
 *		log_connections and log_disconnections, as a new backend has them.
 *
 * The dispatcher logs its clients as the server logs its own, and has from
 * the launcher what these two say.  But a process that runs keeps the values
 * it started with (set_config_option in guc.c ignores a reload of parameters
 * of context superuser-backend, except in the postmaster), and the launcher
 * runs on.  So the postmaster, which reads its files before it tells anybody
 * to (SIGHUP_handler in postmaster.c), notes them in memory that it shares
 * with its children, by the parameters' assign hooks.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "miscadmin.h"
#include "utils/guc_tables.h"

#include "context_guc.h"
#include "log_settings.h"

typedef struct LogSettings
{
	bool		connections;
	bool		disconnections;
} LogSettings;

/* Written by the postmaster alone. */
static LogSettings *settings = NULL;

static GucBoolAssignHook previous_connections = NULL;
static GucBoolAssignHook previous_disconnections = NULL;

static void
assign_connections(bool value, void *extra)
{
	if (!IsUnderPostmaster)
		settings->connections = value;
	if (previous_connections)
		previous_connections(value, extra);
}

static void
assign_disconnections(bool value, void *extra)
{
	if (!IsUnderPostmaster)
		settings->disconnections = value;
	if (previous_disconnections)
		previous_disconnections(value, extra);
}

/* Puts a hook into a parameter's record; its value at this moment. */
static bool
watch(const char *name, GucBoolAssignHook hook, GucBoolAssignHook *previous)
{
	struct config_bool *record = (struct config_bool *) baton_guc_find(name);

	if (record == NULL || record->gen.vartype != PGC_BOOL)
		elog(FATAL, "parameter \"%s\" is not as expected", name);
	*previous = record->assign_hook;
	record->assign_hook = hook;
	return *record->variable;
}

void
baton_log_settings_init(void)
{
	settings = mmap(NULL, sizeof(LogSettings), PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (settings == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map shared memory of pg_baton: %m")));
	settings->connections = watch("log_connections", assign_connections,
								  &previous_connections);
	settings->disconnections = watch("log_disconnections", assign_disconnections,
									 &previous_disconnections);
}

bool
baton_log_connections(void)
{
	return settings->connections;
}

bool
baton_log_disconnections(void)
{
	return settings->disconnections;
}
