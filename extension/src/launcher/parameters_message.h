/*-------------------------------------------------------------------------
 *
 * parameters_message.h
 *		What of the configuration the dispatcher is told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAMETERS_MESSAGE_H
#define BATON_PARAMETERS_MESSAGE_H

/*
 * Sends the whole configuration to the dispatcher, as one PARAMETERS message
 * with a new configuration_generation.  False if the dispatcher is gone.
 */
extern bool baton_parameters_send(int channel);

#endif							/* BATON_PARAMETERS_MESSAGE_H */
