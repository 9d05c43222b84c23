/*-------------------------------------------------------------------------
 *
 * unnamed_statement.c
 *		The unnamed prepared statement of a session.
 *
 * The unnamed statement lives until the next unnamed Parse or simple Query, so
 * a session's next transaction on another backend may need it, and no other
 * session on this backend may see it. postgres.c keeps it in a static variable
 * that cannot be reached. But the plan that the variable points to can be
 * reached: plancache.c appends each saved plan to saved_plan_list, and
 * exec_parse_message() (postgres.c) saves the plan just before it sends
 * ParseComplete, with nothing in between that saves another plan. So when
 * ParseComplete is sent, the last plan of the list is the one just parsed; it
 * is the unnamed one if its query context has the name that
 * exec_parse_message() gives it. To find the list's head, this file saves a
 * plan of its own: as the last plan, its next pointer is the head. A reset
 * callback on the plan's context tells when the statement has gone.
 *
 * Putting another session's unnamed statement in place:
 * - If the backend has an unnamed statement, its plan is turned into the other
 *   session's in place (baton_statement_refill), without a message.
 * - If the backend has none, an unnamed Parse of an empty text and a Sync are
 *   injected; its ParseComplete makes a plan, which is then turned into the
 *   session's. (Not Parse of the real text: that could fail, or write to the
 *   log.)
 * - If the session has none, but the backend has, Close and Sync are injected.
 *
 * Nothing is done if the session's next message is a Query or an unnamed
 * Parse, which drop the statement before anything else (exec_simple_query,
 * exec_parse_message). But PostgresMain parses the message before it calls
 * these, and a message that it refuses drops nothing: so only a message that
 * is seen to be well formed counts.
 *
 * Turning a plan into another takes a raw parse, of 2 ms for 1 MB. So that is
 * deferred while the session's messages, up to a Sync, are seen not to use the
 * unnamed statement: the plan in place is an empty one meanwhile. Each
 * boundary looks again, and makes the statement if it cannot see the next
 * messages.
 *
 * A session with a large unnamed statement that does not fit into the memory
 * for contexts keeps its backend until other sessions wait for a backend: then
 * it loses the statement (docs/limits.md).
 *
 * The text is an item of the context; a flag in the session slot says whether
 * it is alive, because it dies much more often than it changes.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "nodes/memnodes.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"

#include "arena.h"
#include "delta.h"
#include "dispatcher_link.h"
#include "pg_plancache.h"
#include "pooled_state.h"
#include "statement_description.h"
#include "unnamed_statement.h"

/* The name that exec_parse_message() gives the context. */
#define UNNAMED_CONTEXT_NAME "unnamed prepared statement"

/*
 * A statement with a text of this size does not dedicate a backend while other
 * sessions wait.
 */
#define LARGE_TEXT (64 * 1024)

static BatonPlacedUnnamed *const placed = &BatonPlaced.unnamed;

/* Allocated in the plan's context, so it is freed with the plan. */
static void
plan_has_gone(void *argument)
{
	if (placed->plan == (CachedPlanSource *) argument)
	{
		placed->plan = NULL;
		placed->is_put_off = false;
	}
}

/* The session's entry; its item, if any, follows the named statements'. */
static const BatonStored *
find_entry(const BatonSessionRecord *record, BatonStored *stored)
{
	const BatonItem *items = baton_record_items(record);
	uint32		index = record->first_statement + record->statement_count;

	if (index < record->item_count &&
		baton_entry(stored, items[index].entry)->kind == BATON_KIND_UNNAMED)
		return stored;
	return NULL;
}

/* Appends the description of the plan in place. */
static void
describe(StringInfo value)
{
	initStringInfo(value);
	baton_statement_describe(value, placed->plan, false);
}

/* Is the plan in place the one in the session's context? */
static bool
plan_is(uint64 session, const BatonStored *entry)
{
	StringInfoData value;
	bool		result;

	if (placed->owner != session || placed->is_put_off)
		return false;
	if (placed->serial != 0)
		return placed->serial == entry->serial;
	describe(&value);
	result = (uint32) value.len == entry->value_length &&
		memcmp(value.data, entry->value, value.len) == 0;
	pfree(value.data);
	if (result)
		placed->serial = entry->serial;
	return result;
}

/*
 * Turns the plan in place into the session's; returns false if that is
 * impossible.
 */
static bool
fill(uint64 session)
{
	BatonStored stored;
	const BatonStored *entry = find_entry(baton_record(session), &stored);
	char	   *value;
	bool		made;

	if (entry == NULL)
		return false;
	/* it is parsed, so from a copy */
	value = baton_entry_copy_value(entry);
	made = baton_statement_refill(placed->plan, value, entry->value_length);
	pfree(value);
	if (!made)
	{
		ereport(LOG,
				(errmsg("pg_baton could not make the unnamed statement of a session")));
		return false;
	}
	placed->owner = session;
	placed->serial = entry->serial;
	placed->captured = true;
	placed->is_put_off = false;
	return true;
}

