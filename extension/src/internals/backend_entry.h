/*-------------------------------------------------------------------------
 *
 * backend_entry.h
 *		What the server shows of a backend, and whose it is.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_BACKEND_ENTRY_H
#define BATON_BACKEND_ENTRY_H

#include "libpq/pqcomm.h"
#include "utils/backend_status.h"

#include "baton_shared.h"

/*
 * A backend that starts, before InitPostgres(): the entry that the server makes of
 * its client's address is a pooled backend's from its beginning, and nobody's.
 */
extern void baton_entry_begin_as_nobody(SockAddr *address);

/*
 * This backend's own entry: who is shown there from now on, NULL for nobody, at
 * the address that MyProcPort says, since `start`.
 */
extern void baton_entry_show(TimestampTz start, const BatonIdentity *identity);
extern void baton_entry_forget_session(void);

/* This backend's own entry: the role that it is shown as. */
extern void baton_entry_set_role(Oid role);

/* This backend's own entry: the TLS that its client has with somebody else. */
extern void baton_entry_set_tls(const BatonTls *tls);

/*
 * Whose is an entry?  False if it is no pooled backend's; else the session's
 * process ID, 0 if none is in place.
 */
extern bool baton_entry_session(const PgBackendStatus *entry, int *pid);

/* The transaction's copy of all entries: the nth, from 0; NULL if there is none. */
extern LocalPgBackendStatus *baton_entry_local(int n);

/* The number by which pg_stat_get_backend_pid() and its like know the nth. */
extern int	baton_entry_id(int n);

/* What those functions find under such a number; NULL if nothing. */
extern PgBackendStatus *baton_entry_by_id(int id);

#endif							/* BATON_BACKEND_ENTRY_H */
