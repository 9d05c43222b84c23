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
 *		Lines of the server's log bear their session's ID.
 *
 * `%c` in log_line_prefix is when the session began and its process ID, in
 * hexadecimal.  elog.c makes it of MyStartTime, which is the session's in place
 * (identity.c), and MyProcPid, which is the process's.  What a session has to
 * say is therefore written from here: emit_log_hook is called just before a line
 * is (EmitErrorReport, elog.c, 15 to 18), and may turn that off for the server's
 * log; so it has EmitErrorReport write it, to the log alone, while the session's
 * ID stands in the prefix in the place of `%c`.  The prefix is as before when the
 * hook returns.  `%p` stays the process's.
 *
 * The columns session_id of csvlog and jsonlog have no format to change: the
 * half of them that is a process ID is the process's.
 *
 * A line below ERROR is three deep in elog.c then, which takes that for
 * in_error_recursion_trouble(): words of its own, such as "LOG:", are not
 * translated.  Nothing else comes of it here (15 to 18).
 * ----------------------------------------------------------------
 */

/*
 * Behind the '%' at `format`: a minus and digits may come before the letter, as
 * for process_log_prefix_padding (elog.c).
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

/* The prefix with the session's ID for each `%c`; palloc'd. */
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
 * async.c writes MyProcPid into the queue, which must stay the process's.  But
 * an entry has the sender's transaction ID, too, and it is visible to nobody
 * before that transaction has committed.  So a pooled backend notes, as it
 * commits, which session the transaction is of; whoever delivers a notification
 * looks up its transaction (pg_async.c), and what was noted.
 *
 * Noted is before anything is in the queue (XACT_EVENT_PRE_COMMIT comes before
 * PreCommit_Notify, CommitTransaction, xact.c), for NOTIFY and pg_notify().  C
 * code that calls Async_Notify() is seen by the lock that PreCommit_Notify takes
 * and holds to the end: it is noted a moment after the commit, and a listener
 * that is faster names the process.
 *
 * A place is used again by another transaction that notifies, 65,536 or a
 * multiple later at the least.  What a listener has not read by then names the
 * process, which is no session's number.
 * ----------------------------------------------------------------
 */

/* A power of two. */
#define PLACES 65536

/*
 * In shared memory: the session's process ID and, below it, the transaction.
 * One word: whoever reads it has both of one writing.
 */
static pg_atomic_uint64 *senders = NULL;

static bool notifies = false;	/* this transaction may have something to send */
static bool listens = false;	/* this process has listened, and found the
								 * queue */

static const PQcommMethods *next_methods = NULL;
static PQcommMethods naming_methods;

/* --------------------------------
 *		who sends
 * --------------------------------
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
			/* PreCommit_Notify would assign the transaction ID */
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
 *		who listens
 * --------------------------------
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

	/* a pooled backend's own methods ask us (boundary.c) */
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

/* After a crash, too: transaction IDs may come again then. */
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
