/*-------------------------------------------------------------------------
 *
 * function_environment.c
 *		What a compiled PL/pgSQL function and its plans take in.
 *
 * Compiling (do_compile, pl_comp.c) looks up types by the search path and the
 * role, and keeps plpgsql.variable_conflict and print_strict_params.  Parse
 * analysis of a function's expressions resolves names and turns literals into
 * constants (the settings of statement_settings.c); the planner folds immutable
 * functions, some of which format their result by a setting (float8out,
 * byteaout and quote_ident are marked immutable), and inlines SQL functions, whose EXECUTE
 * privilege it checks for the current role at that time only
 * (inline_function, clauses.c).  plancache.c looks at the search path and row
 * security by itself, and at nothing of the rest.
 *
 * Not here, because nothing keeps it:
 *	- the session user: privileges and "$user" (recomputeNamespacePath) go by
 *	  GetUserId(); session_user is not folded.
 *	- what stable functions look at (lc_time, lc_numeric, xmlbinary): they are
 *	  folded in estimates only.
 *	- plpgsql.check_asserts, extra_warnings and extra_errors: looked at while a
 *	  function runs, or by CREATE FUNCTION (pl_exec.c, pl_comp.c).
 *	- settings that say how to plan (enable_*, work_mem): they choose between
 *	  plans with one result.
 *
 * The comparison is made at each call of a PL/pgSQL function, so it goes over
 * the values themselves: no parameter's hook has to be trusted.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "function_environment.h"
#include "pooled_state.h"
#include "statement_settings.h"

/* Beside those that literals are read by. */
static const char *const other_settings[] = {
	"search_path", "standard_conforming_strings", "backslash_quote",
	"extra_float_digits", "bytea_output", "quote_all_identifiers",
	"session_replication_role",
	"plpgsql.variable_conflict", "plpgsql.print_strict_params"
};

/* Which came with a minor version: a view is refused when it is rewritten. */
static const char *const late_settings[] = {
	"restrict_nonsystem_relation_kind"
};

static struct config_generic *records[ENVIRONMENT_SETTINGS_MAX];
static int	record_count = 0;

/* Where their values are. */
static bool *bools[ENVIRONMENT_SETTINGS_MAX];
static int *ints[ENVIRONMENT_SETTINGS_MAX]; /* enums, too */
static char **strings[ENVIRONMENT_SETTINGS_MAX];
static int	bool_count = 0;
static int	int_count = 0;
static int	string_count = 0;

static bool
add_records(const char *const *names, int count, bool must_exist)
{
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = baton_guc_find(names[i]);

		if (record == NULL && !must_exist)
			continue;
		if (record == NULL || record_count == ENVIRONMENT_SETTINGS_MAX)
			return false;
		records[record_count++] = record;
		switch (record->vartype)
		{
			case PGC_BOOL:
				bools[bool_count++] = ((struct config_bool *) record)->variable;
				break;
			case PGC_INT:
				ints[int_count++] = ((struct config_int *) record)->variable;
				break;
			case PGC_ENUM:
				ints[int_count++] = ((struct config_enum *) record)->variable;
				break;
			case PGC_STRING:
				strings[string_count++] = ((struct config_string *) record)->variable;
				break;
			case PGC_REAL:
				return false;	/* there is none */
		}
	}
	return true;
}

const char *
baton_environment_attach(void)
{
	record_count = bool_count = int_count = string_count = 0;
	if (!add_records(baton_literal_settings, baton_literal_settings_count, true) ||
		!add_records(other_settings, lengthof(other_settings), true) ||
		!add_records(late_settings, lengthof(late_settings), false))
		return "a parameter that functions depend on was not found";
	return NULL;
}

/* The session whose temporary objects may be meant by a name. */
static uint64
session_with_objects(void)
{
	return baton_may_have_temporary_objects() ? baton_session_held() : 0;
}

static bool
temporary_is_shown(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	return OidIsValid(namespace);
}

static inline bool
same_string(const char *one, const char *other)
{
	if (one == NULL || other == NULL)
		return one == other;
	return strcmp(one, other) == 0;
}

bool
baton_environment_matches(const Environment *environment)
{
	if (environment->role != GetUserId())
		return false;
	for (int i = 0; i < int_count; i++)
		if (*ints[i] != environment->ints[i])
			return false;
	for (int i = 0; i < bool_count; i++)
		if (*bools[i] != environment->bools[i])
			return false;
	for (int i = 0; i < string_count; i++)
		if (!same_string(*strings[i], environment->strings[i]))
			return false;
	return environment->has_temporary == temporary_is_shown() &&
		environment->session == session_with_objects();
}

uint64
baton_environment_hash(void)
{
	uint64		hash = hash_combine64(GetUserId(), session_with_objects());

	for (int i = 0; i < int_count; i++)
		hash = hash_combine64(hash, (uint64) *ints[i]);
	for (int i = 0; i < bool_count; i++)
		hash = hash_combine64(hash, *bools[i]);
	for (int i = 0; i < string_count; i++)
	{
		const char *text = *strings[i];

		hash = hash_combine64(hash, text == NULL ? 0 :
							  hash_bytes_extended((const unsigned char *) text, strlen(text), 0));
	}
	return hash;
}

void
baton_environment_forget(Environment *environment)
{
	environment->role = InvalidOid;
	for (int i = 0; i < string_count; i++)
	{
		if (environment->strings[i] != NULL)
			pfree(environment->strings[i]);
		environment->strings[i] = NULL;
	}
}

void
baton_environment_note(Environment *environment, MemoryContext context)
{
	environment->role = InvalidOid;
	for (int i = 0; i < int_count; i++)
		environment->ints[i] = *ints[i];
	for (int i = 0; i < bool_count; i++)
		environment->bools[i] = *bools[i];
	for (int i = 0; i < string_count; i++)
	{
		if (environment->strings[i] != NULL)
			pfree(environment->strings[i]);
		environment->strings[i] = NULL;
		if (*strings[i] != NULL)
			environment->strings[i] = MemoryContextStrdup(context, *strings[i]);
	}
	environment->has_temporary = temporary_is_shown();
	environment->session = session_with_objects();
	environment->hash = baton_environment_hash();
	environment->role = GetUserId();
}

bool
baton_environment_has(const char *setting)
{
	for (int i = 0; i < record_count; i++)
		if (baton_guc_compare_names(setting, records[i]->name) == 0)
			return true;
	return baton_guc_compare_names(setting, "role") == 0 ||
		baton_guc_compare_names(setting, "session_authorization") == 0;
}
