/*-------------------------------------------------------------------------
 *
 * taint_parameters.h
 *		Parameters whose change dedicates a backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_PARAMETERS_H
#define BATON_TAINT_PARAMETERS_H

/* pg_baton.dedicating_parameters */
extern char *baton_dedicating_parameters;

/* Has the session in place, or its client at login, set any of them? */
extern bool baton_dedicating_parameter_is_set(void);

#endif							/* BATON_TAINT_PARAMETERS_H */
