/*-------------------------------------------------------------------------
 *
 * statement_make.h
 *		Making a prepared statement from its description.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_MAKE_H
#define BATON_STATEMENT_MAKE_H

#include "utils/plancache.h"

/*
 * Makes an unsaved plan below the current context; no transaction is needed,
 * no catalog is looked at.  NULL if the description cannot be understood.
 */
extern CachedPlanSource *baton_statement_make(const char *value, Size length,
											  bool *from_sql);

/*
 * Turns a saved plan into the one that is described, in place.  False if that
 * cannot be done; the plan is then as it was.
 */
extern bool baton_statement_refill(CachedPlanSource *plan,
								   const char *value, Size length);

#endif							/* BATON_STATEMENT_MAKE_H */
