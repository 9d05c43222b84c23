/*-------------------------------------------------------------------------
 *
 * analysed_once.h
 *		Queries that are analysed, run and forgotten.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ANALYSED_ONCE_H
#define BATON_ANALYSED_ONCE_H

#include "parser/parse_node.h"

/*
 * Is the query, whose analysis ends, surely one that nothing keeps beyond its
 * execution?  False in doubt.
 */
extern bool baton_analysed_for_once(const ParseState *pstate);

#endif							/* BATON_ANALYSED_ONCE_H */
