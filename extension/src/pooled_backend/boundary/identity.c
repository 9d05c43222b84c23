/*-------------------------------------------------------------------------
 *
 * identity.c
 *		Who the backend says it serves: addresses in MyProcPort (log lines,
 *		inet_client_addr) and in pg_stat_activity, start times, SYSTEM_USER.
 *
 * MyProcPort's strings point into BatonPlaced; nothing in the server
 * frees them (remote_host and remote_port are set once, in BackendInitialize,
 * postmaster.c, backend_startup.c since 18).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>

#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "arena.h"
#include "backend_entry.h"
#include "client_identity.h"
#include "client_port.h"
#include "control.h"
#include "identity.h"
#include "pooled_state.h"
#include "session_pid.h"

static BatonPlacedIdentity *const placed = &BatonPlaced.identity;

/*
 * The client's address as text.  Many sessions come from one address, and
 * inet_ntop() costs more than all the rest of who a session is.
 */
static void
write_remote(const BatonSessionRecord *record)
{
	StaticAssertStmt(sizeof(placed->address) == sizeof(record->peer_address),
					 "an address has its room");

	if (record->peer_family != AF_INET && record->peer_family != AF_INET6)
	{
		placed->family = AF_UNSPEC;
		strlcpy(placed->remote_host, "[local]", sizeof(placed->remote_host));
		placed->remote_port[0] = '\0';
		return;
	}
	if (record->peer_family != placed->family || placed->is_nobody ||
		memcmp(record->peer_address, placed->address, sizeof(placed->address)) != 0)
	{
		if (inet_ntop(record->peer_family, record->peer_address,
					  placed->remote_host, INET6_ADDRSTRLEN) == NULL)
			strlcpy(placed->remote_host, "???", sizeof(placed->remote_host));
		placed->family = record->peer_family;
		memcpy(placed->address, record->peer_address, sizeof(placed->address));
	}
	placed->remote_port[pg_ultoa_n(record->peer_port, placed->remote_port)] = '\0';
}

/* How its client has proved itself.  All sessions of one user share an entry. */
static void
put_authenticated(const BatonSessionRecord *record)
{
	BatonStored stored;
	const BatonStored *entry = NULL;
	char	   *copy;

	if (!baton_client_identities())
		return;
	if (record->authenticated != 0)
		entry = baton_entry(&stored, record->authenticated);
	if ((entry != NULL ? entry->serial : 0) == placed->authenticated)
		return;

	/* nobody's, should there be no memory for the next one's */
	baton_client_identity_put(NULL);
	placed->authenticated = 0;
	if (placed->authenticated_as != NULL)
		pfree(placed->authenticated_as);
	placed->authenticated_as = NULL;
	if (entry == NULL || entry->kind != BATON_KIND_AUTHENTICATED)
		return;

	copy = MemoryContextAllocZero(TopMemoryContext,
								  (Size) entry->key_length + 1 + entry->value_length + 1);
	memcpy(copy, entry->key, entry->key_length);
	copy[entry->key_length] = ':';
	memcpy(copy + entry->key_length + 1, entry->value, entry->value_length);
	placed->authenticated_as = copy;
	placed->authenticated = entry->serial;
	baton_client_identity_put(copy);
}

void
baton_identity_put(const BatonSessionRecord *record)
{
	const BatonPortEnd remote = {
		.family = record->peer_family,
		.port = record->peer_port,
		.address = record->peer_address,
		.scope = record->peer_scope
	};
	const BatonPortEnd local = {
		.family = record->peer_family,
		.port = record->local_port,
		.address = record->local_address,
		.scope = record->peer_scope
	};

	baton_port_set_ends(&remote, &local);
	write_remote(record);
	baton_port_set_remote_text(placed->remote_host, placed->remote_port);
	baton_port_set_protocol(record->protocol);
	put_authenticated(record);

	/* see keepalive.c */
	baton_port_forget_keepalives();

	MyStartTimestamp = record->login_time_us;
	MyStartTime = timestamptz_to_time_t(MyStartTimestamp);

	/*
	 * elog.c (15 to 18) keeps the start as text once it has been logged: %s
	 * and the session_start of csvlog and jsonlog would be an earlier
	 * session's.
	 */
	reset_formatted_start_time();
	baton_entry_show(record->login_time_us, baton_identity((uint32) record->id));
	if (placed->is_nobody)
	{
		/* the context's own may be the same, and then is not assigned */
		pgstat_report_appname(application_name);
		placed->is_nobody = false;
	}
}

void
baton_identity_clear(void)
{
	const BatonPortEnd nowhere = {.family = AF_UNIX};

	if (placed->is_nobody)
		return;
	placed->is_nobody = true;
	baton_port_set_ends(&nowhere, &nowhere);
	strlcpy(placed->remote_host, "[local]", sizeof(placed->remote_host));
	placed->remote_port[0] = '\0';
	baton_port_set_remote_text(placed->remote_host, placed->remote_port);
	baton_entry_show(GetCurrentTimestamp(), NULL);
	pgstat_report_appname("");
}
