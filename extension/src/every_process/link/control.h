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

/*
 * Its header as the postmaster made it, of which only what never changes means
 * anything: counts, offsets, the secret.  Private to the process.
 */
extern BatonControl BatonControlMade;

/* The memfd behind it; -1 if there is none. */
extern int	BatonControlFd;

/* Postmaster only, from _PG_init. */
extern void baton_control_create(int session_slots);

/* The server starts again after a crash; or a dispatcher is to be started. */
extern void baton_control_restore(void);

/*
 * The parts.  An index that is out of range ends the process (FATAL); so does the
 * name of a session whose slot another has, or none (baton_session_slot).
 */
extern BatonBackendSlot *baton_backend_slot(uint32 index);
extern BatonPoolSlot *baton_pool_slot(uint32 index);
extern BatonTenantSlot *baton_tenant_slot(uint32 index);
extern BatonSessionSlot *baton_session_slot(uint64 session);
extern BatonStatementCounter *baton_counter(uint32 index);

/* Whoever has it: for those who only look at it. */
extern BatonSessionSlot *baton_session_slot_at(uint32 index);

/* Is there a session of that name?  It may have ended when this returns. */
extern bool baton_session_is_named(uint64 session);

/* Of the session slot of that index. */
extern BatonIdentity *baton_identity(uint32 index);

/* No session has had one from here on. */
extern uint32 baton_identities_used(void);
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
