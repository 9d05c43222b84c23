/*-------------------------------------------------------------------------
 *
 * pg_async.c
 *		Which transaction sent a notification that this backend delivers (async.c).
 *
 * An entry of the queue has the sender's transaction ID and its process's
 * number; the client is told the latter.  So this code finds the entry again,
 * from the position to which this backend has read, in the order in which
 * async.c reads.
 *
 * It relies on async.c, in 15 to 18:
 *
 * - AsyncShmemInit: the queue's control is the structure "Async Queue
 *   Control" of shared memory, laid out as below; its pages are an SLRU.  A
 *   structure of another size is refused (ShmemInitStruct, shmem.c).
 * - The entry of a listening backend has its process ID and database, which
 *   is checked each time.  Only that backend writes it.
 * - asyncQueueReadAllNotifications writes the backend's position back when it
 *   has delivered all; meanwhile pages from there on are not removed.
 * - asyncQueueProcessPageEntries delivers, in the queue's order, what
 *   committed transactions of this database sent to channels that are
 *   listened to, stops at a transaction in progress, and holds no lock while
 *   it delivers.
 *
 * So the entry of the notification being delivered is exactly the next one
 * behind the previous notification's that has the same sender, channel, and
 * payload, and a committed transaction.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/slru.h"
#include "access/transam.h"
#include "commands/async.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "pg_async.h"

#if PG_VERSION_NUM >= 170000
typedef int64 PageNumber;

#define QUEUE_PAGES "notify"
#define QUEUE_BUFFERS notify_buffers
#define MY_LISTENER MyProcNumber
#define LISTENERS MaxBackends
#define page_lock(page) SimpleLruGetBankLock(&pages, page)
#else
typedef int PageNumber;

#define QUEUE_PAGES "Notify"
#define QUEUE_BUFFERS NUM_NOTIFY_BUFFERS
#define MY_LISTENER MyBackendId
#define LISTENERS (MaxBackends + 1)
#define LAST_PAGE (SLRU_PAGES_PER_SEGMENT * 0x10000 - 1)
#define page_lock(page) NotifySLRULock
#endif

typedef struct Position
{
	PageNumber	page;
	int			offset;
} Position;

typedef struct Listener
{
	int32		pid;
	Oid			database;
	int			next;
	Position	position;
} Listener;

typedef struct QueueControl
{
	Position	head;
	Position	tail;
	PageNumber	stop_page;
	int			first_listener;
	TimestampTz last_warning;
	Listener	listeners[FLEXIBLE_ARRAY_MEMBER];
} QueueControl;

typedef struct Entry
{
	int			length;
	Oid			database;
	TransactionId xid;
	int32		process;
	char		data[FLEXIBLE_ARRAY_MEMBER];	/* channel, payload */
} Entry;

#define ENTRY_EMPTY_SIZE (offsetof(Entry, data) + 2)

static QueueControl *control = NULL;
static SlruCtlData pages;

/* The start of the current delivery, and the position that it has reached. */
static Position delivery_start = {-1, -1};
static Position delivered_to;

static bool
same_position(Position one, Position other)
{
	return one.page == other.page && one.offset == other.offset;
}

/* asyncQueuePagePrecedes; slru.c calls it to choose a buffer. */
static bool
page_precedes(PageNumber one, PageNumber other)
{
#if PG_VERSION_NUM >= 170000
	return one < other;
#else
	int			distance = one - other;

	if (distance >= (LAST_PAGE + 1) / 2)
		distance -= LAST_PAGE + 1;
	else if (distance < -((LAST_PAGE + 1) / 2))
		distance += LAST_PAGE + 1;
	return distance < 0;
#endif
}

/* asyncQueueAdvance: true if the next entry is on the next page. */
static bool
advance(Position *position, int length)
{
	position->offset += length;
	if (position->offset + INTALIGN(ENTRY_EMPTY_SIZE) <= BLCKSZ)
		return false;
	position->offset = 0;
	position->page++;
#if PG_VERSION_NUM < 170000
	if (position->page > LAST_PAGE)
		position->page = 0;
#endif
	return true;
}

