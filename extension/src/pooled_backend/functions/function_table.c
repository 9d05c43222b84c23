/*-------------------------------------------------------------------------
 *
 * function_table.c
 *		PL/pgSQL's compiled functions, separate for each environment.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "plpgsql.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/syscache.h"

#include "function_records.h"
#include "function_table.h"
#include "parameters.h"
#include "pg_catalogs.h"
#include "pg_funccache.h"
#include "pg_guc.h"
#include "pg_program.h"
#include "pooled_state.h"
#include "self_check.h"
#include "statement_description.h"
#include "statement_environment.h"
#include "statement_names.h"
#include "statement_tracking.h"

/* ----------------------------------------------------------------
 *		What a compiled PL/pgSQL function and its plans depend on.
 *
 * Compiling (do_compile, pl_comp.c) looks up types by the search path and the
 * role, and keeps plpgsql.variable_conflict and print_strict_params. Parse
 * analysis of a function's expressions resolves names and turns literals into
 * constants (the settings of statement_description.c). The planner folds
 * immutable functions, some of which format their result by a setting
 * (float8out, byteaout and quote_ident are marked immutable), and inlines SQL
 * functions, whose EXECUTE privilege it checks for the current role at that
 * time only (inline_function, clauses.c). plancache.c itself looks at the
 * search path and row security, and at none of the rest.
 *
 * Not included, because nothing keeps it:
 * - the session user: privileges and "$user" (recomputeNamespacePath) go by
 *   GetUserId(); session_user is not folded.
 * - what stable functions look at (lc_time, lc_numeric, xmlbinary): they are
 *   folded in estimates only.
 * - plpgsql.check_asserts, extra_warnings and extra_errors: looked at while a
 *   function runs, or by CREATE FUNCTION (pl_exec.c, pl_comp.c).
 * - settings that say how to plan (enable_*, work_mem): they choose between
 *   plans with the same result.
 *
 * The comparison is made at each call of a PL/pgSQL function, and compares the
 * values themselves: no parameter's hook has to be trusted.
 * ----------------------------------------------------------------
 */

/* Settings besides those by which literals are read. */
static const char *const other_settings[] = {
	"search_path", "standard_conforming_strings", "backslash_quote",
	"extra_float_digits", "bytea_output", "quote_all_identifiers",
	"session_replication_role",
	"plpgsql.variable_conflict", "plpgsql.print_strict_params"
};

/* Settings that came with a minor version: rewriting refuses a view by it. */
static const char *const late_settings[] = {
	"restrict_nonsystem_relation_kind"
};

static struct config_generic *records[ENVIRONMENT_SETTINGS_MAX];
static int	record_count = 0;

/* The addresses of their values. */
static bool *bools[ENVIRONMENT_SETTINGS_MAX];
static int *ints[ENVIRONMENT_SETTINGS_MAX]; /* also enums */
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
				return false;	/* there is no such parameter */
		}
	}
	return true;
}

/*
 * Finds the settings' records; called once, with PL/pgSQL loaded. Returns
 * NULL, or the reason why it failed.
 */
static const char *
environment_attach(void)
{
	record_count = bool_count = int_count = string_count = 0;
	if (!add_records(baton_literal_settings, baton_literal_settings_count, true) ||
		!add_records(other_settings, lengthof(other_settings), true) ||
		!add_records(late_settings, lengthof(late_settings), false))
		return "a parameter that functions depend on was not found";
	return NULL;
}

/* The session whose temporary objects a name may mean. */
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

/* Is this the environment in force? Not if its hash differs. */
static bool
environment_matches(const Environment *environment)
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

static uint64
environment_hash(void)
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

/* Forgets the environment's content. */
static void
environment_forget(Environment *environment)
{
	environment->role = InvalidOid;
	for (int i = 0; i < string_count; i++)
	{
		if (environment->strings[i] != NULL)
			pfree(environment->strings[i]);
		environment->strings[i] = NULL;
	}
}

/*
 * Makes it the environment in force, after its old content was forgotten. If
 * memory runs out, it equals none.
 */
static void
environment_note(Environment *environment, MemoryContext context)
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
	environment->hash = environment_hash();
	environment->role = GetUserId();
}

/* Is that setting a part of it? */
static bool
environment_has(const char *setting)
{
	for (int i = 0; i < record_count; i++)
		if (baton_guc_compare_names(setting, records[i]->name) == 0)
			return true;
	return baton_guc_compare_names(setting, "role") == 0 ||
		baton_guc_compare_names(setting, "session_authorization") == 0;
}

