/*-------------------------------------------------------------------------
 *
 * signal_barrier.c
 *		Barriers that a starting process has missed.
 *
 * Problem: whoever emits a barrier (DROP DATABASE does) signals all processes
 * and waits until each has absorbed it (procsignal.c).  A process that is just
 * entering itself there can miss the signal and be waited for all the same, for
 * ever: up to 15.18 and 16 ProcSignalInit() notes the generation before its
 * pid is seen; in later minor releases of 15 and 17, and in 18, the pid comes first, but
 * procsignal_sigusr1_handler() does nothing before MyProcSignalSlot is set, a
 * few instructions after the generation was noted.  A server without a pool
 * starts few backends beside DROP DATABASE; a pool that has just lost its
 * backends of that database starts them all the time.
 *
 * What PostgreSQL guarantees: ProcessProcSignalBarrier() compares the process's
 * generation with the server's, whoever has called it, and does nothing if they
 * are the same.  With a generation behind, but no flag set, it has only missed
 * that others change what it has not looked at yet: it notes the generation and
 * wakes who waits.  baton_barrier_attach() checks that the call is all that it
 * takes: with nothing missed it ends, and nothing is pending after it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/procsignal.h"

#include "signal_barrier.h"

/* One that is emitted just then is pending as well; not each time. */
#define TRIES 10

void
baton_barrier_catch_up(void)
{
	ProcSignalBarrierPending = true;
	ProcessProcSignalBarrier();
}

const char *
baton_barrier_attach(void)
{
	for (int i = 0; i < TRIES; i++)
	{
		baton_barrier_catch_up();
		if (!ProcSignalBarrierPending)
			return NULL;
	}
	return "barriers between processes cannot be caught up with";
}