/*
 * The empty plan in place stands for the session's until the session's is
 * needed.
 */
static void
stands_for(uint64 session, const BatonStored *entry)
{
	placed->owner = session;
	placed->serial = entry->serial;
	placed->captured = true;
	placed->is_put_off = true;
}

/* The plan is that of a Parse of an empty text. */
static void
put_off(uint64 session, const BatonStored *entry)
{
	CachedPlanSource *empty = CreateCachedPlan(NULL, "", CMDTAG_UNKNOWN);

	baton_plan_complete(empty, NULL, 0, CURSOR_OPT_PARALLEL_OK, true, NULL);
	baton_plan_become(placed->plan, empty);
	stands_for(session, entry);
}

void
baton_unnamed_install(const BatonSessionRecord *record)
{
	placed->session = record->id;
	placed->put_since = false;
	placed->fill_next = false;
	placed->is_empty = false;
}

void
baton_unnamed_note_message(char type)
{
	CachedPlanSource *plan;
	MemoryContextCallback *callback;

	if (type != '1')
		return;
	plan = baton_newest_plan();
	if (plan->query_context == NULL ||
		strcmp(plan->query_context->name, UNNAMED_CONTEXT_NAME) != 0)
		return;

	callback = MemoryContextAlloc(plan->context, sizeof(MemoryContextCallback));
	callback->func = plan_has_gone;
	callback->arg = plan;
	MemoryContextRegisterResetCallback(plan->context, callback);
	placed->plan = plan;
	placed->owner = placed->session;
	placed->serial = 0;
	placed->captured = false;
	placed->is_put_off = false;
	if (placed->fill_next)
	{
		BatonStored stored;
		const BatonStored *entry = find_entry(baton_record(placed->session), &stored);

		placed->fill_next = false;
		if (placed->put_off_next && entry != NULL)
		{
			stands_for(placed->session, entry);
			return;
		}
		placed->is_empty = true;
		placed->is_empty = !fill(placed->session);
		return;
	}

	/*
	 * Now, because no event tells when the settings change next: a function's
	 * SET clause takes effect unnoticed.
	 */
	baton_settings_note(plan);
}

void
baton_unnamed_injected(void)
{
	if (!placed->fill_next && !placed->is_empty)
		return;

	/*
	 * an empty Parse, and turning its plan into another, cannot fail for any
	 * other reason
	 */
	ereport(FATAL,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory"),
			 errdetail("The unnamed prepared statement could not be restored.")));
}

/*
 * Records whether the session has an unnamed statement. The dispatcher may set
 * its own flag at the same time, hence the atomic instruction; usually nothing
 * changes.
 */
static void
note_alive(uint64 session, bool alive)
{
	pg_atomic_uint32 *flags = baton_atomic_u32(baton_session_slot(session)->flags);
	bool		noted = (pg_atomic_read_u32(flags) & BATON_SESSION_UNNAMED) != 0;

	if (alive && !noted)
		pg_atomic_fetch_or_u32(flags, BATON_SESSION_UNNAMED);
	else if (!alive && noted)
		pg_atomic_fetch_and_u32(flags, ~(uint32) BATON_SESSION_UNNAMED);
}

bool
baton_unnamed_capture(uint64 session)
{
	BatonStored stored;
	const BatonStored *entry;
	StringInfoData value;

	/*
	 * The session has run nothing here: what stands in this backend is not
	 * its statement yet (baton_client_runs).
	 */
	if (BatonServed.input.installed)
		return false;
	if (placed->plan == NULL || placed->owner != session)
	{
		note_alive(session, false);
		return false;
	}
	note_alive(session, true);
	if (placed->is_put_off)
		return false;
	if (placed->captured)
	{
		if (!baton_settings_changed(placed->plan))
			return false;
		placed->serial = 0;
	}
	else
		placed->captured = true;

	if (!baton_statement_is_describable(placed->plan))
	{
		baton_delta_give_up();
		return true;
	}

	/* most clients send the same text again */
	entry = placed->put_since ? NULL : find_entry(baton_record(session), &stored);
	if (entry != NULL && plan_is(session, entry))
		return false;
	describe(&value);
	baton_delta_put(BATON_KIND_UNNAMED, "", 0, value.data, value.len, NULL, 0);
	pfree(value.data);
	placed->serial = 0;
	placed->put_since = true;
	return true;
}

void
baton_unnamed_forget(uint64 session)
{
	if (placed->owner == session)
		placed->owner = 0;
	if (placed->session == session)
		placed->session = 0;
	placed->fill_next = false;
}

bool
baton_unnamed_give_up(uint64 session)
{
	if (placed->plan == NULL || placed->owner != session ||
		strlen(placed->plan->query_string) < LARGE_TEXT)
		return false;
	/* the next session here closes it, or turns it into its own */
	placed->owner = 0;
	placed->put_since = true;
	note_alive(session, false);
	baton_delta_delete(BATON_KIND_UNNAMED, "", 0);
	return true;
}

