/*
 * A library that is there first: it has SQL call a function of its own in the
 * place of a built-in one, as a profiler might.  Compiled by
 * test_session_pids_off.py.
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "fmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/fmgrtab.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static Datum
other_function(PG_FUNCTION_ARGS)
{
	return pg_cancel_backend(fcinfo);
}

void
_PG_init(void)
{
	uintptr_t	page = sysconf(_SC_PAGESIZE);

	for (int i = 0; i < fmgr_nbuiltins; i++)
		if (fmgr_builtins[i].func == pg_cancel_backend)
		{
			FmgrBuiltin *entry = (FmgrBuiltin *) &fmgr_builtins[i];
			void	   *start = (void *) ((uintptr_t) entry & ~(page - 1));

			if (mprotect(start, 2 * page, PROT_READ | PROT_WRITE) != 0)
				elog(FATAL, "cannot write fmgr_builtins: %m");
			entry->func = other_function;
		}
}
