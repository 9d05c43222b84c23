/*-------------------------------------------------------------------------
 *
 * analysed_once.c
 *		Queries that are analysed, run and forgotten.
 *
 * What a kept query means by its names is noted as it is analysed, by a walk
 * through its tree.  Most queries are not kept, and these can be told apart by what
 * they are analysed with (15 to 18 read):
 *	- The statements of a Query message have no hook for parameters, no portal is
 *	  active, and the text is the message itself: it lies in MessageContext
 *	  (PostgresMain, exec_simple_query in postgres.c).  That of a kept statement, which
 *	  is analysed again as it is bound, lies in the memory of its plan source
 *	  (CreateCachedPlan in plancache.c; exec_bind_message).  Parse and PREPARE have
 *	  the hook for variable parameters (parse_analyze_varparams).
 *	- What plpgsql's EXECUTE ... USING runs has the hook of a list of values
 *	  (paramlist_parser_setup in params.c): SPI makes a plan that it does not save
 *	  (SPI_execute_extended, SPI_cursor_parse_open in spi.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/params.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"

#include "analysed_once.h"

/* The hook of paramlist_parser_setup(), which is static, as it sets it. */
static ParseParamRefHook
list_hook(void)
{
	static ParseParamRefHook hook = NULL;

	if (hook == NULL)
	{
		ParseState *pstate = make_parsestate(NULL);
		ParamListInfo list = makeParamList(0);

		list->parserSetup(pstate, list->parserSetupArg);
		hook = pstate->p_paramref_hook;
		free_parsestate(pstate);
		pfree(list);
	}
	return hook;
}

bool
baton_analysed_for_once(const ParseState *pstate)
{
	if (pstate->p_paramref_hook != NULL)
		return pstate->p_paramref_hook == list_hook();
	return ActivePortal == NULL && debug_query_string != NULL &&
		pstate->p_sourcetext == debug_query_string &&
		GetMemoryChunkContext(unconstify(char *, debug_query_string)) == MessageContext;
}
