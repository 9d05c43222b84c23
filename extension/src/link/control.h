/*-------------------------------------------------------------------------
 *
 * control.h
 *		The CONTROL memory, as the processes of the server see it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTROL_H
#define BATON_CONTROL_H

#include "port/atomics.h"

#include "baton_shared.h"

/* Mapped in every process of the server; NULL if the library was not preloaded. */
extern BatonControl *BatonControlMemory;

/* The memfd behind it; -1 if there is none. */
extern int	BatonControlFd;

/* Postmaster only, from _PG_init. */
extern void baton_control_create(int session_slots);

extern BatonBackendSlot *baton_backend_slot(uint32 index);
extern BatonPoolSlot *baton_pool_slot(uint32 index);

/* Of the session slot of that index. */
extern BatonIdentity *baton_identity(uint32 index);
extern char *baton_query_text(uint32 index);

/* Where the directory of process IDs has the holder of this one. */
extern uint32 *baton_pid_entry(int pid);

/*
 * The words that two processes write at once are plain fields in the shared
 * layout; PostgreSQL's atomics have no other representation on the machines
 * we support (asserted in layout.c).
 */
#define baton_atomic_u32(field) ((pg_atomic_uint32 *) (void *) &(field))
#define baton_atomic_u64(field) ((pg_atomic_uint64 *) (void *) &(field))

#endif							/* BATON_CONTROL_H */
