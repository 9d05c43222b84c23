/*-------------------------------------------------------------------------
 *
 * pid_messages.c
 *		Process IDs in messages: log lines, notifications.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "lib/stringinfo.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bswap.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/shmem.h"
#include "utils/elog.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "majors.h"
#include "pg_async.h"
#include "pid_messages.h"
#include "pooled_state.h"
#include "session_pid.h"

/* ----------------------------------------------------------------
 *		Lines of the server's log contain their session's ID.
 *
 * `%c` in log_line_prefix is the session's start time and process ID, in
 * hexadecimal. elog.c makes it of MyStartTime, which is that of the session
 * in place (identity.c), and MyProcPid, which is the process's.  Therefore
 * this code writes the lines of a session. emit_log_hook is called just
 * before a line is written (EmitErrorReport, elog.c, 15 to 18), and may
 * suppress the server's log for it.  The hook calls EmitErrorReport itself,
 * for the log alone, while the session's ID stands in the prefix in place of
 * `%c`.  The prefix is restored when the hook returns.  `%p` stays the
 * process's.
 *
 * The columns session_id of csvlog and jsonlog have no format to change:
 * their half that is a process ID is the process's.
 *
 * A line below ERROR is then at depth three in elog.c, which
 * in_error_recursion_trouble() reports as trouble: elog.c's own words, such
 * as "LOG:", are not translated.  It has no other effect here (15 to 18).
 */

/*
 * Returns the position of the letter behind the '%'.  A minus and digits may
 * precede the letter, as for process_log_prefix_padding (elog.c).
 */
static const char *
skip_padding(const char *format, int *padding)
{
	bool		is_left = *format == '-';

	if (is_left)
		format++;
	*padding = 0;
	for (; isdigit((unsigned char) *format); format++)
		*padding = Min(*padding * 10 + (*format - '0'), 10000);
	if (is_left)
		*padding = -*padding;
	return format;
}

static bool
prefix_has_session(const char *prefix)
{
	int			padding;

	while ((prefix = strchr(prefix, '%')) != NULL)
	{
		prefix = skip_padding(prefix + 1, &padding);
		if (*prefix == 'c')
			return true;
		if (*prefix != '\0')
			prefix++;
	}
	return false;
}

/* The prefix with the session's ID in place of each `%c`; palloc'd. */
static char *
prefix_of_session(const char *prefix)
{
	StringInfoData out;
	char		id[64];

	snprintf(id, sizeof(id), "%llx.%x", (unsigned long long) MyStartTime,
			 (unsigned int) baton_my_pid);
	initStringInfo(&out);
	while (*prefix != '\0')
	{
		const char *after = prefix + 1;
		int			padding;

		if (*prefix == '%')
		{
			after = skip_padding(after, &padding);
			if (*after == 'c')
			{
				appendStringInfo(&out, "%*s", padding, id);
				prefix = after + 1;
				continue;
			}
			if (*after != '\0')
				after++;
		}
		appendBinaryStringInfo(&out, prefix, after - prefix);
		prefix = after;
	}
	return out.data;
}

static void
write_for_session(ErrorData *edata)
{
	char	   *server_prefix = Log_line_prefix;
	char	   *prefix = prefix_of_session(server_prefix);
	bool		to_client = edata->output_to_client;
	emit_log_hook_type hook = emit_log_hook;

	PG_TRY();
	{
		edata->output_to_client = false;
		emit_log_hook = NULL;
		Log_line_prefix = prefix;
		EmitErrorReport();
	}
	PG_FINALLY();
	{
		Log_line_prefix = server_prefix;
		emit_log_hook = hook;
		edata->output_to_client = to_client;
	}
	PG_END_TRY();
	pfree(prefix);
	edata->output_to_server = false;
}

void
baton_pid_log(ErrorData *edata)
{
	if (baton_my_pid != 0 && edata->output_to_server && baton_pids_active() &&
		Log_line_prefix != NULL && prefix_has_session(Log_line_prefix))
		write_for_session(edata);
}

/* ----------------------------------------------------------------
 *		A notification names the session that sent it.
 *
 * async.c writes MyProcPid into the queue, which must stay the process's.
 * But an entry has the sender's transaction ID, too, and no process sees it
 * before that transaction has committed.  So a pooled backend notes, as it
 * commits, the session of the transaction.  The backend that delivers a
 * notification looks up its transaction (pg_async.c), and that note.
 *
 * For NOTIFY and pg_notify() the note is written before anything is in the
 * queue (XACT_EVENT_PRE_COMMIT comes before PreCommit_Notify,
 * CommitTransaction, xact.c).  C code that calls Async_Notify() is recognized
 * by the lock that PreCommit_Notify takes and holds to the end: its note is
 * written a moment after the commit, and a faster listener names the process.
 *
 * Another notifying transaction reuses a place after 65,536 transaction IDs,
 * or a multiple of that, at the earliest.  A notification that a listener has
 * not read by then names the process, which is no session's number.
 */

