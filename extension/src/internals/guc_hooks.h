/*-------------------------------------------------------------------------
 *
 * guc_hooks.h
 *		Assign and show hooks of the server's parameters, replaced by ours.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_GUC_HOOKS_H
#define BATON_GUC_HOOKS_H

#include "utils/guc.h"

/*
 * Each puts a hook into the record of the parameter of that name and tells
 * what stood there, which ours must call.  False, and nothing is done, if there
 * is no parameter of that type, or none with such a hook.
 */
extern bool baton_guc_hook_real(const char *name, GucRealAssignHook assign,
								GucRealAssignHook *server_assign);
extern bool baton_guc_hook_enum(const char *name, GucEnumAssignHook assign,
								GucEnumAssignHook *server_assign);
extern bool baton_guc_hook_int(const char *name, GucIntAssignHook assign, GucShowHook show,
							   GucIntAssignHook *server_assign, GucShowHook *server_show);

#endif							/* BATON_GUC_HOOKS_H */
