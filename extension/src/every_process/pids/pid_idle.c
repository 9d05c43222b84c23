/*-------------------------------------------------------------------------
 *
 * pid_idle.c
 *		What there is to be shown of a session that no backend serves.
 *
 * Who may see what is as for backends (HAS_PGSTAT_PERMISSIONS, pgstatfuncs.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/inet.h"

#include "majors.h"
#include "pid_idle.h"
#include "session_pid.h"

BatonIdleSession *
baton_idle_begin(void)
{
	BatonIdleSession *idle = palloc0(sizeof(BatonIdleSession));

	idle->buffer = palloc(BatonControlMade.query_size);
	return idle;
}

static bool
is_permitted(BatonIdleSession *idle, Oid role)
{
	if (idle->asked_role != role)
	{
		idle->asked_role = role;
		idle->asked_answer = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), role);
	}
	return idle->asked_answer;
}

bool
baton_idle_read(uint32 index, BatonIdleSession *idle)
{
	const BatonSessionSlot *slot;
	uint32		state;

	if (!baton_identity_read_slot(index, &idle->identity, idle->buffer))
		return false;
	slot = baton_session_slot_at(index);
	state = pg_atomic_read_u32(baton_atomic_u32(unconstify(BatonSessionSlot *, slot)->state));
	idle->is_permitted = is_permitted(idle, idle->identity.role_oid);
	idle->is_waiting = state == BATON_STATE_WAITING;
	idle->state = state == BATON_STATE_LOGIN ? NULL :
		!idle->identity.is_tracked ? "disabled" : idle->is_waiting ? "active" : "idle";
	idle->wait_event_type = idle->is_waiting ? "Extension" : "Client";
	idle->wait_event = idle->is_waiting ? "Extension" : "ClientRead";
	idle->query_start = idle->identity.query_start_us;
	idle->state_change = idle->identity.idle_since_us;
	idle->query = idle->buffer;
	if (idle->identity.query_start_us == 0)
		idle->buffer[0] = '\0';
	if (!idle->is_permitted)
		idle->query = "<insufficient privilege>";
	else if (idle->is_waiting)
	{
		idle->query = "<waiting for a backend>";
		idle->query_start = idle->state_change;
	}
	else if (idle->buffer[0] != '\0')
	{
		/* it may have been cut in the middle of a character */
		char	   *clipped = pgstat_clip_activity(idle->buffer);

		strlcpy(idle->buffer, clipped, BatonControlMade.query_size);
		pfree(clipped);
	}
	return true;
}

bool
baton_idle_has_address(const BatonIdleSession *idle)
{
	return idle->identity.peer_family == AF_INET || idle->identity.peer_family == AF_INET6;
}

Datum
baton_idle_address(const BatonIdleSession *idle)
{
	inet	   *address = palloc0(sizeof(inet));
	bool		is_ipv4 = idle->identity.peer_family == AF_INET;

	ip_family(address) = is_ipv4 ? PGSQL_AF_INET : PGSQL_AF_INET6;
	ip_bits(address) = ip_maxbits(address);
	memcpy(ip_addr(address), idle->identity.peer_address, ip_addrsize(address));
	SET_INET_VARSIZE(address);
	return InetPGetDatum(address);
}

int
baton_idle_port(const BatonIdleSession *idle)
{
	return baton_idle_has_address(idle) ? idle->identity.peer_port : -1;
}
