/*-------------------------------------------------------------------------
 *
 * taint_library.c
 *		Libraries of which nobody has said that they keep nothing.
 *
 * C code can keep whatever it likes in the process, where nobody sees it.  So a
 * session that has had an unknown library loaded, or has called one of its
 * functions, keeps its backend from then on, and the backend exits with it:
 * nobody else is ever served where such code has run.  Known are the libraries
 * of known_libraries.inc and those of pg_baton.stateless_libraries.
 * docs/design/unlisted-libraries.md says why each is on the list.
 *
 * Invariant: `used` has the library of each C function that was looked up to be
 * called in this backend, and each one that was loaded since it attached.  The
 * second is for what comes without a look-up, the first for those that were
 * preloaded.  What a preloaded library's hooks do is the administrator's word:
 * they run in all backends alike.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

#include "parameters.h"
#include "parsed_list.h"
#include "taint_library.h"

/* pg_baton.stateless_libraries; defined in parameters.c */
char	   *baton_stateless_libraries = NULL;

bool		baton_taint_library_stale = false;
bool		baton_taint_library_found = false;

static const char *const known[] = {
#include "known_libraries.inc"
};

/*
 * Known, but what they keep is of use to whoever comes next, whatever his rights: a
 * connection that was made without asking for a password, an interpreter's variables.
 */
static const char *const of_one_role[] = {
	"dblink", "libpljava-so", "orafce", "pg_variables", "pllua", "plperl", "plpython3", "plr",
	"pltcl", "plv8", "postgres_fdw"
};

static List *used = NIL;		/* names, in TopMemoryContext */

/*
 * The name that lists have: the file's without folder, suffix and version
 * (plv8-3.2.2.so, postgis-3).
 */
static char *
name_of(const char *file)
{
	const char *slash = strrchr(file, '/');
	char	   *name = pstrdup(slash != NULL ? slash + 1 : file);
	Size		length = strlen(name);
	Size		suffix = strlen(DLSUFFIX);
	char	   *dash;

	if (length > suffix && strcmp(name + length - suffix, DLSUFFIX) == 0)
		name[length - suffix] = '\0';
	dash = strrchr(name, '-');
	if (dash != NULL && dash[1] >= '0' && dash[1] <= '9' &&
		dash[1 + strspn(dash + 1, "0123456789.")] == '\0')
		*dash = '\0';
	return name;
}

static bool
is_listed(const char *name)
{
	static BatonParsedList stateless = {.split = SplitGUCList};
	ListCell   *cell;
	bool		found = false;

	for (int i = 0; i < (int) lengthof(known) && !found; i++)
		found = strcmp(name, known[i]) == 0;
	if (found || baton_stateless_libraries == NULL || baton_stateless_libraries[0] == '\0')
		return found;

	foreach(cell, baton_parsed_list(&stateless, baton_stateless_libraries))
	{
		char	   *entry = name_of(lfirst(cell));

		found |= strcmp(name, entry) == 0;
		pfree(entry);
	}
	return found;
}

void
baton_taint_library_used(const char *file)
{
	char	   *name = name_of(file);
	ListCell   *cell;
	MemoryContext caller;

	foreach(cell, used)
	{
		if (strcmp(lfirst(cell), name) == 0)
		{
			pfree(name);
			return;
		}
	}
	if (!is_listed(name))
		baton_taint_library_found = true;
	caller = MemoryContextSwitchTo(TopMemoryContext);
	used = lappend(used, pstrdup(name));
	MemoryContextSwitchTo(caller);
	pfree(name);
}

bool
baton_taint_library_look(void)
{
	const char *file;

	while ((file = baton_libraries_next()) != NULL)
		baton_taint_library_used(file);
	if (baton_taint_library_stale)
	{
		ListCell   *cell;
		bool		found = false;

		foreach(cell, used)
			found |= !is_listed(lfirst(cell));
		baton_taint_library_found = found;
		baton_taint_library_stale = false;
	}
	return baton_taint_library_found;
}

const char *
baton_taint_library_of_one_role(void)
{
	ListCell   *cell;

	(void) baton_taint_library_look();
	foreach(cell, used)
	{
		for (int i = 0; i < (int) lengthof(of_one_role); i++)
			if (strcmp(lfirst(cell), of_one_role[i]) == 0)
				return of_one_role[i];
	}
	return NULL;
}

void
baton_taint_library_listed(const char *value, void *extra)
{
	baton_taint_library_stale = true;
}

const char *
baton_taint_library_attach(void)
{
	return baton_libraries_attach();
}