/* As in AsyncShmemInit; everything exists already. */
static const char *
attach(void)
{
	bool		found;
	QueueControl *queue;
	SlruShared	shared;

	queue = ShmemInitStruct("Async Queue Control",
							offsetof(QueueControl, listeners) + LISTENERS * sizeof(Listener), &found);
	if (!found)
		return "its control is not in shared memory";
	shared = ShmemInitStruct(QUEUE_PAGES, SimpleLruShmemSize(QUEUE_BUFFERS, 0), &found);
	if (!found || shared->num_slots != QUEUE_BUFFERS)
		return "its pages are not in shared memory";
	pages.PagePrecedes = page_precedes;
#if PG_VERSION_NUM >= 170000
	SimpleLruInit(&pages, QUEUE_PAGES, QUEUE_BUFFERS, 0, "pg_notify", LWTRANCHE_NOTIFY_BUFFER,
				  LWTRANCHE_NOTIFY_SLRU, SYNC_HANDLER_NONE, true);
#else
	SimpleLruInit(&pages, QUEUE_PAGES, QUEUE_BUFFERS, 0, NotifySLRULock, "pg_notify",
				  LWTRANCHE_NOTIFY_BUFFER, SYNC_HANDLER_NONE);
#endif
	control = queue;
	return NULL;
}

const char *
baton_notify_queue_find(void)
{
	static bool tried = false;
	static const char *problem;
	MemoryContext caller = CurrentMemoryContext;
	volatile bool exit_on_error = ExitOnAnyError;

	if (tried)
		return problem;
	tried = true;

	/* nothing is held when these functions fail (shmem.c, slru.c) */
	ExitOnAnyError = false;
	PG_TRY();
	{
		problem = attach();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		problem = MemoryContextStrdup(TopMemoryContext, CopyErrorData()->message);
		FlushErrorState();
	}
	PG_END_TRY();
	ExitOnAnyError = exit_on_error;
	return problem;
}

/*
 * Is the string what the client is told?  Strings in the queue are in the
 * server's encoding.
 */
static bool
is_told_as(const char *string, const char *told)
{
	char	   *converted = pg_server_to_client(string, strlen(string));
	bool		same = strcmp(converted, told) == 0;

	if (converted != string)
		pfree(converted);
	return same;
}

/*
 * Copies the next entry that may match, and moves past it; false if there is
 * none before the head.
 */
static bool
next_entry(int process, Position head, Entry *copy)
{
	bool		found = false;

	while (!found && !same_position(delivered_to, head))
	{
		PageNumber	page = delivered_to.page;
		int			slot = SimpleLruReadPage_ReadOnly(&pages, page, InvalidTransactionId);
		bool		is_next_page = false;

		while (!found && !is_next_page && !same_position(delivered_to, head))
		{
			const Entry *entry = (const Entry *) (pages.shared->page_buffer[slot] + delivered_to.offset);

			if (entry->length < (int) ENTRY_EMPTY_SIZE || delivered_to.offset + entry->length > BLCKSZ)
			{
				/* the queue is not as expected: give it up */
				LWLockRelease(page_lock(page));
				control = NULL;
				return false;
			}
			found = entry->process == process && entry->database == MyDatabaseId;
			if (found)
				memcpy(copy, entry, entry->length);
			is_next_page = advance(&delivered_to, entry->length);
		}
		LWLockRelease(page_lock(page));
		CHECK_FOR_INTERRUPTS();
	}
	return found;
}

TransactionId
baton_notify_queue_sender(int process, const char *channel, const char *payload)
{
	const Listener *listener;
	Position	head;
	TransactionId sender = InvalidTransactionId;
	Entry	   *entry;

	if (control == NULL)
		return InvalidTransactionId;
	listener = &control->listeners[MY_LISTENER];
	if (listener->pid != MyProcPid || listener->database != MyDatabaseId)
		return InvalidTransactionId;
	if (!same_position(listener->position, delivery_start))
		delivery_start = delivered_to = listener->position;

	LWLockAcquire(NotifyQueueLock, LW_SHARED);
	head = control->head;
	LWLockRelease(NotifyQueueLock);

	entry = palloc(BLCKSZ);
	while (sender == InvalidTransactionId && next_entry(process, head, entry))
	{
		const char *sent_payload = entry->data + strlen(entry->data) + 1;

		if (is_told_as(entry->data, channel) && is_told_as(sent_payload, payload) &&
			TransactionIdDidCommit(entry->xid))
			sender = entry->xid;
	}
	pfree(entry);
	return sender;
}
