/*-------------------------------------------------------------------------
 *
 * taint_rules.c
 *		Administrators' lists: libraries and parameters that dedicate a
 *		backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/pg_list.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

#include "parameters.h"
#include "pg_guc.h"
#include "taint_rules.h"

/* ----------------------------------------------------------------
 *		A parameter that is a list of names, parsed once for each value.
 *
 * Lists are consulted at boundaries and function look-ups, and change with a
 * reload: all that this costs is a comparison of the value with the parsed
 * one. This file has its own copy, so that nothing depends on when the server
 * frees the former value of a parameter.
 * ----------------------------------------------------------------
 */

/* The names in `value`, valid until the next call with another value. */
static List *
parsed_list(BatonParsedList *parsed, const char *value)
{
	MemoryContext caller;

	if (parsed->value != NULL && strcmp(parsed->value, value) == 0)
		return parsed->names;

	/* memory may run out at any point: nothing half made may remain */
	parsed->value = NULL;
	parsed->names = NIL;
	if (parsed->context == NULL)
		parsed->context = AllocSetContextCreate(TopMemoryContext, "pg_baton parsed list",
												ALLOCSET_SMALL_SIZES);
	MemoryContextReset(parsed->context);
	caller = MemoryContextSwitchTo(parsed->context);
	/* of a list that cannot be parsed, the names before the error count */
	(void) parsed->split(pstrdup(value), ',', &parsed->names);
	parsed->value = pstrdup(value);
	MemoryContextSwitchTo(caller);
	return parsed->names;
}

bool
baton_parsed_list_has(BatonParsedList *parsed, const char *value, const char *name)
{
	ListCell   *cell;

	if (name == NULL)
		return false;
	foreach(cell, parsed_list(parsed, value))
	{
		if (strcmp(name, (const char *) lfirst(cell)) == 0)
			return true;
	}
	return false;
}

/* ----------------------------------------------------------------
 *		Libraries that no list declares stateless.
 *
 * C code can keep any state in the process, invisibly. So a session that has
 * had an unknown library loaded, or has called one of its functions, keeps its
 * backend from then on, and the backend exits with it: no other session is
 * ever served where such code has run. Known are the libraries of
 * known_libraries.inc and those of pg_baton.stateless_libraries.
 * docs/design/unlisted-libraries.md says why each is on the list.
 *
 * Invariant: `used` has the library of each C function that was looked up to
 * be called in this backend, and each library that was loaded since it
 * attached. The latter covers code that runs without a look-up, the former
 * preloaded libraries. For the hooks of preloaded libraries the administrator
 * is responsible: they run in all backends alike.
 * ----------------------------------------------------------------
 */

/* pg_baton.stateless_libraries; defined in parameters.c */
char	   *baton_stateless_libraries = NULL;

bool		baton_taint_library_stale = false;
bool		baton_taint_library_found = false;

static const char *const known[] = {
#include "known_libraries.inc"
};

/*
 * Known, but what they keep is of use to the next session, whatever its
 * privileges: a connection that was made without a password, an interpreter's
 * variables.
 */
static const char *const of_one_role[] = {
	"dblink", "libpljava-so", "orafce", "pg_variables", "pllua", "plperl", "plpython3", "plr",
	"pltcl", "plv8", "postgres_fdw"
};

static List *used = NIL;		/* names, in TopMemoryContext */

/*
 * The name as lists have it: the file's without folder, suffix and version
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

	foreach(cell, parsed_list(&stateless, baton_stateless_libraries))
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

/* ----------------------------------------------------------------
 *		Parameters whose change dedicates a backend, because an administrator
 *		lists them: pg_baton.dedicating_parameters.
 *
 * All parameters go with their session. But an assign hook may do more than
 * assign, and what else it has done stays in the process. So a session that
 * has set one of these, by SET, set_config() or a startup option, keeps the
 * backend from the end of that transaction on, and the backend exits with the
 * session, whatever happens to the value. A setting that does not outlast its
 * transaction (SET LOCAL, a function's SET clause) does not count.
 *
 * temp_buffers belongs to the process (baton_guc_is_of_process) and is always
 * on the list. A startup option does not count, because the backend began with
 * it, as all sessions of its pool do; a SET does, because the session would
 * otherwise continue elsewhere. A SET LOCAL counts if it determined the number
 * of buffers, because no other session may follow it. So when a session comes,
 * there are no local buffers yet, or as many as temp_buffers says.
 *
 * Records are looked up by name each time: a placeholder's record is replaced
 * once its library has been loaded (define_custom_variable in guc.c).
 * ----------------------------------------------------------------
 */

char	   *baton_dedicating_parameters = NULL;

static bool
is_own(const struct config_generic *record)
{
	return record->source == PGC_S_SESSION || record->source == PGC_S_CLIENT;
}

static bool
temp_buffers_part(void)
{
	/* the server's own record, which does not move */
	static const struct config_generic *temp_buffers = NULL;

	if (unlikely(temp_buffers == NULL))
		temp_buffers = baton_guc_find("temp_buffers");
	return temp_buffers->source == PGC_S_SESSION ||
		(NLocBuffer != 0 && NLocBuffer != num_temp_buffers);
}

bool
baton_dedicating_parameter_is_set(void)
{
	static BatonParsedList dedicating = {.split = SplitIdentifierString};
	ListCell   *cell;

	if (unlikely(temp_buffers_part()))
		return true;
	if (likely(baton_dedicating_parameters[0] == '\0'))
		return false;
	foreach(cell, parsed_list(&dedicating, baton_dedicating_parameters))
	{
		const struct config_generic *record = baton_guc_find(lfirst(cell));

		if (record != NULL && is_own(record))
			return true;
	}
	return false;
}