/* ----------------------------------------------------------------
 *		PL/pgSQL's compiled functions, separate for each environment.
 *
 * Problem: plpgsql keeps each function that it has compiled, and all its
 * plans, for the life of the process, by function only (plpgsql_HashTable,
 * pl_comp.c). They are made in the first caller's settings, search_path and
 * role; a later session would run what was made for another.
 *
 * Decision: that hash table has one content for each environment; the one in
 * force when the function is called is used. plpgsql looks at the table only
 * in plpgsql_compile(), the first thing that a call does, so the table is
 * exchanged, if needed, at the moment of a call: fmgr_hook, after a function's
 * own SET clauses and SECURITY DEFINER have come into force
 * (fmgr_security_definer, fmgr.c). This needs no knowledge of sessions, and no
 * work when a session comes or goes.
 *
 * How: the table that plpgsql's variable points to is exchanged
 * (pg_program.c).
 *
 * Assumption, which attach() checks before use:
 * - the table is found by its name and has the form that pg_funccache.h's file
 *   for this version describes.
 *
 * A PLpgSQL_function is reachable through its table's entry, and through
 * FmgrInfos that have it in fn_extra, some of which live as long as the
 * process (typcache.c, relcache.c). plpgsql_compile() trusts fn_extra as long
 * as pg_proc's tuple is the same, and if fn_extra is stale would remove the
 * entry of that name from whatever table is in place. So each FmgrInfo records
 * the content that it was last used with, and fn_extra is cleared if the
 * present one differs. This holds for all of them, because needs_fmgr_hook is
 * asked for each one (fmgr_info_cxt_security) and a pooled backend says yes
 * from its first call on.
 *
 * Invariants: exactly one table is in place, and its own handle is stale until
 * it is taken out. A content's number is used once: a content gets a new one
 * when any function has been taken out of it. A function taken out is freed,
 * by this file or by plpgsql when it next looks for it, unless it runs
 * (use_count); then it is left alone, as delete_function() (pl_comp.c) does.
 * No function of plpgsql runs between our hook and plpgsql_compile(), nor
 * within the latter ("not re-entrant", do_compile).
 *
 * From 18 on functions in SQL are in the table as well, and are also compiled
 * under settings, but called without a hook: a hook that says it must see them
 * would keep the planner from inlining them (inline_function in clauses.c).
 * They are forgotten whenever the table is exchanged, and when the session
 * changes. Up to 17 they are compiled for each query, so nothing is lost.
 *
 * A function that changes the environment while it runs may have made plans in
 * either environment. It is noted, and freed before another session uses that
 * table; the session itself keeps it, as on a direct connection. The same
 * holds for a function whose plans hold the time ('now'), or the result of a
 * user's immutable function. What a function's names mean now is checked when
 * another session comes, and the types that its plans are for when its
 * statements begin (both function_records.c).
 * ----------------------------------------------------------------
 */

/* With more of them, the least recently used one serves a new environment. */
#define MOST_TABLES 1000

/* Number of lists, by the hash of the environment; a power of two. */
#define BUCKETS 256

typedef struct FunctionTable
{
	HTAB	   *handle;			/* describes the table while it is not in
								 * place */
	Environment environment;
	uint64		content;		/* a number that no other content ever had */
	int			running;		/* calls that began with it in place */
	uint64		session;		/* the session that used it last */
	uint64		moves;			/* as of then */
	List	   *mixed;			/* functions with plans that belong to that
								 * session alone */
	FunctionNames *names;		/* NULL: never used */
	bool		is_first;		/* its content was plpgsql's own, and stays */
	uint64		last_use;		/* a value of BatonSelf.memory.uses */
	dlist_node	bucket_node;	/* if it has an environment */
	dlist_node	node;			/* in by_use, most recently used first */
} FunctionTable;

/* State that is kept with a FmgrInfo. */
struct BatonCall
{
	uint64		content;		/* the content that fn_extra belongs to */
	int			depth;			/* calls through it that run now */
	FunctionTable *table;		/* of the outermost of those calls */
	uint64		changes;		/* as of its begin */
	uint64		set_configs;	/* as of its begin */
	Oid			function;
	struct BatonCall *outer;	/* the call that ran when it began */
	bool		watches;		/* its statements are shown to
								 * function_records.c */
	bool		own_clauses;	/* SECURITY DEFINER or SET */
	bool		others;			/* other hooks want to see its calls */
	Datum		next;			/* the argument of the hook after ours */
};

