/*-------------------------------------------------------------------------
 *
 * context_unpooled.h
 *		The session context in a backend that keeps one session for life.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_UNPOOLED_H
#define BATON_CONTEXT_UNPOOLED_H

#include "baton_shared.h"

/*
 * Applies the session's startup options; in a transaction.  ereport(ERROR)s as
 * the server does if one is bad.
 */
extern void baton_unpooled_startup(const BatonSessionRecord *record);

/*
 * Tells the client all that is reported, and appends it to *reported as
 * GREETED has it.
 */
extern void baton_unpooled_report(StringInfo reported);

/*
 * Takes a session that has been greeted elsewhere and has done nothing since.
 * ereport(ERROR)s if it has.
 */
extern void baton_unpooled_install(const BatonSessionRecord *record);

#endif							/* BATON_CONTEXT_UNPOOLED_H */
