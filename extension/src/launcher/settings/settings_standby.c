/*-------------------------------------------------------------------------
 *
 * settings_standby.c
 *		Noticing on a standby what a backend reads only when it starts.
 *
 * Problem: what settings_watch.c sees in the transaction that changes roles
 * or their settings happens on the primary.  Here the startup process replays
 * it, in which nothing of ours runs, and backends from before would go on to
 * serve new clients.
 *
 * Decision: on a standby the launcher is asked about each client that logs in
 * (login.c lets nothing be kept there), and looks before it answers: the rows of
 * pg_db_role_setting that a new backend would see are compared with the last
 * time's.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"

#include "settings_scan.h"
#include "settings_standby.h"
#include "settings_watch.h"

/* Was this a standby when we last looked?  The look after still counts. */
static bool was_standby = false;

static uint64 last_fingerprint = 0;

static void
add_row(HeapTuple tuple, void *argument)
{
	*(uint64 *) argument += baton_settings_row_hash(tuple);
}

/* One number for the rows of pg_db_role_setting, as settings_watch.c makes it. */
static uint64
settings_fingerprint(void)
{
	uint64		fingerprint = 0;

	baton_settings_scan(add_row, &fingerprint);
	return fingerprint;
}

void
baton_settings_standby_look(void)
{
	bool		is_standby = RecoveryInProgress();
	uint64		fingerprint;

	if (!is_standby && !was_standby)
		return;
	fingerprint = settings_fingerprint();
	if (fingerprint != last_fingerprint || is_standby != was_standby)
		baton_role_settings_changed(InvalidOid, InvalidOid);
	last_fingerprint = fingerprint;
	was_standby = is_standby;
}
