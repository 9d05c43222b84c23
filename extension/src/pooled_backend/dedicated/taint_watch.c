/*-------------------------------------------------------------------------
 *
 * taint_watch.c
 *		The hooks that notice what may tie a session to its backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "context_objects.h"
#include "parameters.h"
#include "pg_guc.h"
#include "pid_views.h"
#include "pooled_state.h"
#include "self_check.h"
#include "statement_tracking.h"
#include "taint_rules.h"
#include "taint_watch.h"

/* ----------------------------------------------------------------
 *		The objects that the present transaction has made and not dropped again.
 *
 * Whether a session has temporary objects is looked up in pg_depend, in a
 * transaction of its own. A transaction that drops all that it has made, as
 * CREATE TEMP TABLE ... ON COMMIT DROP does (PreCommit_on_commit_actions in
 * tablecmds.c), cannot have changed the answer, and shall not pay for a
 * look-up: that also meets the index entries of all the temporary tables that
 * have gone since the last VACUUM.
 *
 * What PostgreSQL guarantees (15 to 18): all code that creates an object calls
 * the object access hook with OAT_POST_CREATE. Each object that is dropped,
 * whether by itself, by a cascade or at commit, goes through deleteOneObject()
 * (dependency.c), which first calls the hook with OAT_DROP. An object that was
 * dropped in another way would seem to be left, and be looked for.
 *
 * Columns and the like (`sub`) come and go with the object that they belong
 * to.
 * ----------------------------------------------------------------
 */

/* A table with a key, a serial column and a TOAST table is 12 objects. */
#define MADE_MAX 128

static struct
{
	Oid			class;
	Oid			object;
}			made[MADE_MAX];
static int	made_count = 0;
static bool too_many = false;	/* made[] has no room for more */
static bool some_undone = false;	/* one of the objects made was dropped */
static bool restored = false;	/* ... which may have been rolled back */
static bool others_dropped = false;

/* The object access hook: an object was created, or is about to be dropped. */
static void
objects_created(Oid class, Oid object, int sub)
{
	if (sub != 0)
		return;
	if (made_count == MADE_MAX)
	{
		too_many = true;
		return;
	}
	made[made_count].class = class;
	made[made_count].object = object;
	made_count++;
}

static void
baton_objects_dropped(Oid class, Oid object, int sub)
{
	if (sub != 0)
		return;
	for (int i = made_count - 1; i >= 0; i--)
	{
		if (made[i].object == object && made[i].class == class)
		{
			made[i] = made[--made_count];
			some_undone = true;
			return;
		}
	}
	others_dropped = true;
}

/* A subtransaction was rolled back: what it dropped exists again. */
static void
objects_restored(void)
{
	restored = some_undone;
}

static BatonObjectsLeft
objects_left(void)
{
	BatonObjectsLeft left;

	left.made = made_count > 0 || too_many || restored;
	left.dropped = others_dropped;
	left.came_and_went = some_undone && !left.made;
	return left;
}

/* Called at each transaction's end. */
static void
objects_forget(void)
{
	made_count = 0;
	too_many = some_undone = restored = others_dropped = false;
}

/* ----------------------------------------------------------------
 *		The hooks that notice what may tie a session to its backend.
 *
 * What can be read from the process at a boundary for next to nothing (locks,
 * held cursors, backup mode, replication origin) needs no hook; taint.c reads
 * it. The hooks are for the rest, and only note it: whether it took effect (a
 * LISTEN may be rolled back) is looked up at the boundary. They are installed
 * in the postmaster, run in every process of the server, and only pass the
 * call on if the process is no pooled backend.
 *
 * What each is called for (15; checked in the files named):
 *
 * - ProcessUtility_hook: every utility statement (pg_baton.c).
 * - object_access_hook, OAT_FUNCTION_EXECUTE: every function that an
 *   expression, aggregate, window or set-returning function, CALL or the
 *   function-call message executes (execExpr.c, execSRF.c, nodeAgg.c,
 *   nodeWindowAgg.c, functioncmds.c, fastpath.c). It shows built-in functions,
 *   and is the only hook that the function-call message certainly reaches: a
 *   cancel that has waited for that message fires here (identity.c).
 * - object_access_hook, OAT_POST_CREATE and OAT_DROP: every object of any
 *   kind, cascades included (deleteOneObject() in dependency.c).
 * - needs_fmgr_hook: every look-up of a function that is not built in for a
 *   call, also as a trigger, as a DO block's handler, as a type's input or
 *   output function, where OAT_FUNCTION_EXECUTE is silent
 *   (fmgr_info_cxt_security() in fmgr.c). It is not called for SECURITY
 *   DEFINER functions and those with a SET clause; these go through
 *   fmgr_security_definer(), which calls fmgr_hook.
 * - the assign hook of the parameter "seed": SET, set_config() and functions'
 *   SET clauses; assign_random_seed() calls setseed() without any hook.
 * ----------------------------------------------------------------
 */

static BatonPlacedTies *const ties = &BatonPlaced.ties;