typedef enum
{
	NOT_LOADED,					/* no function has been called yet */
	USABLE,
	UNUSABLE					/* not as expected: left alone */
} State;

static State state = NOT_LOADED;
static bool pooled = false;
static PGFunction call_handler = NULL;
static PGFunction validator = NULL;
static HTAB *plpgsql_handle = NULL; /* what plpgsql's static variable points
									 * to */
static HTAB *sql_handle = NULL; /* the same, where SQL's functions are kept */
static MemoryContext table_context = NULL;
static FunctionTable *in_place = NULL;
static BatonCall *running = NULL;	/* the innermost call */
static dlist_head by_use = DLIST_STATIC_INIT(by_use);
static dlist_head buckets[BUCKETS];
static int	tables = 0;
static uint64 contents = 0;
static uint64 changes = 0;		/* changes by SET of settings in an
								 * environment */
static uint64 changes_before = 0;	/* this transaction */
static uint64 set_configs = 0;	/* expressions with set_config() made */
static uint64 set_configs_before = 0;	/* this transaction */

/* ---- tables ------------------------------------------------------------ */

static FunctionTable *
new_table(HTAB *handle)
{
	FunctionTable *table = MemoryContextAllocZero(table_context,
												  sizeof(FunctionTable));

	table->handle = handle;
	table->content = ++contents;
	tables++;
	return table;
}

static void
place(FunctionTable *table)
{
	if (table == in_place)
		return;
	/* funccache.c looks for its functions in the table that is in place */
	baton_function_cache_forget_sql(plpgsql_handle);
	baton_hash_exchange(plpgsql_handle, in_place->handle, table->handle);
	in_place = table;
	baton_function_records_stay_begins();
}

/* Frees the functions of that OID; InvalidOid: all functions. */
static void
free_functions(FunctionTable *table, Oid only)
{
	table->content = ++contents;
	baton_function_cache_free(table == in_place ? plpgsql_handle : table->handle,
							  only);
}

static void
forget_mixed(FunctionTable *table)
{
	ListCell   *cell;

	foreach(cell, table->mixed)
		free_functions(table, lfirst_oid(cell));
	list_free(table->mixed);
	table->mixed = NIL;
}

static void
free_all(FunctionTable *table)
{
	free_functions(table, InvalidOid);
	list_free(table->mixed);
	table->mixed = NIL;
}

static void
make_empty(FunctionTable *table)
{
	if (table->environment.role != InvalidOid)
		dlist_delete(&table->bucket_node);
	table->environment.role = InvalidOid;
	free_all(table);

	/* it is the next to be reused */
	dlist_delete(&table->node);
	dlist_push_tail(&by_use, &table->node);
}

/* The function may have plans that are for its session alone. */
static void
mix(FunctionTable *table, Oid function)
{
	MemoryContext caller = MemoryContextSwitchTo(table_context);

	table->mixed = list_append_unique_oid(table->mixed, function);
	MemoryContextSwitchTo(caller);
}

/*
 * Casts that assignments need are planned once per process
 * (get_cast_hashentry, pl_exec.c): after any change of a cast they are made
 * again.
 */
static void
renew_casts(void)
{
	static uint64 casts = 0;

	if (casts == baton_catalog_changed(BATON_CATALOG_CASTS))
		return;
	casts = baton_catalog_changed(BATON_CATALOG_CASTS);
	ResetPlanCache();
}

/*
 * Another session comes to use the table, or the same one from another
 * backend, where it may have discarded its plans: removes the functions that
 * it would not have compiled or planned in the same way. Its transaction has
 * processed other backends' invalidations.
 */
static void
take_over(FunctionTable *table)
{
	table->session = baton_session_held();
	table->moves = BatonPlaced.context.moves;
	renew_casts();
	baton_function_records_stay_begins();
	baton_names_look_up_functions();
	if (table->names == NULL)
		table->names = baton_function_names_create(table_context);
	else if (baton_function_names_outdated(table->names))
	{
		free_all(table);
		baton_function_names_clear(table->names);
	}
	if (table->mixed != NIL)
		forget_mixed(table);
}

/*
 * The least recently used table that has an environment and does not run; or
 * NULL.
 */
static FunctionTable *
oldest(bool or_in_place)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, &by_use)
	{
		FunctionTable *table = dlist_container(FunctionTable, node, iter.cur);

		if (table->environment.role != InvalidOid && table->running == 0 &&
			(or_in_place || table != in_place))
			return table;
	}
	return NULL;
}

