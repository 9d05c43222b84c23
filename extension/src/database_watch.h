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

/* From _PG_init, in the postmaster. */
extern void baton_database_watch_init(void);

#endif							/* BATON_DATABASE_WATCH_H */
