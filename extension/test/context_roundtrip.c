/*-------------------------------------------------------------------------
 *
 * context_roundtrip.c
 *		Test aid: takes each session's parameters out of its backend and puts
 *		them back at every transaction's end, in place.
 *
 * A library of its own, for session_preload_libraries, that holds the
 * context_*.c of parameters with a small dispatcher in memory in place of the
 * real one.  At each ReadyForQuery with status 'I' it captures the session,
 * installs another whose every parameter is different, captures that, and
 * installs the session again.  Whatever SQL then shows a difference to a run
 * without the library is a bug; so is a warning of this file.
 *
 * Build: gcc -shared -fPIC -D_GNU_SOURCE -I../src -I../../shared
 *	-I$(pg_config --includedir-server) ../src/context{,_guc,_params,_placeholders,
 *	_reset,_report}.c context_roundtrip.c -o roundtrip.so
 * Used by context_fuzz.py; PostgreSQL's regression tests can be run with it too.
 *
 * The parameter roundtrip.startup ("name=value;name=value"), set as a startup
 * option, holds startup options that the library applies as a greeting does.
 *
 * BATON_ROUNDTRIPS in the server's environment says how often (default 1); with
 * more the time a round trip and the growth of the process go to the log.
 *
 * With BATON_OTHER_NAME_ONLY the other session differs in application_name only.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <malloc.h>

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "libpq/libpq.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "portability/instr_time.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "context.h"
#include "context_sequences.h"
#include "context_statements.h"
#include "context_unnamed.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

#define ITEMS_MAX 500
#define SESSIONS 2

/* ---- the dispatcher in memory ----------------------------------------- */

static BatonSessionRecord records[SESSIONS];
static BatonEntry *stored[SESSIONS * ITEMS_MAX];	/* by heap offset */
static BatonItem items[SESSIONS][ITEMS_MAX];
static int	changing = 0;		/* session the delta is for */
static int	changes = 0;
static char last_change[100];
static uint64 next_number = 1;

static BatonItem *
find_item(uint16 kind, const char *key, Size key_length)
{
	for (uint32 i = 0; i < records[changing].item_count; i++)
	{
		BatonEntry *entry = stored[items[changing][i].entry];

		if (entry->kind == kind && entry->key_length == key_length &&
			memcmp(baton_entry_key(entry), key, key_length) == 0)
			return &items[changing][i];
	}
	return NULL;
}

void
baton_delta_put(uint16 kind, const char *key, Size key_length,
				const char *value, Size value_length, bool want_counter,
				int64 aux)
{
	BatonItem  *item = find_item(kind, key, key_length);
	BatonEntry *entry = MemoryContextAlloc(TopMemoryContext,
										   BATON_ENTRY_HEADER_SIZE +
										   key_length + value_length);

	if (item == NULL)
	{
		item = &items[changing][records[changing].item_count];
		item->entry = changing * ITEMS_MAX + records[changing].item_count;
		if (++records[changing].item_count > ITEMS_MAX)
			elog(FATAL, "too many items");
	}
	else
		pfree(stored[item->entry]);
	entry->serial = next_number++;
	entry->kind = kind;
	entry->key_length = key_length;
	entry->value_length = value_length;
	memcpy((char *) entry + BATON_ENTRY_HEADER_SIZE, key, key_length);
	memcpy((char *) entry + BATON_ENTRY_HEADER_SIZE + key_length, value,
		   value_length);
	stored[item->entry] = entry;
	changes++;
	snprintf(last_change, sizeof(last_change), "put %d %.*s", kind,
			 (int) key_length, key);
}

void
baton_delta_delete(uint16 kind, const char *key, Size key_length)
{
	BatonItem  *item = find_item(kind, key, key_length);
	int			last = records[changing].item_count - 1;
	uint32		slot;

	if (item == NULL)
	{
		elog(WARNING, "roundtrip: no item \"%.*s\" to delete",
			 (int) key_length, key);
		return;
	}
	pfree(stored[item->entry]);
	slot = changing * ITEMS_MAX + last;
	stored[item->entry] = stored[slot];
	stored[slot] = NULL;
	records[changing].item_count--;
	changes++;
	snprintf(last_change, sizeof(last_change), "delete %d %.*s", kind,
			 (int) key_length, key);
}

const BatonItem *
baton_record_items(const BatonSessionRecord *record)
{
	return items[record - records];
}

const BatonEntry *
baton_entry(uint32 heap_offset)
{
	return stored[heap_offset];
}

/* ---- the parts that are not under test -------------------------------- */

const char *
baton_statements_attach(void)
{
	return NULL;
}

void
baton_statements_install(const BatonSessionRecord *r)
{
}

bool
baton_statements_capture(uint64 session)
{
	return false;
}

