/*-------------------------------------------------------------------------
 *
 * identity.c
 *		Who the backend says it serves: addresses in MyProcPort (log lines,
 *		inet_client_addr) and in pg_stat_activity, start times.
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
#include "utils/timestamp.h"

#include "address.h"
#include "backend_entry.h"
#include "control.h"
#include "identity.h"
#include "pooled_state.h"
#include "session_pid.h"

static BatonPlacedIdentity *const placed = &BatonPlaced.identity;

/* As pgstat_bestart (backend_status.c) does once in a backend's life. */
static void
report_identity(TimestampTz start, const BatonIdentity *identity)
{
	volatile PgBackendStatus *entry = MyBEEntry;

	if (entry == NULL)
		return;
	PGSTAT_BEGIN_WRITE_ACTIVITY(entry);
	entry->st_proc_start_timestamp = start;
	memcpy(unvolatize(SockAddr *, &entry->st_clientaddr), &MyProcPort->raddr,
		   sizeof(SockAddr));
	entry->st_clienthostname[0] = '\0';
	entry->st_activity_raw[0] = '\0';
	entry->st_query_id = UINT64CONST(0);
	entry->st_activity_start_timestamp = identity ? identity->query_start_us : 0;
	entry->st_state_start_timestamp = identity ? identity->idle_since_us : start;
	baton_entry_set_session(entry, identity ? identity->pid : 0);
	PGSTAT_END_WRITE_ACTIVITY(entry);
}

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

void
baton_identity_put(const BatonSessionRecord *record)
{
	Port	   *port = MyProcPort;

	(void) baton_address_make(&port->raddr, record->peer_family, record->peer_port,
							  record->peer_address, record->peer_scope);
	(void) baton_address_make(&port->laddr, record->peer_family, record->local_port,
							  record->local_address, record->peer_scope);

	write_remote(record);
	port->remote_host = placed->remote_host;
	port->remote_port = placed->remote_port;
	port->remote_hostname = NULL;
	port->remote_hostname_resolv = 0;
	port->proto = record->protocol;

	/*
	 * What pqcomm.c remembers of the socket's own settings is unknown again;
	 * see keepalive.c.
	 */
	port->default_keepalives_idle = 0;
	port->default_keepalives_interval = 0;
	port->default_keepalives_count = 0;
	port->default_tcp_user_timeout = 0;
	port->keepalives_idle = 0;
	port->keepalives_interval = 0;
	port->keepalives_count = 0;
	port->tcp_user_timeout = 0;

	MyStartTimestamp = record->login_time_us;
	MyStartTime = timestamptz_to_time_t(MyStartTimestamp);

	/*
	 * elog.c (15 to 18) keeps the start as text once it has been logged: %s
	 * and the session_start of csvlog and jsonlog would be an earlier
	 * session's.
	 */
	reset_formatted_start_time();
	report_identity(record->login_time_us, baton_identity((uint32) record->id));
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
	Port	   *port = MyProcPort;

	if (placed->is_nobody)
		return;
	placed->is_nobody = true;
	(void) baton_address_make(&port->raddr, AF_UNIX, 0, NULL, 0);
	(void) baton_address_make(&port->laddr, AF_UNIX, 0, NULL, 0);
	strlcpy(placed->remote_host, "[local]", sizeof(placed->remote_host));
	placed->remote_port[0] = '\0';
	port->remote_host = placed->remote_host;
	port->remote_port = placed->remote_port;
	report_identity(GetCurrentTimestamp(), NULL);
	pgstat_report_appname("");
}
