/*-------------------------------------------------------------------------
 *
 * batch_scheduling.c
 *		Whether a pooled backend that is woken may interrupt who is at work.
 *
 * Where there are more backends than processors, who wakes a backend (a
 * client, a TLS relay, the dispatcher) has more to do, as a rule, and is
 * itself woken again a moment later.  The kernel may let the woken one
 * interrupt it, and that costs more than the work that is left.  A process
 * with the policy SCHED_BATCH (sched(7)) interrupts nobody: it runs when the
 * other one sleeps, which is some ten microseconds later.
 *
 * But where others compute for milliseconds, and there is no idle processor, it
 * would wait for these each time.  So the backend looks now and then for how
 * long it has waited for a processor whenever it was to run: the kernel keeps
 * that in /proc/self/schedstat (time run and time waited, nanoseconds; times
 * run).  If that was too long it has the usual policy again, for a second, and
 * each time for twice as long.  One that is seldom woken has it, too: it has
 * nothing to gain.
 *
 * A policy that is neither of the two was set by somebody who knew why, and
 * stays; so does the usual one where the kernel does not tell times, or refuses.
 * The nice value is not touched.
 *
 * Threads of the dispatcher do the same (batch_scheduling.rs).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "utils/timestamp.h"

#include "batch_scheduling.h"
#include "parameters.h"

/* Times woken between two looks, and until the first one with the other policy */
#define WAKES_A_LOOK 64
#define WAKES_A_TRY 16

/* That many in so long are often. */
#define OFTEN_US INT64CONST(1000000)

/* It is not tried again for so long, doubled each time. */
#define PAUSE_LEAST_US INT64CONST(1000000)
#define PAUSE_MOST_US INT64CONST(64000000)

typedef struct
{
	int			wakes_left;
	bool		is_batch;
	/* It cannot be done, or is not ours to do. */
	bool		is_refused;
	/* As of the last look. */
	TimestampTz looked_at;
	int64		waited_ns;
	int64		times_run;
	TimestampTz tried_at;
	TimestampTz not_before;
	int64		pause_us;
} Scheduling;

static Scheduling scheduling = {
	.wakes_left = WAKES_A_LOOK,
	.pause_us = PAUSE_LEAST_US,
};

/* How long this process has waited for a processor so far, and how often it has got one. */
static bool
read_times(int64 *waited_ns, int64 *times_run)
{
	char		line[128];
	ssize_t		length;
	long long	waited;
	long long	times;
	int			fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	length = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (length <= 0)
		return false;
	line[length] = '\0';
	if (sscanf(line, "%*d %lld %lld", &waited, &times) != 2)
		return false;
	*waited_ns = waited;
	*times_run = times;
	return true;
}

static void
set_policy(bool batch)
{
	struct sched_param no_priority = {0};

	scheduling.is_batch = batch;
	if (sched_getscheduler(0) != (batch ? SCHED_OTHER : SCHED_BATCH) ||
		sched_setscheduler(0, batch ? SCHED_BATCH : SCHED_OTHER, &no_priority) != 0)
	{
		scheduling.is_refused = true;
		scheduling.is_batch = false;
	}
}

static void
look(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		waited_ns;
	int64		times_run;
	int64		mean_us;
	bool		often = now - scheduling.looked_at < OFTEN_US;

	scheduling.wakes_left = WAKES_A_LOOK;
	if (!read_times(&waited_ns, &times_run))
	{
		/* the kernel does not keep them, or no descriptor is free */
		baton_batch_scheduling_end();
		return;
	}
	mean_us = (waited_ns - scheduling.waited_ns) / 1000 / Max(times_run - scheduling.times_run, 1);
	scheduling.looked_at = now;
	scheduling.waited_ns = waited_ns;
	scheduling.times_run = times_run;

	if (!scheduling.is_batch)
	{
		if (often && baton_batch_scheduling_wait_us > 0 && now >= scheduling.not_before)
		{
			set_policy(true);
			scheduling.tried_at = now;
			scheduling.wakes_left = WAKES_A_TRY;
		}
	}
	else if (!often || baton_batch_scheduling_wait_us == 0)
		set_policy(false);
	else if (mean_us > baton_batch_scheduling_wait_us)
	{
		set_policy(false);
		scheduling.not_before = now + scheduling.pause_us;
		scheduling.pause_us = Min(2 * scheduling.pause_us, PAUSE_MOST_US);
	}
	else if (now - scheduling.tried_at > scheduling.pause_us)
		scheduling.pause_us = PAUSE_LEAST_US;
}

void
baton_batch_scheduling_woken(void)
{
	if (--scheduling.wakes_left > 0 || scheduling.is_refused)
		return;
	look();
}

void
baton_batch_scheduling_end(void)
{
	if (scheduling.is_batch)
		set_policy(false);
}
