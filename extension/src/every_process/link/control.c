/*-------------------------------------------------------------------------
 *
 * control.c
 *		Creation of the CONTROL memory, and access to its parts.
 *
 * The postmaster creates it once, as a memfd, while it loads the library;
 * every child inherits mapping and descriptor by fork.  It is not part of
 * PostgreSQL's shared memory, because the dispatcher, which is no child of
 * the postmaster's in PostgreSQL's sense, must map it too, and because it has
 * to survive a crash restart: idle sessions do.
 *
 * Invariant: its size and layout never change once it exists; the kernel sees
 * to its size.  Every process has its own copy of the header as the postmaster
 * made it (BatonControlMade, inherited by fork), and computes addresses from
 * that alone: the header itself can be written by all who have mapped it, the
 * dispatcher among them.  What is an index in the memory is checked against that
 * copy where it is used; a wrong one costs the process that meets it, and the
 * server does not crash.  A word that is checked is read once, by an atomic read,
 * for which a compiler makes one: the next might find another there.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/fd.h"
#include "utils/backend_status.h"

#include "control.h"

/* Prepared statements of all sessions together; sparse, 32 bytes each. */
#define BATON_COUNTER_SLOTS (4 * 1024 * 1024)

BatonControl *BatonControlMemory = NULL;
BatonControl BatonControlMade;
int			BatonControlFd = -1;