static GucRealAssignHook server_assign_seed = NULL;

/* dl_iterate_phdr() callback: the number of libraries ever loaded. */
static int
count_loads(struct dl_phdr_info *info, size_t size, void *argument)
{
	*(unsigned long long *) argument = info->dlpi_adds;
	return 1;
}

static unsigned long long
loads(void)
{
	unsigned long long count = 0;

	dl_iterate_phdr(count_loads, &count);
	return count;
}

void
baton_taint_utility_begins(BatonUtility *utility)
{
	switch (nodeTag(utility->statement))
	{
		case T_LoadStmt:
			utility->loads = true;
			if (!ties->load_tried)
				ties->loads_before = loads();
			ties->load_tried = true;
			break;
		case T_ListenStmt:
		case T_UnlistenStmt:
		case T_DiscardStmt:
			ties->listening_changed = true;
			break;
		default:
			break;
	}
}

/* A library stays even if the transaction is rolled back. */
void
baton_taint_utility_done(const BatonUtility *utility)
{
	if (utility->loads)
		ties->loaded = true;
}

void
baton_taint_look_at_loads(void)
{
	if (loads() != ties->loads_before)
		ties->loaded = true;
	ties->load_tried = false;
}

/* An expression is about to execute this function. */
static void
note_builtin(Oid function)
{
	switch (function)
	{
		case F_SETSEED:
			ties->seeded = true;
			break;
		case F_SET_CONFIG:
			baton_notice_set_config();
			break;
		case F_PG_PREPARED_STATEMENT:
			baton_notice_listing();
			break;
		case F_PG_CREATE_PHYSICAL_REPLICATION_SLOT:
		case F_PG_CREATE_LOGICAL_REPLICATION_SLOT:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL_NAME:
		case F_PG_DROP_REPLICATION_SLOT:
			ties->slots_changed = true;
			break;
		default:
			break;
	}
}

void
baton_taint_object_access(ObjectAccessType access, Oid class, Oid object, int sub)
{
	if (!BatonSelf.notes_ties)
		return;

	switch (access)
	{
		case OAT_FUNCTION_EXECUTE:
			note_builtin(object);
			baton_planning_function(object);
			break;
		case OAT_POST_CREATE:
			objects_created(class, object, sub);
			break;
		case OAT_DROP:
			baton_objects_dropped(class, object, sub);
			break;
		default:
			break;
	}
}

/*
 * A function is looked up, or called. Returns its entry if it is one of
 * sslinfo's, else NULL. In processes without relayed TLS sslinfo itself knows
 * all that it reports.
 */
static const BatonTlsFunction *
note_function(Oid function)
{
	const BatonTlsFunction *tls;

	if (!BatonSelf.notes_ties && baton_relayed_tls.in_use == 0)
		return NULL;
	if (baton_function_is_listed(function, &tls))
		ties->listed_object = true;
	return tls;
}

bool
baton_taint_function(Oid function)
{
	return note_function(function) != NULL;
}

void
baton_taint_call(FmgrHookEventType event, FmgrInfo *function)
{
	const BatonTlsFunction *tls;

	if (event == FHET_START)
	{
		tls = note_function(function->fn_oid);
		if (tls != NULL)
			baton_tls_function_call(function, tls);
	}
	baton_notice_settings();
}

/* assign_random_seed() seeds only if a user set the value. */
static void
watch_assign_seed(double value, void *extra)
{
	if (*(int *) extra != 0)
		ties->seeded = true;
	server_assign_seed(value, extra);
}

static void
watch_seed_parameter(void)
{
	if (baton_self_check_is_broken("seed") ||
		!baton_guc_hook_real("seed", watch_assign_seed, &server_assign_seed))
		baton_self_check_failed(BATON_COSTS_POOLING, "parameter \"seed\" is not as expected");
}

/*
 * MyXactFlags is reset when the next transaction starts (StartTransaction() in
 * xact.c), so it must be read at each transaction's end. An abort undoes what
 * the transaction did to temporary objects. A prepared transaction has done
 * nothing to them (PrepareTransaction() refuses to prepare one that has
 * touched any), and nothing else stays in this session.
 */
void
baton_taint_transaction(XactEvent event)
{
	if (!BatonSelf.notes_ties)
		return;
	if (event == XACT_EVENT_COMMIT)
	{
		BatonObjectsLeft left = objects_left();

		ties->objects_made |= left.made;
		ties->objects_dropped |= left.dropped;
		if ((MyXactFlags & XACT_FLAGS_ACCESSEDTEMPNAMESPACE) != 0 &&
			!left.came_and_went)
			ties->temporary_used = true;
		baton_temporary_commits();
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE)
		objects_forget();
}

void
baton_taint_subtransaction(SubXactEvent event)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		objects_restored();
}

void
baton_taint_watch_init(void)
{
	watch_seed_parameter();
}

