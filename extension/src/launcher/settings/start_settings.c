/*-------------------------------------------------------------------------
 *
 * start_settings.c
 *		What backends take from the configuration only when they start.
 *
 * A client that connects after a reload expects the new values of all
 * parameters.  For most a pooled backend has them, for it reloads like any
 * other.  But
 *	- parameters of context backend and superuser-backend are taken over by
 *	  the postmaster only, for those to come (set_config_option in guc.c);
 *	- libraries that are to be preloaded into a session are loaded once
 *	  (process_session_preload_libraries in miscinit.c);
 *	- temp_buffers is the process's once it has local buffers (context_guc.c);
 *	- client_encoding is not changed in a running backend outside a
 *	  transaction (check_client_encoding in variable.c).
 * When the files give another value of one of these, the dispatcher is told,
 * and new clients are served by backends that are started from then on.
 *
 * The launcher's own values would not do: it is a running process as well.  So
 * the files are parsed once more, as ProcessConfigFileInternal does, the last
 * mention of a name winning.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "context_guc.h"
#include "start_settings.h"

bool
baton_counts_at_start(const struct config_generic *record)
{
	return record->context == PGC_BACKEND || record->context == PGC_SU_BACKEND ||
		baton_guc_is_of_process(record) ||
		strcmp(record->name, "session_preload_libraries") == 0 ||
		strcmp(record->name, "local_preload_libraries") == 0;
}

char *
baton_start_settings(void)
{
	ConfigVariable *head = NULL;
	ConfigVariable *tail = NULL;
	StringInfoData text;

	initStringInfo(&text);

	/* what is wrong with the files has been logged by the postmaster */
	(void) ParseConfigFile(ConfigFileName, true, NULL, 0, 0, DEBUG2, &head, &tail);
	(void) ParseConfigFile(PG_AUTOCONF_FILENAME, false, NULL, 0, 0, DEBUG2, &head, &tail);

	for (const ConfigVariable *item = head; item != NULL; item = item->next)
	{
		const struct config_generic *record;
		bool		is_last = true;

		if (item->name == NULL || item->value == NULL)
			continue;
		record = baton_guc_find(item->name);
		if (record == NULL ||
			!(baton_counts_at_start(record) || strcmp(record->name, "client_encoding") == 0))
			continue;
		for (const ConfigVariable *later = item->next; later != NULL && is_last; later = later->next)
			is_last = later->name == NULL || baton_guc_compare_names(later->name, item->name) != 0;
		if (is_last)
			appendStringInfo(&text, "%s=%s\n", item->name, item->value);
	}
	FreeConfigVariables(head);
	return text.data;
}
