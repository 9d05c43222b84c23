/*-------------------------------------------------------------------------
 *
 * parameters_message.h
 *		The part of the configuration that the dispatcher is told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAMETERS_MESSAGE_H
#define BATON_PARAMETERS_MESSAGE_H

/* ----------------------------------------------------------------
 *		The same port for the server and the pool.
 */

/*
 * The settings to be changed if server and pool have the same port and cannot
 * share it, palloc'd: two names, each with its file and line.  NULL: the ports
 * differ.
 */
extern char *baton_port_collision(void);

/* ----------------------------------------------------------------
 *		The part of the configuration that the dispatcher is told.
 */

/*
 * Sends the whole configuration to the dispatcher, as one PARAMETERS message
 * with a new configuration_generation.  Returns false if the dispatcher is
 * gone.
 */
extern bool baton_parameters_send(int channel);

#endif							/* BATON_PARAMETERS_MESSAGE_H */
