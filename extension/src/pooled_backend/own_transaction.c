/*-------------------------------------------------------------------------
 *
 * own_transaction.c
 *		A transaction of ours in a pooled backend.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "own_transaction.h"

void
baton_own_transaction_start(void)
{
	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactDeferrable = false;
}