void
baton_statements_forget(uint64 session)
{
}

void
baton_statements_note_message(char type)
{
}

const char *
baton_unnamed_attach(void)
{
	return NULL;
}

void
baton_unnamed_install(const BatonSessionRecord *r)
{
}

bool
baton_unnamed_capture(uint64 session)
{
	return false;
}

void
baton_unnamed_forget(uint64 session)
{
}

bool
baton_unnamed_messages(uint64 session, const char *first_bytes, Size length,
					   StringInfo messages)
{
	return false;
}

void
baton_unnamed_note_message(char type)
{
}

const char *
baton_sequences_attach(void)
{
	return NULL;
}

void
baton_sequences_install(const BatonSessionRecord *r)
{
}

bool
baton_sequences_capture(uint64 session)
{
	return false;
}

void
baton_sequences_forget(uint64 session)
{
}

/* ---- the other session ------------------------------------------------- */

/* Mirrors BatonParamHeader of context_params.c. */
static void
give_parameter(const char *name, int form, const char *text, Oid role)
{
	char		value[200];
	uint32		srole = BOOTSTRAP_SUPERUSERID;

	memset(value, 0, sizeof(value));
	value[0] = form;
	value[1] = PGC_SUSET;
	memcpy(value + 4, &srole, sizeof(srole));
	memcpy(value + 8, &role, sizeof(role));
	strlcpy(value + 12, text, sizeof(value) - 12);
	baton_delta_put(BATON_KIND_PARAMETER, name, strlen(name), value,
					12 + strlen(text), false, 0);
}

static void
give_reset(const char *name, const char *text)
{
	char		value[200];

	value[0] = PGC_S_CLIENT;
	value[1] = PGC_BACKEND;
	strlcpy(value + 2, text, sizeof(value) - 2);
	baton_delta_put(BATON_KIND_RESET, name, strlen(name), value,
					2 + strlen(text), false, 0);
}

static void
make_other_session(void)
{
	changing = 1;
	records[1].id = (UINT64CONST(7) << 32) | 1;
	records[1].context_version = next_number++;
	give_reset("application_name", "other session");
	if (getenv("BATON_OTHER_NAME_ONLY") != NULL)
		return;
	give_reset("work_mem", "91");
	give_reset("other.start", "x");
	give_reset("extra_float_digits", "2");
	give_reset("role", "none");
	give_parameter("work_mem", 0, "128", 0);
	give_parameter("search_path", 0, "no_such_schema, other", 0);
	give_parameter("session_authorization", 0, "nobody", 16000);
	give_parameter("role", 0, "nobody_else", 16001);
	give_parameter("client_encoding", 0, "LATIN1", 0);
	give_parameter("DateStyle", 0, "German, DMY", 0);
	give_parameter("IntervalStyle", 0, "sql_standard", 0);
	give_parameter("TimeZone", 0, "Asia/Tokyo", 0);
	give_parameter("statement_timeout", 0, "100000", 0);
	give_parameter("seq_page_cost", 0, "0.10000000000000001", 0);
	give_parameter("temp_tablespaces", 0, "no_such_tablespace", 0);
	give_parameter("default_tablespace", 0, "no_such_tablespace", 0);
	give_parameter("default_text_search_config", 0, "no_such.config", 0);
	give_parameter("log_min_messages", 0, "error", 0);
	give_parameter("enable_seqscan", 0, "off", 0);
	give_parameter("standard_conforming_strings", 0, "off", 0);
	give_parameter("other.value", 0, "1", 0);
	give_parameter("other.exists", 1, "", 0);
	give_parameter("transaction_isolation", 2, "", 0);
}

/* ---- the round trip ---------------------------------------------------- */

static const PQcommMethods *server_methods;
static PQcommMethods methods;
static bool ready = false;
static bool attached = false;
static bool busy = false;

/* Startup options of the test: name=value;name=value */
static void
give_startup(const char *options)
{
	char	   *copy = pstrdup(options);
	char	   *rest = NULL;

	for (char *one = strtok_r(copy, ";", &rest); one != NULL;
		 one = strtok_r(NULL, ";", &rest))
	{
		char	   *value = strchr(one, '=');

		if (value == NULL)
			continue;
		baton_delta_put(BATON_KIND_STARTUP, one, value - one, value + 1,
						strlen(value + 1), false, 0);
	}
	pfree(copy);
}

