/*-------------------------------------------------------------------------
 *
 * taint_parameters.c
 *		Parameters whose change dedicates a backend, because an administrator
 *		says so: pg_baton.dedicating_parameters.
 *
 * All parameters go with their session.  But an assign hook may do more than
 * assign, and what else it has done stays in the process.  So who has set one of
 * these, by SET, set_config() or a startup option, keeps the backend from the end
 * of that transaction on, and the backend exits with the session, whatever becomes
 * of the value.  What does not outlast its transaction (SET LOCAL, a function's SET
 * clause) does not count.
 *
 * temp_buffers, which is the process's (baton_guc_is_of_process), is on the list
 * always: not for a startup option, which the backend began with as its pool's
 * sessions all do, but for who SETs it and would go on elsewhere; and for a SET
 * LOCAL that counted for the buffers, which nobody may come after.  So where a
 * session comes, there are no local buffers yet, or as many as temp_buffers says.
 *
 * Records are looked up by name each time: a placeholder's is another one once
 * its library has been loaded (define_custom_variable in guc.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "utils/guc_tables.h"
#include "utils/varlena.h"

#include "guc_table.h"
#include "parsed_list.h"
#include "taint_parameters.h"

char	   *baton_dedicating_parameters = NULL;

static bool
is_own(const struct config_generic *record)
{
	return record->source == PGC_S_SESSION || record->source == PGC_S_CLIENT;
}

static bool
temp_buffers_part(void)
{
	/* the server's own: it stays where it is */
	static const struct config_generic *temp_buffers = NULL;

	if (unlikely(temp_buffers == NULL))
		temp_buffers = baton_guc_find("temp_buffers");
	return temp_buffers->source == PGC_S_SESSION ||
		(NLocBuffer != 0 && NLocBuffer != num_temp_buffers);
}

bool
baton_dedicating_parameter_is_set(void)
{
	static BatonParsedList dedicating = {.split = SplitIdentifierString};
	ListCell   *cell;

	if (unlikely(temp_buffers_part()))
		return true;
	if (likely(baton_dedicating_parameters[0] == '\0'))
		return false;
	foreach(cell, baton_parsed_list(&dedicating, baton_dedicating_parameters))
	{
		const struct config_generic *record = baton_guc_find(lfirst(cell));

		if (record != NULL && is_own(record))
			return true;
	}
	return false;
}
