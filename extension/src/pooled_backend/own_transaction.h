/*-------------------------------------------------------------------------
 *
 * own_transaction.h
 *		A transaction of ours in a pooled backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_OWN_TRANSACTION_H
#define BATON_OWN_TRANSACTION_H

/*
 * For ordinary snapshots whatever default_transaction_*
 * are: a serializable one that only reads and is deferrable waits for others
 * to end, and a standby has none.
 */
extern void baton_own_transaction_start(void);

#endif							/* BATON_OWN_TRANSACTION_H */
