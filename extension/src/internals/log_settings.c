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

#if PG_VERSION_NUM >= 180000
#include "tcop/backend_startup.h"
#endif

#include "guc_table.h"
#include "log_settings.h"

typedef struct LogSettings
{
	bool		receipt;
	bool		authentication;
	bool		authorization;
	bool		disconnections;
} LogSettings;

/* Written by the postmaster alone. */
static LogSettings *settings = NULL;

static GucBoolAssignHook previous_disconnections = NULL;

static void
assign_disconnections(bool value, void *extra)
{
	if (!IsUnderPostmaster)
		settings->disconnections = value;
	if (previous_disconnections)
		previous_disconnections(value, extra);
}

/* Puts a hook into a boolean parameter's record; its value at this moment. */
static bool
watch_bool(const char *name, GucBoolAssignHook hook, GucBoolAssignHook *previous)
{
	struct config_bool *record = (struct config_bool *) baton_guc_find(name);

	if (record == NULL || record->gen.vartype != PGC_BOOL)
	{
		ereport(LOG,
				(errmsg("pg_baton does not follow \"%s\": it is not as expected", name)));
		return false;
	}
	*previous = record->assign_hook;
	record->assign_hook = hook;
	return *record->variable;
}

#if PG_VERSION_NUM >= 180000

static GucStringAssignHook previous_connections = NULL;

/* The server's hook has just made a number of the text. */
static void
note_connections(void)
{
	settings->receipt = (log_connections & LOG_CONNECTION_RECEIPT) != 0;
	settings->authentication = (log_connections & LOG_CONNECTION_AUTHENTICATION) != 0;
	settings->authorization = (log_connections & LOG_CONNECTION_AUTHORIZATION) != 0;
}

static void
assign_connections(const char *value, void *extra)
{
	previous_connections(value, extra);
	if (!IsUnderPostmaster)
		note_connections();
}

static void
watch_connections(void)
{
	struct config_string *record = (struct config_string *) baton_guc_find("log_connections");

	if (record == NULL || record->gen.vartype != PGC_STRING || record->assign_hook == NULL)
	{
		ereport(LOG,
				(errmsg("pg_baton does not follow \"%s\": it is not as expected",
						"log_connections")));
		return;
	}
	previous_connections = record->assign_hook;
	record->assign_hook = assign_connections;
	note_connections();
}

#else

static GucBoolAssignHook previous_connections = NULL;

static void
note_connections(bool value)
{
	settings->receipt = settings->authentication = settings->authorization = value;
}

static void
assign_connections(bool value, void *extra)
{
	if (!IsUnderPostmaster)
		note_connections(value);
	if (previous_connections)
		previous_connections(value, extra);
}

static void
watch_connections(void)
{
	note_connections(watch_bool("log_connections", assign_connections, &previous_connections));
}

#endif

void
baton_log_settings_init(void)
{
	settings = mmap(NULL, sizeof(LogSettings), PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (settings == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map shared memory of pg_baton: %m")));
	watch_connections();
	settings->disconnections = watch_bool("log_disconnections", assign_disconnections,
										  &previous_disconnections);
}

bool
baton_log_receipt(void)
{
	return settings->receipt;
}

bool
baton_log_authentication(void)
{
	return settings->authentication;
}

bool
baton_log_authorization(void)
{
	return settings->authorization;
}

bool
baton_log_disconnections(void)
{
	return settings->disconnections;
}
