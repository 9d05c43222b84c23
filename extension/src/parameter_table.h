/*-------------------------------------------------------------------------
 *
 * parameter_table.h
 *		The parameters pg_baton.*: their definition.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAMETER_TABLE_H
#define BATON_PARAMETER_TABLE_H

/*
 * Defines all parameters.  Called from _PG_init, and only while the server
 * preloads libraries: parameters that need a restart cannot be defined later
 * (init_custom_variable in guc.c makes that FATAL).
 */
extern void baton_parameters_define(void);

#endif							/* BATON_PARAMETER_TABLE_H */