/* An empty table: an unused one, the least recently used one, or a new one. */
static FunctionTable *
empty_table(void)
{
	FunctionTable *table = dlist_container(FunctionTable, node, dlist_tail_node(&by_use));

	if (table->environment.role == InvalidOid && table->running == 0 && table != in_place)
		return table;
	if (tables >= MOST_TABLES && (table = oldest(false)) != NULL)
	{
		make_empty(table);
		return table;
	}
	table = new_table(baton_function_cache_create(table_context));
	dlist_push_tail(&by_use, &table->node);
	return table;
}

static void
note_environment(FunctionTable *table)
{
	environment_note(&table->environment, table_context);
	if (table->environment.role != InvalidOid)
		dlist_push_head(&buckets[table->environment.hash % BUCKETS], &table->bucket_node);
}

/* Puts the table for the environment in force in place. */
static void
choose_table(void)
{
	FunctionTable *table = NULL;
	uint64		hash = environment_hash();
	dlist_iter	iter;

	dlist_foreach(iter, &buckets[hash % BUCKETS])
	{
		FunctionTable *one = dlist_container(FunctionTable, bucket_node, iter.cur);

		if (one->environment.hash == hash && environment_matches(&one->environment))
		{
			table = one;
			break;
		}
	}
	if (table == NULL)
	{
		table = empty_table();
		note_environment(table);
		if (table->names != NULL)
			baton_function_names_clear(table->names);
	}
	dlist_move_head(&by_use, &table->node);
	place(table);
}

/*
 * ---- memory --------------------------------------------------------------
 */

/* Returns the least recently used table, if it was used before `before`. */
static FunctionTable *
oldest_before(uint64 before)
{
	FunctionTable *table = state == USABLE ? oldest(true) : NULL;

	return table != NULL && table->last_use <= before ? table : NULL;
}

uint64
baton_functions_oldest(uint64 before)
{
	FunctionTable *table = oldest_before(before);

	return table == NULL ? 0 : table->last_use;
}

void
baton_functions_drop_oldest(uint64 before)
{
	FunctionTable *table = oldest_before(before);

	if (table == NULL)
		return;
	make_empty(table);
	if (table == in_place || table->is_first ||
		hash_get_num_entries(table->handle) != 0)
		return;
	dlist_delete(&table->node);
	tables--;
	hash_destroy(table->handle);
	if (table->names != NULL)
		baton_function_names_destroy(table->names);
	environment_forget(&table->environment);
	pfree(table);
}

static void planned(bool folds, bool inlines);
static void copied(Oid function);
static void rewritten(Query *query);

/* ---- attach ------------------------------------------------------------ */

static const char *
attach(const char *library)
{
	void	   *file;
	const char *problem;
	FunctionTable *original;
	HTAB	   *other;

	dlist_init(&by_use);
	for (int i = 0; i < BUCKETS; i++)
		dlist_init(&buckets[i]);
	tables = 0;
	call_handler = load_external_function(library, "plpgsql_call_handler",
										  true, &file);
	validator = lookup_external_function(file, "plpgsql_validator");
	if (validator == NULL)
		return "the library lacks a function";

	problem = environment_attach();
	if (problem != NULL)
		return problem;
	plpgsql_handle = baton_function_cache_find();
	if (plpgsql_handle == NULL)
		return "the table of functions was not found";
	problem = baton_function_cache_attach((const void *) call_handler);
	if (problem != NULL)
		return problem;

	if (table_context == NULL)
		table_context = AllocSetContextCreate(TopMemoryContext,
											  "pg_baton function tables",
											  ALLOCSET_DEFAULT_SIZES);
	other = baton_function_cache_create(table_context);
	if (!baton_hash_same_form(plpgsql_handle, other, baton_function_cache_own_words()))
		return "the table of functions is not as expected";
	if (baton_function_cache_in_use(plpgsql_handle))
		return "it has been used before";

	baton_function_names_attach();
	baton_function_records_attach();
	baton_planning_watch(planned);
	baton_planning_watch_copies(copied);
	baton_planning_watch_rewritten(rewritten);
	original = new_table(baton_hash_make_room(table_context));
	dlist_push_head(&by_use, &original->node);
	original->is_first = true;
	in_place = original;
	note_environment(original);
	dlist_push_tail(&by_use, &new_table(other)->node);
	return NULL;
}

