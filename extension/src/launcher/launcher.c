/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		The background worker that keeps a dispatcher running and answers it.
 *
 * The dispatcher knows nothing of catalogs and configuration files; the
 * launcher is its eyes.  Over one channel (SOCK_SEQPACKET) it sends
 * PARAMETERS, first of all and after each reload, and answers each
 * LOGIN_QUESTION.  It is connected to no database.
 *
 * Invariants:
 *	- at most one dispatcher is ours at a time, and it has been sent
 *	  PARAMETERS before anything else;
 *	- the launcher's end is not the dispatcher's: sessions go on, and the next
 *	  launcher takes it over.  Only if the server is stopping is it told so.
 *	- nothing that a question causes can end the launcher: errors become
 *	  refusals (login.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procsignal.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"
#include "utils/relcache.h"

#include "channel.h"
#include "control.h"
#include "hba_match.h"
#include "key_passphrase.h"
#include "launcher.h"
#include "login.h"
#include "login_watch.h"
#include "majors.h"
#include "monotonic.h"
#include "parameters.h"
#include "parameters_message.h"
#include "pool_settings.h"
#include "settings_standby.h"
#include "trusted_hba.h"
#include "wire.h"

/* Questions answered before signals and reloads get their turn. */
#define QUESTIONS_A_ROUND 64

/*
 * A dispatcher that ran shorter than this died "quickly"; the next start then
 * waits, each time twice as long.
 */
#define QUICK_DEATH_US (10 * USECS_PER_SEC)
#define FIRST_DELAY_MS 100
#define LONGEST_DELAY_MS 5000

/* The data directory's lock file (DIRECTORY_LOCK_FILE, private to miscinit.c). */
#define POSTMASTER_PID_FILE "postmaster.pid"

PGDLLEXPORT void baton_launcher_main(Datum argument);
PGDLLEXPORT void baton_index_reader_main(Datum argument);

static BatonDispatcher dispatcher = {.pid = 0,.adopted = -1,.channel = -1};
static int64 started_at_us = 0; /* the dispatcher */
static int64 start_at_us = 0;	/* the next one, once there is none */
static int	delay_ms = 0;		/* the last wait before a start */
static WaitEventSet *events = NULL;

void
baton_launcher_register(void)
{
	BackgroundWorker worker;

	/* pg_upgrade is alone with its servers: no client may come in */
	if (IsBinaryUpgrade)
		return;
	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "pg_baton launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "pg_baton launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "pg_baton", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, BATON_LAUNCHER_FUNCTION, BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	/* as soon as anyone may log in, on a standby as well */
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/*
 * Is the server stopping?  The postmaster writes that into postmaster.pid
 * before it signals anybody (pmdie in postmaster.c).  A launcher that somebody
 * ends with pg_terminate_backend must not take the dispatcher with it.
 */
static bool
server_is_stopping(void)
{
	char		contents[1024];
	char	   *line = contents;
	ssize_t		length;
	int			fd;

	/* unlike AllocateFile's, this descriptor needs no resource owner */
	fd = open(POSTMASTER_PID_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;			/* no file, no server */
	length = read(fd, contents, sizeof(contents) - 1);
	close(fd);
	if (length <= 0)
		return false;
	contents[length] = '\0';
	for (int i = 1; i < LOCK_FILE_LINE_PM_STATUS && line != NULL; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line != NULL &&
		strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
}

/* However we end: a dispatcher whose server stops is told. */
static void
tell_shutdown(int code, Datum argument)
{
	const uint32 stopping = 1;

	if (dispatcher.channel >= 0 && server_is_stopping())
		(void) baton_channel_send(dispatcher.channel, BATON_MSG_SHUTDOWN, 0,
								  (const char *) &stopping, sizeof(stopping));
}

/* The set of what we wait for, made anew when the channel is another. */
static void
watch(void)
{
	if (events != NULL)
		FreeWaitEventSet(events);
	events = baton_wait_set_create(3);
	AddWaitEventToSet(events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	if (dispatcher.channel >= 0)
		AddWaitEventToSet(events, WL_SOCKET_READABLE, dispatcher.channel, NULL, NULL);
}

static void
lose_dispatcher(void)
{
	bool		quick = baton_monotonic_us() - started_at_us < QUICK_DEATH_US;

	baton_dispatcher_end(&dispatcher);
	delay_ms = !quick ? 0 : delay_ms == 0 ? FIRST_DELAY_MS : Min(delay_ms * 2, LONGEST_DELAY_MS);
	start_at_us = baton_monotonic_us() + (int64) delay_ms * 1000;
	watch();
}

static void
send_parameters(bool is_start)
{
	BatonControlMemory->force_migration = baton_force_migration ? 1 : 0;
	if (dispatcher.channel >= 0 &&
		!(baton_key_passphrase_send(dispatcher.channel, is_start) &&
		  baton_parameters_send(dispatcher.channel)))
		lose_dispatcher();
}

/*
 * Adopts or starts a dispatcher.  Not while the server is stopping: a smart
 * shutdown waits for sessions long after the dispatcher has closed its port.
 */
static void
get_dispatcher(void)
{
	bool		is_adopted;

	started_at_us = baton_monotonic_us();
	if (server_is_stopping() ||
		(!(is_adopted = baton_dispatcher_adopt(&dispatcher)) &&
		 !baton_dispatcher_spawn(&dispatcher)))
	{
		start_at_us = started_at_us + LONGEST_DELAY_MS * INT64CONST(1000);
		return;
	}
	watch();
	send_parameters(!is_adopted);
}

static void
reload(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	baton_hba_load();
	baton_login_changed();
	send_parameters(false);
}

/*
 * Handles one frame.  False if it came from no dispatcher of ours.
 */
static bool
handle_frame(const BatonIncoming *incoming)
{
	static StringInfoData answer = {NULL, 0, 0, 0};

	if (answer.data == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&answer);
		MemoryContextSwitchTo(old_context);
	}
	resetStringInfo(&answer);
	switch (incoming->frame.type)
	{
		case BATON_MSG_LOGIN_QUESTION:
			if (!baton_login_answer(incoming->payload, incoming->frame.length, &answer))
			{
				ereport(LOG,
						(errmsg("pg_baton's dispatcher sent a question that is not understood")));
				return false;
			}
			return baton_channel_send(dispatcher.channel, BATON_MSG_LOGIN_ANSWER,
									  incoming->frame.session, answer.data, answer.len);

		case BATON_MSG_POOL_QUESTION:
			if (!baton_pool_settings_answer(incoming->payload, incoming->frame.length, &answer))
				return false;
			return baton_channel_send(dispatcher.channel, BATON_MSG_POOL_SETTINGS, 0,
									  answer.data, answer.len);

		case BATON_MSG_REFUSED:
			ereport(LOG,
					(errmsg("pg_baton's dispatcher refused the launcher")));
			return false;

		default:
			ereport(LOG,
					(errmsg("pg_baton's dispatcher sent a message of unknown type %u",
							incoming->frame.type)));
			return false;
	}
}

/* Answers what has come, up to a bound; the rest wakes us again at once. */
static void
answer_questions(void)
{
	for (int i = 0; i < QUESTIONS_A_ROUND; i++)
	{
		BatonIncoming incoming;
		BatonReceived received = baton_channel_receive(dispatcher.channel, &incoming);

		if (received == BATON_RECEIVED_NOTHING)
			return;
		/* none of the dispatcher's messages to us carries any */
		baton_incoming_close(&incoming);
		if (received == BATON_RECEIVED_CLOSED || !handle_frame(&incoming))
		{
			lose_dispatcher();
			return;
		}
	}
}

/* What a process does between transactions, as PostgresMain when it is idle. */
static void
housekeeping(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
		reload();
	if (catchupInterruptPending)
		ProcessCatchupInterrupt();
	(void) pgstat_report_stat(false);
}

/* Its end writes down the descriptions of the shared indexes; see describe_indexes(). */
void
baton_index_reader_main(Datum argument)
{
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(Template1DbOid, InvalidOid, BGWORKER_BYPASS_ALLOWCONN);
}

/*
 * A process without a database cannot read the descriptions of indexes in the catalogs,
 * but in a file that others have written, which a server that starts removes
 * (RelationCacheInitializePhase2() in relcache.c).  Without it each login would pass over
 * all of pg_authid.  So one that has a database comes first.
 */
static void
describe_indexes(void)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	if (access("global/" RELCACHE_INIT_FILENAME, F_OK) == 0)
		return;
	memset(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "pg_baton index reader", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "pg_baton index reader", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "pg_baton", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "baton_index_reader_main", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
		(void) WaitForBackgroundWorkerShutdown(handle);
}

void
baton_launcher_main(Datum argument)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, SIG_IGN);	/* there is no query to cancel */
	BackgroundWorkerUnblockSignals();

	describe_indexes();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	/*
	 * A worker without a database leaves InitPostgres before this call.
	 * Without it the cached memberships of roles would never be invalidated
	 * (roles_is_member_of in acl.c).  It looks into a catalog cache, which
	 * may have to be set up: in a transaction.
	 */
	StartTransactionCommand();
	initialize_acl();
	CommitTransactionCommand();

	before_shmem_exit(tell_shutdown, (Datum) 0);
	baton_hba_init();
	baton_trusted_hba_check();
	baton_hba_load();
	/* who died with the server may have committed without telling */
	baton_login_changed();
	BatonControlMemory->force_migration = baton_force_migration ? 1 : 0;
	watch();
	start_at_us = baton_monotonic_us();

	for (;;)
	{
		WaitEvent	event;
		long		timeout_ms = -1;

		/* Quietly, unlike CHECK_FOR_INTERRUPTS; not 0, or we never come back. */
		if (ProcDiePending)
			proc_exit(1);
		housekeeping();

		if (dispatcher.channel < 0)
		{
			timeout_ms = baton_ms_until(start_at_us);
			if (timeout_ms <= 0)
			{
				get_dispatcher();
				continue;
			}
		}

		if (WaitEventSetWait(events, timeout_ms, &event, 1, PG_WAIT_EXTENSION) == 0)
			continue;
		if (event.events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		if ((event.events & WL_SOCKET_READABLE) && dispatcher.channel >= 0)
			answer_questions();
	}
}
