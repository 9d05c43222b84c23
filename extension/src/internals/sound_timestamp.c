/*-------------------------------------------------------------------------
 *
 * sound_timestamp.c
 *		A time that another process has written.
 *
 * Any process of the server can write into what is shared.  A time out of range
 * (IS_VALID_TIMESTAMP, datatype/timestamp.h; infinity is, too) is an error only when
 * it is shown: timestamp2tm and its callers (timestamp.c) raise 22008, and a view of
 * all sessions would fail for one of them.  So it is taken for none, and that is 0
 * in all memory that is shared.
 *
 * No inline function: the caller has read the word once, and what was checked is
 * what is used.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "sound_timestamp.h"

TimestampTz
baton_sound_timestamp(int64 timestamp)
{
	return IS_VALID_TIMESTAMP(timestamp) ? timestamp : 0;
}
