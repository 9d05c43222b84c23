/*-------------------------------------------------------------------------
 *
 * self_check.c
 *		Properties of this server that were found not to be as pg_baton
 *		expects.
 *
 * What PostgreSQL does not export is searched for and checked before it is
 * used (by the other files here, and by all functions named "attach").  If it
 * is not as expected, in a later minor release, or beside another library,
 * only what depends on it is lost.  Each such loss is logged, once since the
 * server started, and shown by the view pg_baton_failed_checks.
 *
 * The memory for that belongs to the server's processes alone: the postmaster
 * maps it, and all processes inherit it.  An entry is written once, by the
 * process that claims it first.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "self_check.h"

#define PROBLEM_SIZE 256

typedef struct FailedCheck
{
	pg_atomic_uint32 state;		/* 0, 1: being written, 2: written */
	TimestampTz at;
	char		problem[PROBLEM_SIZE];
} FailedCheck;

char	   *baton_test_constants;

static FailedCheck *failed_checks = NULL;	/* an entry for each BatonCost */
static bool unpooled = false;

static const char *const costs[BATON_COSTS] = {
	"pooling", "speed", "process IDs", "functions", "logins", "backends", "channel binding",
	"system user", "statistics", "roles"
};

PG_FUNCTION_INFO_V1(pg_baton_get_failed_checks);

void
baton_self_check_init(void)
{
	void	   *address = mmap(NULL, BATON_COSTS * sizeof(FailedCheck), PROT_READ | PROT_WRITE,
							   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	/* zeroes are what pg_atomic_init_u32 would write */
	if (address == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map the shared memory of pg_baton: %m")));
	failed_checks = address;
}

int
baton_test_constant(const char *list, const char *name, int otherwise)
{
	Size		length = strlen(name);

	while (*list != '\0')
	{
		list += strspn(list, ", ");
		if (strncmp(list, name, length) == 0 && list[length] == '=')
			return atoi(list + length + 1);
		list += strcspn(list, ",");
	}
	return otherwise;
}

bool
baton_self_check_is_broken(const char *check)
{
	char		name[NAMEDATALEN];

	if (baton_test_constants == NULL || baton_test_constants[0] == '\0')
		return false;
	snprintf(name, sizeof(name), "break_%s", check);
	return baton_test_constant(baton_test_constants, name, 0) != 0;
}

void
baton_self_check_failed(BatonCost cost, const char *problem)
{
	static const char *const details[BATON_COSTS] = {
		gettext_noop("Each session keeps a backend of its own for life."),
		gettext_noop("Handing a session over takes longer."),
		gettext_noop("SQL knows sessions by the process IDs of the backends that serve them at the moment."),
		gettext_noop("Functions in PL/pgSQL are not kept apart by the settings of their callers."),
		gettext_noop("Each client is authenticated by a backend of the server."),
		gettext_noop("Clients that a backend authenticates have connections of their own for life."),
		gettext_noop("Clients that a backend authenticates are not offered channel binding."),
		gettext_noop("SYSTEM_USER says how the backend was let in, not the session's client."),
		gettext_noop("The views pg_stat_xact_* show what other sessions have counted in the backend, too."),
		gettext_noop("Roles have pools of their own, and share no backends.")
	};
	FailedCheck *failed;
	uint32		free_place = 0;

	if (cost == BATON_COSTS_POOLING)
		unpooled = true;
	if (failed_checks == NULL)
		return;
	failed = &failed_checks[cost];
	if (!pg_atomic_compare_exchange_u32(&failed->state, &free_place, 1))
		return;
	failed->at = GetCurrentTimestamp();
	strlcpy(failed->problem, problem, PROBLEM_SIZE);
	pg_write_barrier();
	pg_atomic_write_u32(&failed->state, 2);
	ereport(LOG,
			(errmsg("pg_baton's check of this server failed: %s", problem),
			 errdetail_internal("%s", _(details[cost])),
			 errhint("Report it with the output of \"SELECT version()\" and the libraries that are preloaded.")));
}

bool
baton_self_check_has_failed(BatonCost cost)
{
	return failed_checks != NULL && pg_atomic_read_u32(&failed_checks[cost].state) != 0;
}

bool
baton_unpooled(void)
{
	return unpooled;
}

Datum
pg_baton_get_failed_checks(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int cost = 0; failed_checks != NULL && cost < BATON_COSTS; cost++)
	{
		FailedCheck *failed = &failed_checks[cost];
		Datum		values[3];
		bool		nulls[3] = {false, false, false};

		if (pg_atomic_read_u32(&failed->state) != 2)
			continue;
		pg_read_barrier();
		values[0] = CStringGetTextDatum(costs[cost]);
		values[1] = CStringGetTextDatum(failed->problem);
		values[2] = TimestampTzGetDatum(failed->at);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
