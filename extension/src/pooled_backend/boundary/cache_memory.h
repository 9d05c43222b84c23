/*-------------------------------------------------------------------------
 *
 * cache_memory.h
 *		A bound on the memory that a backend keeps beyond one session.
 *
 * See cache_memory.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CACHE_MEMORY_H
#define BATON_CACHE_MEMORY_H

/* Once, when the backend is ready to serve. */
extern void baton_cache_memory_start(void);

/* A statement has run, or a session has left. */
extern void baton_cache_memory_used(void);

/* Looks at the process's memory if that is due.  No transaction may be open. */
extern void baton_cache_memory_look(void);

/* The backend may sleep so long (ms) before the next look; -1: for ever. */
extern long baton_cache_memory_sleep(void);

#endif							/* BATON_CACHE_MEMORY_H */
