/*-------------------------------------------------------------------------
 *
 * tally.c
 *		What a pooled backend counts of the sessions that it serves: the rows
 *		of pg_baton_stats, and the times of pg_baton_pools.
 *
 * A backend counts in its own tally slot, without locks or atomic
 * instructions, and takes no time that it does not know already, except when
 * a session that has stayed sends its next request. The dispatcher reads the
 * tallies when a view is read. The counts in a tally are those of one tenant:
 * a backend that comes to a session of another adds them to the totals of the
 * tenant first, atomically, because other backends may do so at the same time.
 * docs/design/statistics.md has the reasons.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <string.h>

#include "port/pg_bitutils.h"

#include "dispatcher_link.h"
#include "tally.h"

static const char *const error_classes[] = {
#define BATON_ERROR_CLASS(class) class,
#include "error_classes.inc"
#undef BATON_ERROR_CLASS
};

StaticAssertDecl(BATON_COUNT_ERROR_CLASS + lengthof(error_classes) <= BATON_COUNTS,
				 "each class of errors has a count");

void
baton_tally_attach(void)
{
	BatonSelf.tally = baton_tally_slot(BatonSelf.slot_index);
	memset(BatonSelf.tally, 0, sizeof(*BatonSelf.tally));
}

/*
 * Adds the counts to the totals of their tenant. The dispatcher has counted
 * them itself if the tenant's slot is another tenant's by now.
 */
static void
fold(BatonTallySlot *tally)
{
	BatonTenantSlot *tenant;
	BatonTotalsSlot *totals;

	if (tally->tenant == 0 || tally->tenant > BatonControlMade.pool_slots)
		return;
	tenant = baton_tenant_slot(tally->tenant - 1);
	if (tenant->serial != tally->serial)
		return;
	totals = baton_totals_slot(tally->tenant - 1);
	pg_atomic_fetch_add_u64(baton_atomic_u64(tenant->folds_begun), 1);
	for (int i = 0; i < BATON_COUNTS; i++)
	{
		if (tally->counts[i] == 0)
			continue;
		pg_atomic_fetch_add_u64(baton_atomic_u64(totals->counts[i]), tally->counts[i]);
		tally->counts[i] = 0;
	}
	pg_atomic_fetch_sub_u32(baton_atomic_u32(tenant->tallies), 1);
	pg_atomic_fetch_add_u64(baton_atomic_u64(tenant->folds_ended), 1);
}

void
baton_tally_begin(uint32 tenant, uint32 serial)
{
	BatonTallySlot *tally = BatonSelf.tally;

	fold(tally);
	/* no reader takes what is left there for the next tenant's */
	tally->tenant = 0;
	pg_write_barrier();
	memset(tally->counts, 0, sizeof(tally->counts));
	tally->serial = serial;
	pg_write_barrier();
	tally->tenant = tenant + 1;
	pg_atomic_fetch_add_u32(baton_atomic_u32(BatonServed.tenant->tallies), 1);
}

/*
 * The field of the SQLSTATE ('C') follows the severities
 * (send_message_to_frontend, elog.c, 15 to 18).
 */
void
baton_tally_error(const char *fields, size_t length)
{
	const char *end = fields + length;
	int			class = 0;

	while (fields < end && *fields != '\0' && *fields != 'C')
		fields += strnlen(fields, end - fields) + 1;
	if (end - fields >= 3 && *fields == 'C')
	{
		while (class < (int) lengthof(error_classes) - 1 &&
			   strncmp(error_classes[class], fields + 1, 2) != 0)
			class++;
	}
	else
		class = lengthof(error_classes) - 1;
	baton_tally_add(BATON_COUNT_ERRORS, 1);
	baton_tally_add(BATON_COUNT_ERROR_CLASS + class, 1);
}

/* Histogram::bucket_of() in the dispatcher's histogram.rs computes the same. */
static int
bucket_of(uint64 us)
{
	int			shift;

	if (us < 16)
		return (int) us;
	shift = pg_leftmost_one_pos64(us) - 4;
	return Min(16 * shift + (int) (us >> shift), BATON_BUCKETS - 1);
}

void
baton_tally_time(uint32 *buckets, int64 us)
{
	buckets[bucket_of((uint64) Max(us, 0))]++;
}

/* Other processes have written `since`; 0: unknown. */
static inline int64
passed(int64 since, int64 now_us)
{
	return since > 0 && since < now_us ? now_us - since : 0;
}

void
baton_tally_taken(bool from_queue, int64 now_us, int64 given_us, int64 waits_since)
{
	int64		waited_us = passed(given_us, now_us);

	baton_tally_add(from_queue ? BATON_COUNT_QUEUED : BATON_COUNT_DIRECT, 1);
	baton_tally_add(BATON_COUNT_HAND_OVER_TIME, waited_us);
	if (waits_since != 0)
	{
		waited_us = passed(waits_since, now_us);
		baton_tally_add(BATON_COUNT_WAITS, 1);
		baton_tally_add(BATON_COUNT_WAIT_TIME, waited_us);
	}
	baton_tally_time(BatonSelf.tally->waits, waited_us);
	baton_tally_request_begins(now_us);
}

void
baton_tally_request_begins(int64 now_us)
{
	BatonServed.request_since_us = now_us;
	if (BatonServed.transaction_since_us == 0)
		BatonServed.transaction_since_us = now_us;
}

void
baton_tally_answered(char status, int64 now_us)
{
	int64		us;

	baton_tally_add(BATON_COUNT_REQUESTS, 1);
	if (likely(BatonServed.request_since_us != 0))
	{
		us = now_us - BatonServed.request_since_us;
		baton_tally_add(BATON_COUNT_REQUEST_TIME, us);
		BatonServed.request_since_us = 0;
	}
	if (status != 'I')
		return;
	baton_tally_add(BATON_COUNT_TRANSACTIONS, 1);
	if (likely(BatonServed.transaction_since_us != 0))
	{
		us = now_us - BatonServed.transaction_since_us;
		baton_tally_add(BATON_COUNT_TRANSACTION_TIME, us);
		baton_tally_time(BatonSelf.tally->transactions, us);
		BatonServed.transaction_since_us = 0;
	}
}
