/*-------------------------------------------------------------------------
 *
 * session_pid.c
 *		A session's process ID, and the process that serves it.
 *
 * A session's process ID is the number of its BackendKeyData; no process of
 * the operating system can have it.  The dispatcher allots it, and puts the
 * session's slot into the directory that CONTROL keeps, so that any process of
 * the server finds the session of a number, and that of a number of long ago
 * finds nobody: the slot's BatonIdentity has another by then.
 *
 * Which session a backend serves is the backend's to say.  Whoever asks from
 * outside may be late: a backend goes from one session to the next between two
 * looks at it.  So nothing is ever attributed by looking twice.  What the
 * server shows of a backend bears the session in itself (backend_entry.c), or
 * the local transaction ID in which it was done: each session that comes takes
 * one, under which no transaction runs (GetNextLocalTransactionId, sinvaladt.c,
 * counts up and is used by StartTransaction alone), so that those of its own
 * transactions are greater, and greater than all of the sessions' before.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/backend_status.h"
#include "utils/timestamp.h"

#include "backend_entry.h"
#include "pooled_state.h"
#include "session_pid.h"
#include "sound_timestamp.h"

/* A writer is done within a microsecond, unless it is not scheduled. */
#define READ_TRIES 100000

typedef struct ServingBackend
{
	int			process;
	int			pid;			/* of the session in place; 0 if there is none */
	uint32		switches;
	uint64		served[BATON_BACKEND_SERVED];
} ServingBackend;

struct BatonServing
{
	int			count;
	ServingBackend backends[FLEXIBLE_ARRAY_MEMBER]; /* sorted by process */
};

int			baton_my_pid = 0;

uint64
baton_pid_find(int pid)
{
	uint32		holder;
	BatonIdentity *identity;
	uint64		session;

	if (!baton_pid_is_session(pid) || BatonControlMemory == NULL)
		return 0;
	holder = pg_atomic_read_u32(baton_atomic_u32(*baton_pid_entry(pid)));
	if (holder == 0 || holder > BatonControlMade.session_slots)
		return 0;
	identity = baton_identity(holder - 1);
	session = pg_atomic_read_u64(baton_atomic_u64(identity->id));
	pg_read_barrier();
	if (session == 0 || identity->pid != pid)
		return 0;

	/* the session that had the slot may have ended in between */
	pg_read_barrier();
	return pg_atomic_read_u64(baton_atomic_u64(identity->id)) == session ? session : 0;
}

static void
end_text(uint8 *text, Size size)
{
	text[		size - 1] = '\0';
}

/* Any process may have written there: nothing of it may be an error to show. */
static void
make_sound(BatonIdentity *copy)
{
	BatonTls   *tls = &copy->tls;
	const char *serial = (const char *) tls->client_serial;

	copy->login_time_us = baton_sound_timestamp(copy->login_time_us);
	copy->query_start_us = baton_sound_timestamp(copy->query_start_us);
	copy->idle_since_us = baton_sound_timestamp(copy->idle_since_us);
	end_text(copy->application_name, sizeof(copy->application_name));
	end_text(tls->version, sizeof(tls->version));
	end_text(tls->cipher, sizeof(tls->cipher));
	end_text(tls->client_dn, sizeof(tls->client_dn));
	end_text(tls->client_serial, sizeof(tls->client_serial));
	end_text(tls->issuer_dn, sizeof(tls->issuer_dn));

	/* a number, as it is shown as one */
	if (*serial == '-')
		serial++;
	if (serial[0] == '\0' || serial[strspn(serial, "0123456789")] != '\0')
		tls->client_serial[0] = '\0';
}

bool
baton_identity_read_slot(uint32 index, BatonIdentity *copy, char *query)
{
	BatonIdentity *identity = baton_identity(index);
	uint32		size = BatonControlMade.query_size;

	for (int i = 0; i < READ_TRIES; i++)
	{
		uint64		session = pg_atomic_read_u64(baton_atomic_u64(identity->id));
		uint32		changes = pg_atomic_read_u32(baton_atomic_u32(identity->changes));

		if (session == 0)
			return false;
		pg_read_barrier();
		if ((changes & 1) == 0)
		{
			memcpy(copy, identity, sizeof(*copy));
			if (query != NULL)
			{
				const char *text = baton_query_text(index);
				Size		length = strnlen(text, size - 1);

				memcpy(query, text, length);
				query[length] = '\0';
			}
			pg_read_barrier();
			if (pg_atomic_read_u32(baton_atomic_u32(identity->changes)) == changes &&
				pg_atomic_read_u64(baton_atomic_u64(identity->id)) == session)
			{
				copy->id = session;
				make_sound(copy);
				return true;
			}
		}
		pg_spin_delay();
	}
	return false;
}

bool
baton_identity_read(uint64 session, BatonIdentity *copy)
{
	return session != 0 && (uint32) session < BatonControlMade.session_slots &&
		baton_identity_read_slot((uint32) session, copy, NULL) && copy->id == session;
}

