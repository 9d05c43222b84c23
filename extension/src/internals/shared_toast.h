/*-------------------------------------------------------------------------
 *
 * shared_toast.h
 *		A toasted value of a shared catalog, for a process without a database.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SHARED_TOAST_H
#define BATON_SHARED_TOAST_H

/*
 * The value that an external datum on disk points to, as it would be inline (still
 * compressed if it is); NULL if it is not there as a whole.  In a transaction, with
 * a snapshot registered that is as old as the datum.
 */
extern struct varlena *baton_shared_toast_fetch(const struct varlena *external,
												Oid toast, Oid index);

#endif							/* BATON_SHARED_TOAST_H */
