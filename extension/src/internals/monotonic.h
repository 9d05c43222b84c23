/*-------------------------------------------------------------------------
 *
 * monotonic.h
 *		The time for intervals and deadlines of ours.
 *
 * GetCurrentTimestamp() is the wall's: it may be set back or forward, and what waits
 * for it then waits for hours, or not at all.  It is for what is shown, and for
 * VALID UNTIL; tools/check-clocks has the list.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef MONOTONIC_H
#define MONOTONIC_H

#include <time.h>

/* Microseconds since some moment before the server started. */
static inline int64
baton_monotonic_us(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Until then, rounded up; 0 if it is past. */
static inline long
baton_ms_until(int64 deadline_us)
{
	int64		left_us = deadline_us - baton_monotonic_us();

	return left_us <= 0 ? 0 : (long) ((left_us + 999) / 1000);
}

#endif							/* MONOTONIC_H */