int
baton_pid_process(uint64 session)
{
	uint32		owner;
	BatonBackendSlot *backend;
	int			process;

	if (!baton_session_is_named(session))
		return 0;
	owner = pg_atomic_read_u32(baton_atomic_u32(baton_session_slot_at((uint32) session)->owner));
	pg_read_barrier();
	if (owner == 0 || owner > BatonControlMade.backend_slots)
		return 0;
	backend = baton_backend_slot(owner - 1);
	process = (int) pg_atomic_read_u32(baton_atomic_u32(backend->pid));
	if (backend->session != session)
		return 0;

	/* it will be signalled: no number that just stands there */
	return process > 0 && BackendPidGetProc(process) != NULL ? process : 0;
}

/* --------------------------------
 *		in the backend
 * --------------------------------
 */

void
baton_pid_take(uint64 session)
{
	BatonBackendSlot *slot = BatonSelf.slot;
	uint32		next = (slot->served_last + 1) % BATON_BACKEND_SERVED;

	baton_my_pid = baton_identity((uint32) session)->pid;
	pg_atomic_write_u64(baton_atomic_u64(slot->served[next]),
						(uint64) (uint32) baton_my_pid << 32 | GetNextLocalTransactionId());
	slot->served_last = next;

	/* who has read another owner has said before it that it shall end */
	pg_memory_barrier();
}

void
baton_pid_leave(uint64 session)
{
	uint32		index = (uint32) session;
	BatonIdentity *identity = baton_identity(index);
	const PgBackendStatus *entry = MyBEEntry;

	if (entry != NULL)
	{
		/* odd, also if one who died here has left it so */
		identity->changes |= 1;
		pg_write_barrier();
		if (entry->st_activity_raw[0] != '\0')
		{
			char	   *text = baton_query_text(index);
			Size		length = strnlen(entry->st_activity_raw,
										 BatonControlMade.query_size - 1);

			memcpy(text, entry->st_activity_raw, length);
			text[		length] = '\0';

			identity->query_id = entry->st_query_id;
			identity->query_start_us = entry->st_activity_start_timestamp;
		}
		identity->idle_since_us = entry->st_state_start_timestamp;
		identity->is_tracked = pgstat_track_activities;
		memcpy(identity->application_name, entry->st_appname,
			   sizeof(identity->application_name));
		pg_write_barrier();
		identity->changes++;

		/* from here on it is not us who show it */
		baton_entry_forget_session();
	}
	baton_my_pid = 0;
}

bool
baton_pid_is_terminated(uint64 session)
{
	return unlikely(pg_atomic_read_u64(baton_atomic_u64(baton_identity((uint32) session)->terminate)) == session);
}

/* --------------------------------
 *		who served whom
 * --------------------------------
 */

static int
compare_backends(const void *one, const void *other)
{
	int			a = ((const ServingBackend *) one)->process;
	int			b = ((const ServingBackend *) other)->process;

	return (a > b) - (a < b);
}

BatonServing *
baton_serving_read(void)
{
	uint32		slots = BatonControlMade.backend_slots;
	BatonServing *serving = palloc(offsetof(BatonServing, backends) +
								   sizeof(ServingBackend) * slots);

	serving->count = 0;
	for (uint32 i = 0; i < slots; i++)
	{
		BatonBackendSlot *slot = baton_backend_slot(i);
		ServingBackend *backend = &serving->backends[serving->count];
		BatonIdentity identity;

		backend->process = (int) pg_atomic_read_u32(baton_atomic_u32(slot->pid));
		if (slot->state == BATON_BACKEND_FREE || backend->process == 0)
			continue;
		for (int j = 0; j < BATON_BACKEND_SERVED; j++)
			backend->served[j] = pg_atomic_read_u64(baton_atomic_u64(slot->served[j]));
		backend->switches = (uint32) slot->switches;
		pg_read_barrier();
		backend->pid = baton_identity_read(slot->session, &identity) ? identity.pid : 0;
		serving->count++;
	}
	qsort(serving->backends, serving->count, sizeof(ServingBackend), compare_backends);
	return serving;
}

static const ServingBackend *
find_backend(const BatonServing *serving, int process)
{
	ServingBackend wanted = {.process = process};

	return bsearch(&wanted, serving->backends, serving->count,
				   sizeof(ServingBackend), compare_backends);
}

bool
baton_serving_is_pooled(const BatonServing *serving, int process)
{
	return find_backend(serving, process) != NULL;
}

int
baton_serving_pid(const BatonServing *serving, int process)
{
	const ServingBackend *backend = find_backend(serving, process);

	return backend == NULL ? process : backend->pid;
}

int
baton_serving_pid_at(const BatonServing *serving, int process, uint32 lxid)
{
	const ServingBackend *backend = find_backend(serving, process);
	const uint64 *found = NULL;

	if (backend == NULL)
		return process;
	if (lxid == InvalidLocalTransactionId)
		return backend->pid;
	for (int i = 0; i < BATON_BACKEND_SERVED; i++)
	{
		const uint64 *served = &backend->served[i];

		/* the latest of those that began before it; numbers may wrap */
		if (*served != 0 && (int32) ((uint32) *served - lxid) < 0 &&
			(found == NULL || (int32) ((uint32) *served - (uint32) *found) > 0))
			found = served;
	}
	return found == NULL ? process : (int) (*found >> 32);
}

bool
baton_serving_same(const BatonServing *one, const BatonServing *other, int process)
{
	const ServingBackend *before = find_backend(one, process);
	const ServingBackend *after = find_backend(other, process);

	if (before == NULL || after == NULL)
		return before == after;
	return before->pid == after->pid && before->switches == after->switches;
}