static void
attach_once(const char *library)
{
	const char *problem;

	if (state != NOT_LOADED)
		return;
	problem = baton_self_check_is_broken("functions") ? "broken on purpose" : attach(library);
	state = problem == NULL ? USABLE : UNUSABLE;
	if (problem != NULL)
		baton_self_check_failed(BATON_COSTS_FUNCTIONS, problem);
}

/*
 * If the C function is plpgsql's function of that name, attaches to its
 * library.
 */
static bool
is_of_plpgsql(Oid function, const char *symbol)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Datum		source;
	Datum		library;
	bool		no_source;
	bool		no_library;
	bool		found;

	if (!HeapTupleIsValid(tuple))
		return false;
	source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &no_source);
	library = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin, &no_library);
	found = !no_source && !no_library &&
		strcmp(TextDatumGetCString(source), symbol) == 0;
	if (found)
		attach_once(TextDatumGetCString(library));
	ReleaseSysCache(tuple);
	return found;
}

/*
 * Is it a function in plpgsql, or plpgsql's validator, which also compiles?
 * Looks at catalogs; called when a function is looked up for a call.
 */
static bool
is_plpgsql(Oid function)
{
	static Oid	known = InvalidOid;
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	Oid			language;
	Oid			handler;
	bool		is_validator;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	language = form->prolang;
	is_validator = language == ClanguageId &&
		strcmp(NameStr(form->proname), "plpgsql_validator") == 0;
	ReleaseSysCache(tuple);

	if (is_validator)
		return is_of_plpgsql(function, "plpgsql_validator");
	if (language == INTERNALlanguageId || language == ClanguageId ||
		language == SQLlanguageId)
		return false;
	if (language == known)
		return true;

	tuple = SearchSysCache1(LANGOID, ObjectIdGetDatum(language));
	if (!HeapTupleIsValid(tuple))
		return false;
	handler = ((Form_pg_language) GETSTRUCT(tuple))->lanplcallfoid;
	ReleaseSysCache(tuple);
	if (!is_of_plpgsql(handler, "plpgsql_call_handler"))
		return false;
	known = language;
	return true;
}

/* ---- calls ------------------------------------------------------------- */

/* plpgsql is about to be called, and will look at its table. */
void
baton_functions_call_begins(FmgrInfo *function, BatonCall *call)
{
	if (!environment_matches(&in_place->environment))
		choose_table();
	in_place->last_use = ++BatonSelf.memory.uses;
	if (in_place->session != baton_session_held() ||
		in_place->moves != BatonPlaced.context.moves || in_place->names == NULL)
		take_over(in_place);

	if (call->content != in_place->content)
	{
		baton_function_names_add(in_place->names, function->fn_oid);
		function->fn_extra = NULL;
		call->content = in_place->content;
	}
	if (call->depth == 0)
	{
		/* a function that is not compiled yet may have such variables */
		call->watches = function->fn_extra == NULL ||
			baton_function_records_has(function->fn_extra);
	}
	baton_function_records_watch(call->watches);
	if (call->depth++ == 0)
	{
		call->outer = running;
		running = call;
		call->table = in_place;
		call->table->running++;
		call->changes = changes;
		call->set_configs = set_configs;
	}
}

/*
 * Has the function changed the environment while it ran? SET says which
 * setting it changes. If an expression of this transaction contains
 * set_config() (plpgsql makes its own once per transaction), it may have been
 * called, and the environments are compared. The environment in force now is
 * the caller's, so a function with clauses of its own is assumed to have
 * changed its environment.
 */
static bool
has_changed(const BatonCall *call)
{
	if (call->changes != changes)
		return true;
	if (set_configs == call->set_configs && set_configs == set_configs_before)
		return false;
	return call->own_clauses ||
		!environment_matches(&call->table->environment);
}

void
baton_functions_call_ends(const FmgrInfo *function, BatonCall *call)
{
	FunctionTable *table = call->table;

	if (call->depth == 0 || --call->depth > 0)
		return;
	running = call->outer;
	baton_function_records_watch(running != NULL && running->watches);
	table->running--;
	if (has_changed(call) ||
		(call->watches && !baton_function_records_can_watch() &&
		 function->fn_extra != NULL && call->content == table->content &&
		 baton_function_records_has(function->fn_extra)))
		mix(table, function->fn_oid);
}

/*
 * A query is analysed while a function runs: the function's own, or, by the
 * planner, the body of a function in SQL that becomes part of a plan. Queries
 * that EXECUTE runs are not kept.
 */
