/*-------------------------------------------------------------------------
 *
 * database_watch.h
 *		Leaving a database that somebody wants for himself.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DATABASE_WATCH_H
#define BATON_DATABASE_WATCH_H

#include "utility_hook.h"

/* A utility statement begins. */
extern void baton_database_utility_begins(const BatonUtility *utility);

#endif							/* BATON_DATABASE_WATCH_H */
