/*-------------------------------------------------------------------------
 *
 * parameter_checks.h
 *		Which texts our parameters of type string take.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAMETER_CHECKS_H
#define BATON_PARAMETER_CHECKS_H

#include "utils/guc.h"

/* Check hooks, see guc.h: a list of identifiers, of addresses, of log levels. */
extern bool baton_check_names(char **value, void **extra, GucSource source);
extern bool baton_check_dbuser_names(char **value, void **extra, GucSource source);
extern bool baton_check_list(char **value, void **extra, GucSource source);
extern bool baton_check_log(char **value, void **extra, GucSource source);

#endif							/* BATON_PARAMETER_CHECKS_H */
