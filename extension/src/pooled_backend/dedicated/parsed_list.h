/*-------------------------------------------------------------------------
 *
 * parsed_list.h
 *		A parameter's list of names, taken apart once for each value.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARSED_LIST_H
#define BATON_PARSED_LIST_H

#include "nodes/pg_list.h"
#include "utils/palloc.h"

/* Of one parameter; static, all zero at first but for `split`. */
typedef struct BatonParsedList
{
	/* SplitIdentifierString or SplitGUCList */
	bool		(*split) (char *text, char separator, List **names);
	MemoryContext context;
	char	   *value;			/* what was taken apart; NULL: nothing */
	List	   *names;			/* char * */
} BatonParsedList;

/* The names in `value`, good until this is asked with another value. */
extern List *baton_parsed_list(BatonParsedList *parsed, const char *value);

/* Is the name, which may be NULL, among those in `value`? */
extern bool baton_parsed_list_has(BatonParsedList *parsed, const char *value, const char *name);

#endif							/* BATON_PARSED_LIST_H */
