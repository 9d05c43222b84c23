/*-------------------------------------------------------------------------
 *
 * tally.h
 *		What a pooled backend counts of the sessions that it serves.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TALLY_H
#define BATON_TALLY_H

#include "pooled_state.h"

/* At attach, before anything is counted. */
extern void baton_tally_attach(void);

/* A session of this tenant is put in place, after another tenant's. */
extern void baton_tally_begin(uint32 tenant, uint32 serial);

/* An error has been sent to the client: the body of its ErrorResponse. */
extern void baton_tally_error(const char *fields, size_t length);

/* A time of this number of microseconds in a histogram. */
extern void baton_tally_time(uint32 *buckets, int64 us);

static inline void
baton_tally_add(int count, int64 number)
{
	BatonSelf.tally->counts[count] += (uint64) number;
}

/* A session of this tenant is put in place. */
static inline void
baton_tally_of(uint32 tenant, uint32 serial)
{
	if (unlikely(BatonSelf.tally->tenant != tenant + 1 || BatonSelf.tally->serial != serial))
		baton_tally_begin(tenant, serial);
}

/* A message has been sent to the client. */
static inline void
baton_tally_sent(char type, const char *body, size_t length)
{
	baton_tally_add(BATON_COUNT_SENT, 1 + sizeof(uint32) + length);
	if (likely(type == 'D'))
		return;
	if (type == 'C' || type == 's' || type == 'I')
		baton_tally_add(BATON_COUNT_STATEMENTS, 1);
	else if (unlikely(type == 'E'))
		baton_tally_error(body, length);
}

/*
 * The session was put in place at this time of CLOCK_MONOTONIC. The dispatcher
 * gave it at `given_us` (0: unknown). It has waited since `waits_since`; 0: not
 * at all.
 */
extern void baton_tally_taken(bool from_queue, int64 now_us, int64 given_us, int64 waits_since);

/* The client has sent its next request, or its next transaction's first. */
extern void baton_tally_request_begins(int64 now_us);

/* ReadyForQuery with this status has answered the request at this time. */
extern void baton_tally_answered(char status, int64 now_us);

#endif							/* BATON_TALLY_H */