/* ----------------------------------------------------------------
 *		What is known about a function that is looked up for a call: whether
 *		it dedicates a backend because an administrator lists it, and which
 *		library it belongs to.
 *
 * pg_baton.dedicated_objects lists names of functions, extensions and
 * languages that keep a session's state invisibly in the process. A function
 * is listed if its own name, its extension or its language is. Each look-up of
 * a function that is not built in asks this, so the verdicts are kept, by
 * function oid. All of them are dropped when any pg_proc row changes (creating
 * an extension or a language always creates functions) and when the list does.
 * ----------------------------------------------------------------
 */

/* pg_baton.dedicated_objects; defined in parameters.c */
char	   *baton_dedicated_objects = NULL;

typedef struct Verdict
{
	Oid			function;		/* hash key */
	bool		listed;
	const BatonTlsFunction *tls;	/* NULL: not one of sslinfo's */
} Verdict;

static HTAB *verdicts = NULL;
static bool verdicts_stale = false;

/* The value of the parameter for which the verdicts were made. */
static char *verdicts_list = NULL;

static void
forget_verdicts(Datum argument, int cache, uint32 hash_value)
{
	verdicts_stale = true;
}

static void
make_verdicts(void)
{
	static bool registered = false;
	HASHCTL		control;

	if (!registered)
		CacheRegisterSyscacheCallback(PROCOID, forget_verdicts, (Datum) 0);
	registered = true;

	/* Memory may run out at any point: nothing half made may remain. */
	if (verdicts != NULL)
		hash_destroy(verdicts);
	verdicts = NULL;
	if (verdicts_list != NULL)
		pfree(verdicts_list);
	verdicts_list = NULL;
	verdicts_list = MemoryContextStrdup(TopMemoryContext, baton_dedicated_objects);

	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Verdict);
	verdicts = hash_create("pg_baton listed functions", 64, &control,
						   HASH_ELEM | HASH_BLOBS);
	verdicts_stale = false;
}

static bool
is_listed(const char *name)
{
	static BatonParsedList dedicated = {.split = SplitIdentifierString};

	return baton_parsed_list_has(&dedicated, baton_dedicated_objects, name);
}

static bool
judge_listed(Oid function, const char *extension)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	Oid			language;
	bool		listed;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	listed = is_listed(NameStr(form->proname));
	language = form->prolang;
	ReleaseSysCache(tuple);
	return listed || is_listed(get_language_name(language, true)) || is_listed(extension);
}

/*
 * The library that a call of the function runs in: its own, or that of its
 * language's handler. NULL: the server itself.
 */
static char *
library_of(Oid function, bool is_handler)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	HeapTuple	language;
	Oid			language_oid;
	Oid			handler;
	char	   *library = NULL;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	language_oid = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
	if (language_oid == ClanguageId)
	{
		bool		is_null;
		Datum		file = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin, &is_null);

		if (!is_null)
			library = TextDatumGetCString(file);
	}
	ReleaseSysCache(tuple);
	if (is_handler || language_oid == ClanguageId || language_oid == INTERNALlanguageId ||
		language_oid == SQLlanguageId)
		return library;

	language = SearchSysCache1(LANGOID, ObjectIdGetDatum(language_oid));
	if (!HeapTupleIsValid(language))
		return NULL;
	handler = ((Form_pg_language) GETSTRUCT(language))->lanplcallfoid;
	ReleaseSysCache(language);
	return library_of(handler, true);
}

/* The entry for a C function of that library. */
static const BatonTlsFunction *
tls_function(Oid function, const char *library)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	const BatonTlsFunction *found = NULL;
	Datum		symbol;
	bool		is_null;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	symbol = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &is_null);
	if (!is_null && ((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId)
		found = baton_tls_function_find(library, TextDatumGetCString(symbol));
	ReleaseSysCache(tuple);
	return found;
}

static Verdict
judge(Oid function)
{
	Oid			oid = getExtensionOfObject(ProcedureRelationId, function);
	const char *extension = OidIsValid(oid) ? get_extension_name(oid) : NULL;
	char	   *library = library_of(function, false);
	Verdict		verdict = {.function = function};

	/*
	 * this backend has used the library from now on, whatever session calls
	 * it
	 */
	if (library != NULL)
		baton_taint_library_used(library);
	verdict.listed = judge_listed(function, extension);
	if (library != NULL)
		verdict.tls = tls_function(function, library);
	return verdict;
}

static Verdict
verdict_of(Oid function)
{
	Verdict    *verdict;
	Verdict		made;

	if (verdicts == NULL || verdicts_stale ||
		strcmp(verdicts_list, baton_dedicated_objects) != 0)
		make_verdicts();
	verdict = hash_search(verdicts, &function, HASH_FIND, NULL);
	if (verdict != NULL)
		return *verdict;

	/* reads catalogs, so may fail, and may set verdicts_stale */
	made = judge(function);
	verdict = hash_search(verdicts, &function, HASH_ENTER, NULL);
	*verdict = made;
	return made;
}

bool
baton_function_is_listed(Oid function, const BatonTlsFunction **tls)
{
	Verdict		verdict = verdict_of(function);

	*tls = verdict.tls;
	return verdict.listed;
}
