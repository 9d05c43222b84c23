/*-------------------------------------------------------------------------
 *
 * pooled_state.c
 *		The state of a pooled backend, grouped by lifetime.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "pooled_state.h"


BatonServedSession BatonServed;

BatonPlacedState BatonPlaced = {
	.params = {
		.list = DLIST_STATIC_INIT(BatonPlaced.params.list)
	},
	.resets = {
		.items = DLIST_STATIC_INIT(BatonPlaced.resets.items),
		.count = -1
	},
	.held = {
		.list = DLIST_STATIC_INIT(BatonPlaced.held.list)
	},
	.environment = {
		.epoch = 1,
		.last_epoch = 1,
		.has_changed = true
	}
};

BatonSelfState BatonSelf = {
	.control = -1,
	.queue = -1,
	.client_number = -1,
	.boundary = {
		.batch_begun = true
	},
	.sockets = {
		.placeholder = -1,
		.placeholder_peer = -1,
		.inject_read = -1,
		.inject_write = -1,
		.kept_client = -1,
		.command_watcher = {.epoll = -1,.watching = true},
		.idle_watcher = {.epoll = -1,.watching = true}
	}
};

bool
baton_may_have_temporary_objects(void)
{
	const BatonPlacedTies *ties = &BatonPlaced.ties;

	return ties->has_temporary_objects || ties->temporary_used;
}

/* ----------------------------------------------------------------
 *		The backend's own transactions.
 * ----------------------------------------------------------------
 */

void
baton_own_transaction_start(void)
{
	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactDeferrable = false;
}
