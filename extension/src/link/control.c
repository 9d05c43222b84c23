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
 * to its size.
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
#include "context.h"

/* Prepared statements of all sessions together; sparse, 32 bytes each. */
#define BATON_COUNTER_SLOTS (4 * 1024 * 1024)

BatonControl *BatonControlMemory = NULL;
int			BatonControlFd = -1;

void
baton_control_create(int session_slots)
{
	Size		backend_offset = BATON_CONTROL_HEADER_SIZE;
	Size		pool_offset;
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
	session_offset = pool_offset + (Size) pool_slots * BATON_POOL_SLOT_SIZE;
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
}

BatonBackendSlot *
baton_backend_slot(uint32 index)
{
	Assert(index < BatonControlMemory->backend_slots);
	return (BatonBackendSlot *) ((char *) BatonControlMemory +
								 BatonControlMemory->backend_offset +
								 (Size) index * BATON_BACKEND_SLOT_SIZE);
}

BatonPoolSlot *
baton_pool_slot(uint32 index)
{
	Assert(index < BatonControlMemory->pool_slots);
	return (BatonPoolSlot *) ((char *) BatonControlMemory +
							  BatonControlMemory->pool_offset +
							  (Size) index * BATON_POOL_SLOT_SIZE);
}

BatonSessionSlot *
baton_session_slot(uint64 session)
{
	uint32		index = (uint32) session;

	if (index >= BatonControlMemory->session_slots)
		elog(FATAL, "session number %u is out of range", index);
	return (BatonSessionSlot *) ((char *) BatonControlMemory +
								 BatonControlMemory->session_offset +
								 (Size) index * BATON_SESSION_SLOT_SIZE);
}

BatonIdentity *
baton_identity(uint32 index)
{
	Assert(index < BatonControlMemory->session_slots);
	return (BatonIdentity *) ((char *) BatonControlMemory +
							  BatonControlMemory->identity_offset +
							  (Size) index * BATON_IDENTITY_SIZE);
}

char *
baton_query_text(uint32 index)
{
	Assert(index < BatonControlMemory->session_slots);
	return (char *) BatonControlMemory + BatonControlMemory->query_offset +
		(Size) index * BatonControlMemory->query_size;
}

uint32 *
baton_pid_entry(int pid)
{
	return (uint32 *) ((char *) BatonControlMemory + BatonControlMemory->pid_offset) +
		(uint32) pid % BatonControlMemory->pid_entries;
}

BatonStatementCounter *
baton_counter(uint32 index)
{
	if (index >= BatonControlMemory->counter_slots)
		elog(FATAL, "statement counter %u is out of range", index);
	return (BatonStatementCounter *) ((char *) BatonControlMemory +
									  BatonControlMemory->counter_offset +
									  (Size) index * BATON_COUNTER_SLOT_SIZE);
}
