/*-------------------------------------------------------------------------
 *
 * cache_memory.c
 *		A bound on the memory that a backend keeps beyond one session.
 *
 * Prepared statements (statement_common.c), compiled PL/pgSQL functions
 * (function_table.c) and catalog caches outlive the session that caused them.
 * pg_baton.backend_cache_memory bounds the growth of the process since it
 * attached.  A look is due once a second while the backend works, and once
 * after it has become idle; it reads the process's anonymous memory, which is
 * one system call.  If that exceeds the bound:
 *	- statements and functions are dropped, least recently used first, until
 *	  the memory contexts have shrunk to three quarters of the bound;
 *	- malloc_trim() returns free pages to the kernel (glibc keeps them else);
 *	- if the process is still far beyond the bound (catalog caches, what a
 *	  library has allocated), the backend ends as it does when it is retired,
 *	  and the dispatcher opens another when one is needed.
 *
 * What the session in place uses does not count: it would take as much on a
 * direct connection.  These are the statements that it has looked up, and the
 * functions that were called since the last look.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include "utils/memutils.h"

#include "cache_memory.h"
#include "context_statements.h"
#include "function_table.h"
#include "parameters.h"
#include "pooled_state.h"
#include "statement_common.h"
#include "statement_held.h"

#define LOOK_INTERVAL_MS 1000

/* A backend that is younger stays, however much memory it has. */
#define LEAST_AGE_MS 10000

/* It ends only if it has exceeded twice the bound and this. */
#define RETIRE_SLACK ((Size) 16 * 1024 * 1024)

int			baton_backend_cache_memory_kb = 64 * 1024;

static BatonSelfMemory *const self = &BatonSelf.memory;

/* Milliseconds of a clock that nobody sets. */
static int64
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (int64) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static Size
in_contexts(void)
{
	return MemoryContextMemAllocated(TopMemoryContext, true);
}

/* The process's own memory; that of its contexts where /proc does not tell. */
static Size
resident(void)
{
	char		line[128];
	unsigned long size;
	unsigned long all;
	unsigned long shared;
	ssize_t		length = -1;
	int			fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

	if (fd >= 0)
	{
		length = read(fd, line, sizeof(line) - 1);
		close(fd);
	}
	if (length <= 0)
		return in_contexts();
	line[length] = '\0';
	if (sscanf(line, "%lu %lu %lu", &size, &all, &shared) != 3 || all < shared)
		return in_contexts();
	return (Size) (all - shared) * sysconf(_SC_PAGESIZE);
}

void
baton_cache_memory_start(void)
{
	self->first_resident = resident();
	self->first_contexts = in_contexts();
	self->began_ms = self->looked_ms = now_ms();
}

void
baton_cache_memory_used(void)
{
	self->used_since_look = true;
}

long
baton_cache_memory_sleep(void)
{
	return self->used_since_look ? LOOK_INTERVAL_MS : -1;
}

/* Drops what was used before `before`, least recently used first. */
static void
drop_caches(Size most, uint64 before)
{
	Size		contexts = in_contexts();

	while (contexts > most)
	{
		uint64		statement = baton_common_oldest();
		uint64		functions = baton_functions_oldest(before);

		if (statement != 0 && (functions == 0 || statement < functions))
			contexts -= Min(contexts, baton_common_drop_oldest());
		else if (functions != 0)
		{
			baton_functions_drop_oldest(before);
			contexts = in_contexts();
		}
		else
			break;
	}
}

static void
shrink(bool is_idle)
{
	Size		bound = (Size) baton_backend_cache_memory_kb * 1024;
	Size		kept;
	Size		now;

	/* what the last session has looked up is in place until another comes */
	if (baton_session_held() == 0)
		baton_statements_forget(BatonPlaced.statements.session);
	kept = bound + baton_held_bytes();
	drop_caches(self->first_contexts + kept - bound / 4,
				is_idle ? PG_UINT64_MAX : self->looked_uses);
	(void) malloc_trim(0);

	now = resident();
	if (now > self->first_resident + kept + bound + RETIRE_SLACK &&
		self->looked_ms - self->began_ms >= LEAST_AGE_MS && !BatonSelf.retire_wanted)
	{
		BatonSelf.retire_wanted = true;
		ereport(LOG,
				(errmsg("pg_baton: backend ends since it has grown by %zu kB, which it cannot free",
						(now - self->first_resident) / 1024),
				 errhint("If this happens often, raise pg_baton.backend_cache_memory.")));
	}
}

void
baton_cache_memory_look(void)
{
	int64		now;
	bool		is_idle;

	if (!self->used_since_look)
		return;
	now = now_ms();
	/* a coarse clock is a tick behind the one that a sleep goes by */
	if (now - self->looked_ms < LOOK_INTERVAL_MS - 20)
		return;
	is_idle = self->uses == self->looked_uses;
	self->looked_ms = now;
	self->used_since_look = false;
	if (resident() > self->first_resident + (Size) baton_backend_cache_memory_kb * 1024)
	{
		shrink(is_idle);
		/* what was used of late may go when the backend has been idle */
		self->used_since_look = !is_idle;
	}
	self->looked_uses = self->uses;
}