void
baton_control_create(int session_slots)
{
	Size		backend_offset = BATON_CONTROL_HEADER_SIZE;
	Size		pool_offset;
	Size		tenant_offset;
	Size		session_offset;
	Size		counter_offset;
	Size		identity_offset;
	Size		pid_offset;
	Size		query_offset;
	Size		total;

	/* each pool has a session or a backend (docs/design/pools.md) */
	uint32		pool_slots = session_slots + MaxConnections;
	uint32		pid_entries = pg_nextpower2_32(Max(session_slots * 4, 1024));
	uint32		random;
	void	   *address;
	BatonControl *control;

	Assert(!IsUnderPostmaster);

	pool_offset = backend_offset + (Size) MaxConnections * BATON_BACKEND_SLOT_SIZE;
	tenant_offset = pool_offset + (Size) pool_slots * BATON_POOL_SLOT_SIZE;
	session_offset = tenant_offset + (Size) pool_slots * BATON_TENANT_SLOT_SIZE;
	counter_offset = session_offset + (Size) session_slots * BATON_SESSION_SLOT_SIZE;
	identity_offset = counter_offset + (Size) BATON_COUNTER_SLOTS * BATON_COUNTER_SLOT_SIZE;
	pid_offset = identity_offset + (Size) session_slots * BATON_IDENTITY_SIZE;
	query_offset = pid_offset + (Size) pid_entries * sizeof(uint32);
	total = query_offset + (Size) session_slots * pgstat_track_activity_query_size;
	total = TYPEALIGN(BATON_CONTROL_HEADER_SIZE, total);

	BatonControlFd = memfd_create("pg_baton control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (BatonControlFd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not create the shared memory of pg_baton: %m")));

	/* The pages of regions that nobody touches are never allocated. */
	if (ftruncate(BatonControlFd, total) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not size the shared memory of pg_baton to %zu bytes: %m", total)));

	/* to shorten it would be a SIGBUS for every process of the server */
	if (fcntl(BatonControlFd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not seal the shared memory of pg_baton: %m")));

	address = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, BatonControlFd, 0);
	if (address == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map the shared memory of pg_baton: %m")));

	/* fd.c must know of a descriptor that stays open (set_max_safe_fds) */
	ReserveExternalFD();

	control = (BatonControl *) address;
	control->magic = BATON_MAGIC;
	control->layout_version = BATON_LAYOUT_VERSION;
	control->backend_slots = MaxConnections;
	control->pool_slots = pool_slots;
	control->session_slots = session_slots;
	control->counter_slots = BATON_COUNTER_SLOTS;
	control->postmaster_pid = PostmasterPid;
	control->backend_offset = backend_offset;
	control->pool_offset = pool_offset;
	control->tenant_offset = tenant_offset;
	control->session_offset = session_offset;
	control->counter_offset = counter_offset;
	control->identity_offset = identity_offset;
	control->pid_offset = pid_offset;
	control->pid_entries = pid_entries;
	control->query_offset = query_offset;
	control->query_size = pgstat_track_activity_query_size;
	control->total_size = total;
	control->settings_generation = 1;
	if (!pg_strong_random(&control->secret, sizeof(control->secret)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random secret for pg_baton")));

	/* a number from before the server's last start is nobody's, as a rule */
	if (!pg_strong_random(&random, sizeof(random)))
		random = 0;
	control->next_pid = BATON_FIRST_PID + (random >> 2);

	BatonControlMemory = control;
	BatonControlMade = *control;
}

/*
 * The server starts again after a crash, and whoever crashed may have written
 * anything anywhere; or a dispatcher is about to start, which knows of the memory
 * what its header says.  What never changes is put right.  What changes is the
 * dispatcher's to sort out: each slot of a backend that has ended is cleared when
 * its connection ends, and a session that no backend can have is none's
 * (leave.rs).
 */
void
baton_control_restore(void)
{
	BatonControl *control = BatonControlMemory;
	const BatonControl *made = &BatonControlMade;
	bool		was_damaged;

	if (control == NULL)
		return;
	was_damaged = memcmp(control, made, offsetof(BatonControl, settings_generation)) != 0 ||
		control->pid_entries != made->pid_entries ||
		control->query_size != made->query_size ||
		control->identity_offset != made->identity_offset ||
		control->pid_offset != made->pid_offset ||
		control->query_offset != made->query_offset ||
		control->tenant_offset != made->tenant_offset;

	memcpy(control, made, offsetof(BatonControl, settings_generation));
	control->pid_entries = made->pid_entries;
	control->query_size = made->query_size;
	control->identity_offset = made->identity_offset;
	control->pid_offset = made->pid_offset;
	control->query_offset = made->query_offset;
	control->tenant_offset = made->tenant_offset;
	if (was_damaged)
		ereport(LOG,
				(errmsg("the shared memory of pg_baton was damaged, its header has been restored")));
}

/* Part `index` of `count` of that size, from that offset on. */
static inline void *
part(const char *what, uint64 offset, uint32 index, uint32 count, Size size)
{
	if (unlikely(index >= count))
		elog(FATAL, "%s %u of pg_baton is out of range", what, index);
	return (char *) BatonControlMemory + offset + (Size) index * size;
}

BatonBackendSlot *
baton_backend_slot(uint32 index)
{
	return part("backend slot", BatonControlMade.backend_offset, index,
				BatonControlMade.backend_slots, BATON_BACKEND_SLOT_SIZE);
}

BatonPoolSlot *
baton_pool_slot(uint32 index)
{
	return part("pool slot", BatonControlMade.pool_offset, index,
				BatonControlMade.pool_slots, BATON_POOL_SLOT_SIZE);
}

BatonTenantSlot *
baton_tenant_slot(uint32 index)
{
	return part("tenant slot", BatonControlMade.tenant_offset, index,
				BatonControlMade.pool_slots, BATON_TENANT_SLOT_SIZE);
}

BatonSessionSlot *
baton_session_slot_at(uint32 index)
{
	return part("session slot", BatonControlMade.session_offset, index,
				BatonControlMade.session_slots, BATON_SESSION_SLOT_SIZE);
}

bool
baton_session_is_named(uint64 session)
{
	return session != 0 && (uint32) session < BatonControlMade.session_slots &&
		baton_session_slot_at((uint32) session)->id == session;
}

BatonSessionSlot *
baton_session_slot(uint64 session)
{
	BatonSessionSlot *slot = baton_session_slot_at((uint32) session);

	if (unlikely(slot->id != session))
		elog(FATAL, "session slot %u of pg_baton is another session's", (uint32) session);
	return slot;
}

BatonIdentity *
baton_identity(uint32 index)
{
	return part("identity", BatonControlMade.identity_offset, index,
				BatonControlMade.session_slots, BATON_IDENTITY_SIZE);
}

uint32
baton_identities_used(void)
{
	uint32		used = pg_atomic_read_u32(baton_atomic_u32(BatonControlMemory->identities_used));

	return Min(used, BatonControlMade.session_slots);
}

char *
baton_query_text(uint32 index)
{
	return part("query", BatonControlMade.query_offset, index,
				BatonControlMade.session_slots, BatonControlMade.query_size);
}

uint32 *
baton_pid_entry(int pid)
{
	return part("process ID", BatonControlMade.pid_offset,
				(uint32) pid % BatonControlMade.pid_entries,
				BatonControlMade.pid_entries, sizeof(uint32));
}

BatonStatementCounter *
baton_counter(uint32 index)
{
	return part("statement counter", BatonControlMade.counter_offset, index,
				BatonControlMade.counter_slots, BATON_COUNTER_SLOT_SIZE);
}
