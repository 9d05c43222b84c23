/*-------------------------------------------------------------------------
 *
 * sound_timestamp.h
 *		A time that another process has written.
 *
 * See sound_timestamp.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SOUND_TIMESTAMP_H
#define BATON_SOUND_TIMESTAMP_H

#include "datatype/timestamp.h"

/* The time that stands there; 0 if it is none that the server can show. */
extern TimestampTz baton_sound_timestamp(int64 timestamp);

#endif							/* BATON_SOUND_TIMESTAMP_H */