/* Appends a message whose body is `body`. */
static void
append_message(StringInfo messages, char type, const char *body, uint32 length)
{
	uint32		network_length = pg_hton32(length + 4);

	appendStringInfoChar(messages, type);
	appendBinaryStringInfo(messages, (char *) &network_length, 4);
	appendBinaryStringInfo(messages, body, length);
}

/*
 * Will pq_getmsgstring() (pqformat.c) accept this string? Returns false if
 * that cannot be known without converting it.
 */
static bool
string_is_accepted(const char *string, Size length)
{
	int			encoding = pg_get_client_encoding();

	/* as pg_any_to_server() (mbutils.c) does if it does not convert */
	if (encoding == GetDatabaseEncoding() || encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(GetDatabaseEncoding(), string, (int) length, true);
	for (Size i = 0; i < length; i++)
		if (IS_HIGHBIT_SET(string[i]))
			return false;
	return true;
}

/*
 * Do these bytes begin with a Query or an unnamed Parse that PostgresMain will
 * not refuse, so that the unnamed statement is dropped, even if its
 * replacement fails? False if they do not hold the whole message.
 */
static bool
drops_statement(const char *bytes, Size length)
{
	const char *at = bytes + 5;
	const char *end;
	uint32		size;

	if (length < 5 || (bytes[0] != 'Q' && bytes[0] != 'P'))
		return false;
	memcpy(&size, bytes + 1, sizeof(size));
	size = pg_ntoh32(size);
	if (size < 4 || size > length - 1)
		return false;
	end = bytes + 1 + size;

	if (bytes[0] == 'P')
	{
		if (at == end || *at != '\0')
			return false;		/* the statement has a name */
		at++;
	}
	length = strnlen(at, end - at);
	if (at + length == end || !string_is_accepted(at, length))
		return false;
	at += length + 1;
	if (bytes[0] == 'P')
	{
		uint16		types;

		if (end - at < (ptrdiff_t) sizeof(types))
			return false;
		memcpy(&types, at, sizeof(types));
		at += sizeof(types) + pg_ntoh16(types) * sizeof(Oid);
	}
	return at == end;
}

/*
 * Do these bytes hold all messages up to a Sync, none of which uses or drops
 * the unnamed statement? A pure function.
 */
static bool
leaves_statement_alone(const char *bytes, Size length)
{
	while (length >= 5)
	{
		const char *name = bytes + 5;
		const char *end;
		uint32		size;

		memcpy(&size, bytes + 1, sizeof(size));
		size = pg_ntoh32(size);
		if (size < 4 || size > length - 1)
			return false;
		end = bytes + 1 + size;
		switch (bytes[0])
		{
			case 'S':
				return size == 4;
			case 'E':
				break;
			case 'B':
				name = memchr(name, '\0', end - name);
				if (name == NULL || ++name >= end || *name == '\0')
					return false;
				break;
			case 'P':
				if (name >= end || *name == '\0')
					return false;
				break;
			case 'D':
			case 'C':
				if (end - name < 2 || (*name != 'P' && (*name != 'S' || name[1] == '\0')))
					return false;
				break;
			default:
				return false;
		}
		length -= 1 + (Size) size;
		bytes = end;
	}
	return false;
}

bool
baton_unnamed_is_put_off(void)
{
	return placed->is_put_off && placed->plan != NULL &&
		placed->owner == BatonServed.session;
}

void
baton_unnamed_make(const char *first_bytes, Size length)
{
	if (!leaves_statement_alone(first_bytes, length) && !fill(BatonServed.session))
	{
		placed->is_empty = true;
		baton_unnamed_injected();
	}
}

bool
baton_unnamed_messages(uint64 session, const char *first_bytes, Size length,
					   StringInfo messages)
{
	BatonSessionSlot *slot = baton_session_slot(session);
	BatonStored stored;
	const BatonStored *entry = NULL;

	placed->fill_next = false;
	if (placed->plan == NULL && (slot->flags & BATON_SESSION_UNNAMED) == 0)
		return false;
	if (drops_statement(first_bytes, length))
		return false;

	if (slot->flags & BATON_SESSION_UNNAMED)
		entry = find_entry(baton_record(session), &stored);
	placed->put_off_next = leaves_statement_alone(first_bytes, length);
	if (entry != NULL && placed->plan != NULL)
	{
		if (plan_is(session, entry))
			return false;
		if (placed->put_off_next)
		{
			put_off(session, entry);
			return false;
		}
		if (fill(session))
			return false;
	}
	if (entry != NULL && placed->plan == NULL)
	{
		/* unnamed, no text, no parameter types */
		append_message(messages, 'P', "\0\0\0\0", 4);
		append_message(messages, 'S', "", 0);
		placed->fill_next = true;
		return true;
	}
	if (placed->plan != NULL)
	{
		/* belongs to another session */
		append_message(messages, 'C', "S\0", 2);
		append_message(messages, 'S', "", 0);
		return true;
	}
	return false;
}
