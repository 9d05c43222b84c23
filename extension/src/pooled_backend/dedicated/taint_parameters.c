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
 * Records are looked up by name each time: a placeholder's is another one once
 * its library has been loaded (define_custom_variable in guc.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc_tables.h"
#include "utils/varlena.h"

#include "guc_table.h"
#include "parsed_list.h"
#include "taint_parameters.h"

char	   *baton_dedicating_parameters = NULL;

bool
baton_dedicating_parameter_is_set(void)
{
	static BatonParsedList dedicating = {.split = SplitIdentifierString};
	ListCell   *cell;

	if (likely(baton_dedicating_parameters[0] == '\0'))
		return false;
	foreach(cell, baton_parsed_list(&dedicating, baton_dedicating_parameters))
	{
		const struct config_generic *record = baton_guc_find(lfirst(cell));

		if (record != NULL &&
			(record->source == PGC_S_SESSION || record->source == PGC_S_CLIENT))
			return true;
	}
	return false;
}
