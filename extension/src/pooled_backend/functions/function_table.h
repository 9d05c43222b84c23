/*-------------------------------------------------------------------------
 *
 * function_table.h
 *		PL/pgSQL's compiled functions, apart for each environment.
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
 *		What a compiled PL/pgSQL function and its plans take in.
 * ----------------------------------------------------------------
 */

#define ENVIRONMENT_SETTINGS_MAX 32

typedef struct Environment
{
	uint64		hash;
	Oid			role;			/* current_user; InvalidOid: like none */
	bool		has_temporary;	/* a temporary namespace is shown */
	uint64		session;		/* that has temporary objects, 0: none has */
	int			ints[ENVIRONMENT_SETTINGS_MAX];
	bool		bools[ENVIRONMENT_SETTINGS_MAX];
	char	   *strings[ENVIRONMENT_SETTINGS_MAX];	/* its own */
} Environment;

/* ----------------------------------------------------------------
 *		PL/pgSQL's compiled functions, apart for each environment.
 * ----------------------------------------------------------------
 */

/* This backend will pool; before it calls any function of a user's. */
extern void baton_functions_begin(void);

/* Once, at attach.  NULL, or why this backend cannot pool. */
extern const char *baton_functions_attach(void);

/*
 * The last use of the environment that was used longest ago, if it was used no
 * later than `before` (numbers of BatonSelf.memory.uses); 0: there is none.  And
 * frees its functions.
 */
extern uint64 baton_functions_oldest(uint64 before);
extern void baton_functions_drop_oldest(uint64 before);

/* Another session is put in place than the one before. */
extern void baton_functions_session_changes(void);

/* From pg_baton.c: a statement begins, an object is executed, a transaction ends. */
extern void baton_functions_utility_begins(const BatonUtility *utility);
extern void baton_functions_object_access(ObjectAccessType access, Oid object);
extern void baton_functions_transaction(void);
extern void baton_functions_analysed(ParseState *pstate, Query *query);

/*
 * Likewise, of a function that is looked up: shall its calls be seen?  And of a
 * call that is: what is kept with it, NULL if it is none of plpgsql's; whether
 * others see it, too, with which argument of theirs.
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
