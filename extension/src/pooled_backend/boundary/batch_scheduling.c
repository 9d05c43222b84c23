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
 * run).  If that was too long on average, it may be that many like itself are in
 * a queue, which goes on each time one of them sleeps: interrupting them would
 * gain nothing.  So it looks at some waits one by one.  If long ones make up most
 * of them, somebody computes, and it has the usual policy again, for a second,
 * and each time for twice as long.  One that is seldom woken has it, too: it has
 * nothing to gain.
 *
 * What is too long is pg_baton.batch_scheduling_wait's to say, or how long it
 * waits with the usual policy: where that is long as well, as behind a client
 * that looks at a thousand sockets, to interrupt others gains little.
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

#include "batch_scheduling.h"
#include "monotonic.h"
#include "parameters.h"

/* Times woken between two looks, and until the first one with the other policy */
#define WAKES_A_LOOK 64
#define WAKES_A_TRY 16

/* Waits that are looked at one by one, and looks until they are again. */
#define WAITS_A_CLOSE_LOOK 32
#define LOOKS_AFTER_CLOSE_LOOK 16

/* A long wait, of the longest that is right on average. */
#define LONG_WAIT_TIMES 4

/* That many in so long are often. */
#define OFTEN_US INT64CONST(1000000)

/*
 * It may wait for so many times as long as with the usual policy.  How long that is is
 * looked at anew after so long, if it counts.
 */
#define USUAL_WAIT_TIMES 3
#define USUAL_WAIT_KNOWN_US INT64CONST(10000000)

/* It is not tried again for so long, doubled each time. */
#define PAUSE_LEAST_US INT64CONST(1000000)
#define PAUSE_MOST_US INT64CONST(8000000)

typedef struct
{
	int			wakes_left;
	bool		is_batch;
	/* It cannot be done, or is not ours to do. */
	bool		is_refused;
	/* As of the last look; times are the monotonic clock's. */
	int64		looked_at;
	int64		waited_ns;
	int64		times_run;

	/* With the usual policy, on average, and when it was looked at last. */
	int64		usual_wait_us;
	int64		usual_wait_at;
	/* It has that policy for one look, to see how long it waits then. */
	bool		is_looking_at_usual;
	int64		tried_at;
	int64		not_before;
	int64		pause_us;

	/*
	 * A close look: looks before the next one, unless waits are long on
	 * average; how many more waits, and what those so far add up to.
	 */
	int			looks_before;
	int			waits_left;
	int64		all_waits_ns;
	int64		long_waits_ns;
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

/* At each of the next waits. */
static void
look_closely(void)
{
	scheduling.wakes_left = 1;
	scheduling.waits_left = WAITS_A_CLOSE_LOOK;
	scheduling.looks_before = LOOKS_AFTER_CLOSE_LOOK;
	scheduling.all_waits_ns = 0;
	scheduling.long_waits_ns = 0;
}

/*
 * One of these waits.  True if long ones are most of what they add up to, and more
 * than all together would be that are right on average: it need not look any more.
 */
static bool
somebody_computes(int64 wait_ns, int64 right_us)
{
	int64		right_ns = right_us * 1000;

	scheduling.all_waits_ns += wait_ns;
	if (wait_ns > LONG_WAIT_TIMES * right_ns)
		scheduling.long_waits_ns += wait_ns;
	if (--scheduling.waits_left > 0)
		scheduling.wakes_left = 1;
	return scheduling.long_waits_ns > scheduling.all_waits_ns / 2 &&
		scheduling.long_waits_ns > WAITS_A_CLOSE_LOOK * right_ns;
}

/* With the usual policy. */
static void
interrupt_again(void)
{
	set_policy(false);
	scheduling.waits_left = 0;
	scheduling.looks_before = 0;
	scheduling.wakes_left = WAKES_A_LOOK;
}

static bool
is_usual_wait_known(int64 now)
{
	return now - scheduling.usual_wait_at < USUAL_WAIT_KNOWN_US;
}

static void
usual_wait_was(int64 mean_us, int64 now)
{
	scheduling.usual_wait_us = is_usual_wait_known(now) ?
		(3 * scheduling.usual_wait_us + mean_us) / 4 : mean_us;
	scheduling.usual_wait_at = now;
}

/* If it does for as long as the pause was, the next one is short. */
static void
goes_well(int64 now)
{
	if (now - scheduling.tried_at > scheduling.pause_us)
		scheduling.pause_us = PAUSE_LEAST_US;
}

static void
look(void)
{
	int64		now = baton_monotonic_us();
	int64		waited_ns;
	int64		times_run;
	int64		wait_ns;
	int64		mean_us;
	int64		most_wait_us = baton_batch_scheduling_wait_us;
	int64		right_us = Max(most_wait_us, USUAL_WAIT_TIMES * scheduling.usual_wait_us);
	bool		often = now - scheduling.looked_at < OFTEN_US;

	scheduling.wakes_left = WAKES_A_LOOK;
	if (!read_times(&waited_ns, &times_run))
	{
		/* the kernel does not keep them, or no descriptor is free */
		baton_batch_scheduling_end();
		return;
	}
	wait_ns = waited_ns - scheduling.waited_ns;
	mean_us = wait_ns / 1000 / Max(times_run - scheduling.times_run, 1);
	scheduling.looked_at = now;
	scheduling.waited_ns = waited_ns;
	scheduling.times_run = times_run;

	if (!scheduling.is_batch)
	{
		if (often)
			usual_wait_was(mean_us, now);
		if (often && most_wait_us > 0 && now >= scheduling.not_before)
		{
			set_policy(true);
			scheduling.wakes_left = WAKES_A_TRY;
		}
		if (!scheduling.is_looking_at_usual)
			scheduling.tried_at = now;
		scheduling.is_looking_at_usual = false;
	}
	else if (!often || most_wait_us == 0)
		interrupt_again();
	else if (scheduling.waits_left > 0)
	{
		if (somebody_computes(wait_ns, right_us))
		{
			interrupt_again();
			scheduling.not_before = now + scheduling.pause_us;
			scheduling.pause_us = Min(2 * scheduling.pause_us, PAUSE_MOST_US);
		}
		else if (scheduling.waits_left == 0)
			goes_well(now);
	}
	else if (mean_us > most_wait_us && !is_usual_wait_known(now))
	{
		interrupt_again();
		scheduling.is_looking_at_usual = true;
	}
	else if (mean_us > right_us)
	{
		if (scheduling.looks_before-- <= 0 || mean_us > LONG_WAIT_TIMES * right_us)
			look_closely();
	}
	else
		goes_well(now);
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
