/*-------------------------------------------------------------------------
 *
 * taint_listed.c
 *		What is to be known of a function that is looked up to be called: does
 *		it dedicate a backend because an administrator says so, and whose code
 *		is it?
 *
 * pg_baton.dedicated_objects lists names of functions, extensions and
 * languages that keep a session's state in the process where no one can see
 * it.  A function is listed if its own name, its extension or its language
 * is.  This is asked each time a function that is not built in is looked up
 * for a call, so the verdicts are kept, by function oid; all of them are
 * dropped when any pg_proc row changes (creating an extension or a language
 * always creates functions) and when the list does.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "parameters.h"
#include "parsed_list.h"
#include "taint_library.h"
#include "taint_watch.h"

/* pg_baton.dedicated_objects; defined in parameters.c */
char	   *baton_dedicated_objects = NULL;

typedef struct Verdict
{
	Oid			function;		/* hash key */
	bool		listed;
	const BatonTlsFunction *tls;	/* NULL: none of sslinfo's */
} Verdict;

static HTAB *verdicts = NULL;
static bool verdicts_stale = false;

/* The value of the parameter that the verdicts were made with. */
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

	/* Memory may run out at any point: nothing half made may be found. */
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
 * language's handler.  NULL: the server itself.
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

/* A C function of that library. */
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

	/* what this backend has used stays so, whoever calls it */
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

	/* reads catalogs, so may fail, and may have verdicts_stale set */
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
