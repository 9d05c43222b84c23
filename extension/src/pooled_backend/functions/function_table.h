/*-------------------------------------------------------------------------
 *
 * function_table.h
 *		PL/pgSQL's compiled functions, separate for each environment.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_FUNCTION_TABLE_H
#define BATON_FUNCTION_TABLE_H

#include "catalog/objectaccess.h"
#include "fmgr.h"
#include "parser/parse_node.h"
#include "utils/palloc.h"

#include "catalog_watch.h"

/* ----------------------------------------------------------------
 *		What a compiled PL/pgSQL function and its plans depend on.
 * ----------------------------------------------------------------
 */

#define ENVIRONMENT_SETTINGS_MAX 32

typedef struct Environment
{
	uint64		hash;
	Oid			role;			/* current_user; InvalidOid: equals none */
	bool		has_temporary;	/* a temporary namespace is shown */
	uint64		session;		/* session that has temporary objects; 0: none
								 * has */
	int			ints[ENVIRONMENT_SETTINGS_MAX];
	bool		bools[ENVIRONMENT_SETTINGS_MAX];
	char	   *strings[ENVIRONMENT_SETTINGS_MAX];	/* copies of its own */
} Environment;

/* ----------------------------------------------------------------
 *		PL/pgSQL's compiled functions, separate for each environment.
 * ----------------------------------------------------------------
 */

/* This backend will pool; called before any user-defined function runs. */
extern void baton_functions_begin(void);

/*
 * Called once, at attach. Returns NULL, or the reason why this backend cannot
 * pool.
 */
extern const char *baton_functions_attach(void);

/*
 * The last use of the least recently used environment, if that is no later
 * than `before` (values of BatonSelf.memory.uses); 0: there is none. The
 * second function frees its functions.
 */
extern uint64 baton_functions_oldest(uint64 before);
extern void baton_functions_drop_oldest(uint64 before);

/* Another session than before is put in place. */
extern void baton_functions_session_changes(void);

/*
 * Called from pg_baton.c: a statement begins, an object is executed, a
 * transaction ends.
 */
extern void baton_functions_utility_begins(const BatonUtility *utility);
extern void baton_functions_object_access(ObjectAccessType access, Oid object);
extern void baton_functions_transaction(void);
extern void baton_functions_analysed(ParseState *pstate, Query *query);

/*
 * Also called from pg_baton.c, when a function is looked up: must its calls be
 * seen? And when it is called: what is kept with it, NULL if it is not one of
 * plpgsql's; whether other hooks see it, too, and with which argument.
 */
typedef struct BatonCall BatonCall;

extern bool baton_functions_need_calls(Oid function);
extern BatonCall *baton_functions_call(FmgrHookEventType event, const FmgrInfo *function,
									   Datum *argument);
extern void baton_functions_call_begins(FmgrInfo *function, BatonCall *call);
extern void baton_functions_call_ends(const FmgrInfo *function, BatonCall *call);
extern bool baton_functions_call_is_others(const BatonCall *call);
extern Datum *baton_functions_call_argument(BatonCall *call);

#endif							/* BATON_FUNCTION_TABLE_H */