void
baton_functions_analysed(ParseState *pstate, Query *query)
{
	if (running == NULL ||
		!(baton_function_records_is_own(pstate) || baton_planning_is_under_way()))
		return;
	baton_function_records_analysed(pstate);
	baton_function_names_analysed(running->table->names, query);
	if (baton_bindings_moment(query, pstate->p_sourcetext) ||
		baton_bindings_function_constant(query))
		mix(running->table, running->function);
}

/* The same for a plan that is kept. */
static void
planned(bool folds, bool inlines)
{
	if (running == NULL)
		return;
	if (folds)
		mix(running->table, running->function);
	if (inlines)
		baton_function_names_inlined(running->table->names);
}

static void
copied(Oid function)
{
	if (running != NULL && running->table->names != NULL)
		baton_function_names_copied(running->table->names, function);
}

static void
rewritten(Query *query)
{
	if (running == NULL || running->table->names == NULL)
		return;
	baton_names_query_analysed(query);
	baton_function_names_rewritten(running->table->names, query);
}

/* Makes the state that is kept with a FmgrInfo from its first call on. */
static BatonCall *
make_call(const FmgrInfo *function)
{
	BatonCall  *call = MemoryContextAllocZero(function->fn_mcxt, sizeof(BatonCall));
	HeapTuple	tuple = SearchSysCache1(PROCOID,
										ObjectIdGetDatum(function->fn_oid));

	call->function = function->fn_oid;
	call->own_clauses = HeapTupleIsValid(tuple) &&
		(((Form_pg_proc) GETSTRUCT(tuple))->prosecdef ||
		 !heap_attisnull(tuple, Anum_pg_proc_proconfig, NULL));
	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);

	/* without this hook, they would see only these */
	call->others = call->own_clauses || baton_others_need_calls(function->fn_oid);
	return call;
}

BatonCall *
baton_functions_call(FmgrHookEventType event, const FmgrInfo *function, Datum *argument)
{
	/* needs_fmgr_hook is not asked for SECURITY DEFINER and SET clauses */
	if (state == NOT_LOADED && pooled && !baton_unpooled() && event == FHET_START)
		(void) is_plpgsql(function->fn_oid);

	if (state != USABLE ||
		(function->fn_addr != call_handler && function->fn_addr != validator))
		return NULL;
	if (*argument == (Datum) 0)
		*argument = PointerGetDatum(make_call(function));
	return (BatonCall *) DatumGetPointer(*argument);
}

bool
baton_functions_call_is_others(const BatonCall *call)
{
	return call->others;
}

Datum *
baton_functions_call_argument(BatonCall *call)
{
	return &call->next;
}

void
baton_functions_utility_begins(const BatonUtility *utility)
{
	const VariableSetStmt *set;

	/* a block is no call of a function, and uses the same table of casts */
	if (IsA(utility->statement, DoStmt) && pooled && !baton_unpooled())
		renew_casts();
	if (state != USABLE || !IsA(utility->statement, VariableSetStmt))
		return;
	set = (const VariableSetStmt *) utility->statement;
	if (set->kind == VAR_RESET_ALL ||
		(set->name != NULL && environment_has(set->name)))
		changes++;
}

bool
baton_functions_need_calls(Oid function)
{
	return pooled && state != UNUSABLE && !baton_unpooled() && is_plpgsql(function);
}

void
baton_functions_object_access(ObjectAccessType access, Oid object)
{
	if (access == OAT_FUNCTION_EXECUTE && object == F_SET_CONFIG)
		set_configs++;
}

/*
 * A procedure may end its caller's transaction, which undoes the transaction's
 * settings: so a call that has set anything in it counts as having changed the
 * environment again.
 */
void
baton_functions_transaction(void)
{
	if (changes != changes_before || set_configs != set_configs_before)
		changes++;
	changes_before = changes;
	set_configs_before = set_configs;
}

void
baton_functions_begin(void)
{
	pooled = true;
}

const char *
baton_functions_attach(void)
{
#ifdef BATON_SQL_FUNCTIONS_ARE_KEPT
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	sql_handle = baton_function_cache_find();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	if (sql_handle == NULL)
		return "the table of functions was not found";
#endif
	return NULL;
}

void
baton_functions_session_changes(void)
{
	if (sql_handle != NULL)
		baton_function_cache_forget_sql(sql_handle);
	if (state == USABLE)
		renew_casts();
}
