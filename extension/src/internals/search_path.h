/*-------------------------------------------------------------------------
 *
 * search_path.h
 *		The search path that a plan was analysed with.
 *
 * namespace.h calls it OverrideSearchPath up to 16 and SearchPathMatcher from
 * 17 on; the fields and what it compares are the same.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SEARCH_PATH_H
#define BATON_SEARCH_PATH_H

#include "catalog/namespace.h"

#if PG_VERSION_NUM >= 170000
typedef SearchPathMatcher BatonSearchPath;

#define baton_search_path_matches(path) SearchPathMatchesCurrentEnvironment(path)
#define baton_search_path_get(context) GetSearchPathMatcher(context)
#else
typedef OverrideSearchPath BatonSearchPath;

#define baton_search_path_matches(path) OverrideSearchPathMatchesCurrent(path)
#define baton_search_path_get(context) GetOverrideSearchPath(context)
#endif

#endif							/* BATON_SEARCH_PATH_H */