static void
first_time(void)
{
	StringInfoData reported;
	const char *reason;
	const char *options = GetConfigOption("roundtrip.startup", true, false);
	char	   *name = pstrdup(application_name);

	make_other_session();
	changing = 0;
	records[0].id = UINT64CONST(7) << 32;
	records[0].context_version = next_number++;
	baton_delta_put(BATON_KIND_STARTUP, "application_name", 16, name,
					strlen(name), false, 0);
	if (options != NULL)
		give_startup(options);
	reason = baton_context_attach();
	if (reason != NULL)
		elog(FATAL, "roundtrip: %s", reason);
	initStringInfo(&reported);
	ExitOnAnyError = true;		/* as the boundary: FATAL */
	baton_context_greet(&records[0], &reported);
	ExitOnAnyError = false;
	for (uint32 i = 0; i < records[0].item_count;)
	{
		BatonEntry *entry = stored[items[0][i].entry];
		char		key[NAMEDATALEN];

		if (entry->kind != BATON_KIND_STARTUP)
		{
			i++;
			continue;
		}
		strlcpy(key, baton_entry_key(entry), entry->key_length + 1);
		baton_delta_delete(BATON_KIND_STARTUP, key, strlen(key));
	}
	baton_delta_put(BATON_KIND_REPORTED, "", 0, reported.data, reported.len,
					false, 0);
	pfree(reported.data);
	pfree(name);
	records[0].context_version = next_number++;
}

static void
check_no_change(const char *when)
{
	changes = 0;
	baton_context_capture(records[changing].id);
	if (changes != 0)
		elog(WARNING, "roundtrip: %d changes %s: %s", changes, when,
			 last_change);
}

/*
 * The other session has nothing of its own for geqo_threshold: what it sees
 * goes to the log when it changes.  If the first session has a startup option
 * for it, a reload must change it here nevertheless.
 */
static void
look_at_file_value(void)
{
	static int	before = 0;
	int			now = atoi(GetConfigOption("geqo_threshold", false, false));

	if (now != before)
		elog(LOG, "roundtrip: the other session sees geqo_threshold %d", now);
	before = now;
}

static void
round_trip(void)
{
	double		cost = cpu_tuple_cost;

	changing = 0;
	changes = 0;
	if (baton_context_capture(records[0].id) != (changes != 0))
		elog(WARNING, "roundtrip: capture is not true about changes");
	if (changes != 0)
		records[0].context_version = next_number++;
	check_no_change("at once");

	/* its client is not there to be told */
	whereToSendOutput = DestNone;
	changing = 1;
	baton_context_install(&records[1]);
	whereToSendOutput = DestRemote;
	check_no_change("in the other session");
	look_at_file_value();
	changing = 0;
	baton_context_install(&records[0]);
	check_no_change("after the round trip");
	if (cost != cpu_tuple_cost)
		elog(WARNING, "roundtrip: cpu_tuple_cost was %.17g, is %.17g",
			 cost, cpu_tuple_cost);
}

static void
boundary(void)
{
	const char *times = getenv("BATON_ROUNDTRIPS");
	int			count = times ? atoi(times) : 1;
	instr_time	start;
	instr_time	end;
	int			holdoff = QueryCancelHoldoffCount;
	size_t		before = mallinfo2().uordblks;

	QueryCancelHoldoffCount++;
	if (!attached)
	{
		attached = true;
		first_time();
	}
	INSTR_TIME_SET_CURRENT(start);
	for (int i = 0; i < count; i++)
		round_trip();
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	if (count > 1)
	{
		double		trip = INSTR_TIME_GET_MICROSEC(end) / (double) count;
		double		alone;

		INSTR_TIME_SET_CURRENT(start);
		for (int i = 0; i < count; i++)
		{
			baton_context_capture(records[0].id);
			baton_context_install(&records[0]);
		}
		INSTR_TIME_SET_CURRENT(end);
		INSTR_TIME_SUBTRACT(end, start);
		alone = INSTR_TIME_GET_MICROSEC(end) / (double) count;
		elog(LOG, "roundtrip: %.3f us there and back, %.3f us the same again, malloc %+ld bytes, TopMemoryContext %zu",
			 trip, alone, (long) (mallinfo2().uordblks - before),
			 MemoryContextMemAllocated(TopMemoryContext, true));
	}
	QueryCancelHoldoffCount = holdoff;
}

static int
our_putmessage(char type, const char *s, size_t len)
{
	baton_context_note_message(type);
	if (type == 'Z' && s[0] == 'I')
		ready = true;
	return server_methods->putmessage(type, s, len);
}

static int
our_flush(void)
{
	int			result = server_methods->flush();

	if (ready && !busy)
	{
		ready = false;
		busy = true;
		boundary();
		busy = false;
		server_methods->flush();
	}
	return result;
}

void
_PG_init(void)
{
	if (MyProcPort == NULL || whereToSendOutput != DestRemote)
		return;
	server_methods = PqCommMethods;
	methods = *PqCommMethods;
	methods.putmessage = our_putmessage;
	methods.flush = our_flush;
	PqCommMethods = &methods;
}
