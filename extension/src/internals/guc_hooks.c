/*-------------------------------------------------------------------------
 *
 * guc_hooks.c
 *		Assign and show hooks of the server's parameters, replaced by ours.
 *
 * A parameter's record has them since it was made (guc_tables.c; guc.c in 15),
 * and guc.c calls them through the record each time (set_config_with_handle,
 * AtEOXact_GUC, ShowGUCOption; 15 to 18).  A record that is built in is never
 * replaced, so what is put there stays.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc_tables.h"

#include "guc_hooks.h"
#include "guc_table.h"

static struct config_generic *
find(const char *name, enum config_type type)
{
	struct config_generic *record = baton_guc_find(name);

	return record != NULL && record->vartype == type ? record : NULL;
}

bool
baton_guc_hook_real(const char *name, GucRealAssignHook assign,
					GucRealAssignHook *server_assign)
{
	struct config_real *record = (struct config_real *) find(name, PGC_REAL);

	if (record == NULL || record->assign_hook == NULL)
		return false;
	*server_assign = record->assign_hook;
	record->assign_hook = assign;
	return true;
}

bool
baton_guc_hook_enum(const char *name, GucEnumAssignHook assign,
					GucEnumAssignHook *server_assign)
{
	struct config_enum *record = (struct config_enum *) find(name, PGC_ENUM);

	if (record == NULL || record->assign_hook == NULL)
		return false;
	*server_assign = record->assign_hook;
	record->assign_hook = assign;
	return true;
}

bool
baton_guc_hook_int(const char *name, GucIntAssignHook assign, GucShowHook show,
				   GucIntAssignHook *server_assign, GucShowHook *server_show)
{
	struct config_int *record = (struct config_int *) find(name, PGC_INT);

	if (record == NULL || record->assign_hook == NULL || record->show_hook == NULL)
		return false;
	*server_assign = record->assign_hook;
	*server_show = record->show_hook;
	record->assign_hook = assign;
	record->show_hook = show;
	return true;
}
