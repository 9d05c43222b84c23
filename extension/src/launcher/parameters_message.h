/*-------------------------------------------------------------------------
 *
 * parameters_message.h
 *		What the dispatcher is told of the configuration.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAMETERS_MESSAGE_H
#define BATON_PARAMETERS_MESSAGE_H

/* ----------------------------------------------------------------
 *		One port for the server and the pool.
 * ----------------------------------------------------------------
 */

/*
 * Which settings are to be changed where both have one port and cannot share it,
 * palloc'd: two names, each with its file and line.  NULL: the ports differ.
 */
extern char *baton_port_collision(void);

/* ----------------------------------------------------------------
 *		What of the configuration the dispatcher is told.
 * ----------------------------------------------------------------
 */

/*
 * Sends the whole configuration to the dispatcher, as one PARAMETERS message
 * with a new configuration_generation.  False if the dispatcher is gone.
 */
extern bool baton_parameters_send(int channel);

#endif							/* BATON_PARAMETERS_MESSAGE_H */