/* A power of two. */
#define PLACES 65536

/*
 * In shared memory: the session's process ID and, below it, the transaction.
 * They share a word, so that a reader gets both from the same write.
 */
static pg_atomic_uint64 *senders = NULL;

static bool notifies = false;	/* this transaction may have something to send */
static bool listens = false;	/* this process has listened, and found the
								 * queue */

static const PQcommMethods *next_methods = NULL;
static PQcommMethods naming_methods;

/* --------------------------------
 *		senders
 */

Datum
baton_sql_notify(PG_FUNCTION_ARGS)
{
	Datum		result = pg_notify(fcinfo);

	notifies = true;
	return result;
}

static void
note_sender(TransactionId xid)
{
	pg_atomic_write_u64(&senders[xid % PLACES], (uint64) (uint32) baton_my_pid << 32 | xid);
}

static bool
has_sent(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	return baton_lock_is_held(&tag, AccessExclusiveLock);
}

void
baton_notify_transaction(XactEvent event)
{
	TransactionId xid;

	if (senders == NULL)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			/* PreCommit_Notify would assign the transaction ID anyway */
			if (unlikely(notifies) && baton_my_pid != 0 && !RecoveryInProgress())
				note_sender(GetCurrentTransactionId());
			break;
		case XACT_EVENT_COMMIT:
			xid = GetTopTransactionIdIfAny();
			if (!notifies && baton_my_pid != 0 && TransactionIdIsValid(xid) && has_sent())
				note_sender(xid);
			notifies = false;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			notifies = false;
			break;
		default:
			break;
	}
}

/* --------------------------------
 *		listeners
 */

char *
baton_notify_name_sender(const char *message, size_t length)
{
	const char *channel = message + sizeof(uint32);
	const char *end = message + length;
	const char *payload;
	uint32		process;
	uint32		pid;
	TransactionId xid;
	uint64		noted;
	char	   *named;

	if (!listens || length < sizeof(uint32) + 2 || end[-1] != '\0')
		return NULL;
	payload = channel + strlen(channel) + 1;
	if (payload >= end)
		return NULL;
	memcpy(&process, message, sizeof(process));
	xid = baton_notify_queue_sender((int) pg_ntoh32(process), channel, payload);
	if (!TransactionIdIsValid(xid))
		return NULL;
	noted = pg_atomic_read_u64(&senders[xid % PLACES]);
	if ((TransactionId) noted != xid)
		return NULL;
	pid = pg_hton32((uint32) (noted >> 32));
	named = palloc(length);
	memcpy(named, message, length);
	memcpy(named, &pid, sizeof(pid));
	return named;
}

static int
naming_putmessage(char type, const char *s, size_t len)
{
	char	   *named = type == 'A' ? baton_notify_name_sender(s, len) : NULL;
	int			result = next_methods->putmessage(type, named ? named : s, len);

	if (named != NULL)
		pfree(named);
	return result;
}

void
baton_notify_utility_begins(const BatonUtility *utility)
{
	const char *problem;

	if (senders == NULL)
		return;
	if (IsA(utility->statement, NotifyStmt))
		notifies = true;
	if (!IsA(utility->statement, ListenStmt) || listens)
		return;
	problem = baton_notify_queue_find();
	if (problem != NULL)
	{
		ereport(LOG,
				(errmsg("notifications name the processes that sent them"),
				 errdetail("The queue is not as expected: %s", problem)));
		return;
	}
	listens = true;

	/*
	 * a pooled backend's own methods call baton_notify_name_sender()
	 * (boundary.c)
	 */
	if (BatonSelf.notes_ties)
		return;
	next_methods = PqCommMethods;
	naming_methods = *PqCommMethods;
	naming_methods.putmessage = naming_putmessage;
	PqCommMethods = &naming_methods;
}

/* --------------------------------
 *		in the postmaster
 * --------------------------------
 */

void
baton_notify_request_shmem(void)
{
	if (baton_pids_active())
		RequestAddinShmemSpace(sizeof(pg_atomic_uint64) * PLACES);
}

/* Also runs after a crash: transaction IDs may be reused then. */
void
baton_notify_start_shmem(void)
{
	bool		found;

	if (!baton_pids_active())
		return;
	senders = ShmemInitStruct("pg_baton notifications", sizeof(pg_atomic_uint64) * PLACES, &found);
	if (!found)
		for (int i = 0; i < PLACES; i++)
			pg_atomic_init_u64(&senders[i], 0);
}
