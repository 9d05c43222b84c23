/*-------------------------------------------------------------------------
 *
 * delta.c
 *		Changes of the session's context on their way to the dispatcher, and what
 *		the client has been told by ParameterStatus.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "utils/memutils.h"

#include "arena.h"
#include "delta.h"
#include "dispatcher_link.h"
#include "pg_guc.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		Changes of the held session's context on their way to the dispatcher.
 *
 * Changes are collected first and sent when the session leaves: whether they
 * fit into the dispatcher's session memory must be known before, because no
 * backend can serve a session whose context is incomplete. If they do not fit,
 * the session stays on this backend, and the collected changes stay here until
 * they fit or the session ends. A change that no message can hold never fits
 * (the name of a parameter given to set_config() may be of any length; a
 * statement may be almost as long as memory can be allocated).
 *
 * A session that has to stay goes on changing its context. Its collected
 * changes are settled now and then: of several changes of one item the last
 * counts. So a session that has undone what did not fit can leave, and any
 * other session collects no more than its context is large.
 *
 * Owner: the session in place. One at a time.
 * ----------------------------------------------------------------
 */

/* Memory that is kept between sessions; more is freed. */
#define DELTA_KEPT_BYTES (64 * 1024)

/* A collected change: this header, then the message's payload. */
typedef struct DeltaHeader
{
	uint32		type;			/* BATON_MSG_PUT or _DELETE */
	uint32		length;			/* bytes of payload */
} DeltaHeader;

/* With fewer changes, settling is never deferred. */
#define SETTLE_ALWAYS 1000

/*
 * The bytes that one item adds to the size of a context (bytes_of_item,
 * memory/mod.rs).
 */
#define ITEM_BYTES(key_length, value_length) \
	((int64) (sizeof(BatonItem) + sizeof(BatonEntry)) + (key_length) + (value_length))

/* The place of a collected change, during settling. */
typedef struct DeltaChange
{
	int			position;		/* of its DeltaHeader */
	uint16		kind;
	uint16		key_length;
	const char *key;
	int64		bytes;			/* of the item that it puts; 0 if it deletes */
	bool		is_void;
} DeltaChange;

static StringInfoData collected;
static bool initialised = false;
static int	change_count = 0;	/* collected */
static int	settled_count = 0;	/* left after the last settling */
static int64 growth = 0;
static int64 growth_in_memory = 0;	/* of entries that no other session has */

static void
append(const void *data, Size length)
{
	appendBinaryStringInfo(&collected, (const char *) data, length);
}

/*
 * Begins a change; the caller appends `length` bytes of payload. Returns false
 * if it is too large.
 */
static bool
begin(uint32 type, Size key_length, Size length)
{
	DeltaHeader header;

	if (!initialised)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&collected);
		MemoryContextSwitchTo(old);
		initialised = true;
	}
	if (key_length > PG_UINT16_MAX ||
		collected.len + sizeof(header) + length >= MaxAllocSize)
		BatonServed.delta_too_large = true;
	if (BatonServed.delta_too_large)
		return false;
	header.type = type;
	header.length = (uint32) length;
	enlargeStringInfo(&collected, sizeof(header) + length);
	append(&header, sizeof(header));
	change_count++;
	return true;
}

void
baton_delta_put(uint16 kind, const char *key, Size key_length,
				const char *value, Size value_length,
				const BatonStatementCounter *counters, int64 aux)
{
	uint16		key_length16 = (uint16) key_length;
	uint32		counter = counters != NULL ? 1 : 0;
	Size		counter_length = counters != NULL ? sizeof(*counters) : 0;

	if (!begin(BATON_MSG_PUT, key_length,
			   sizeof(kind) + sizeof(key_length16) + key_length +
			   sizeof(counter) + sizeof(aux) + counter_length + value_length))
		return;
	growth += ITEM_BYTES(key_length, value_length);
	growth_in_memory += ITEM_BYTES(key_length, value_length);
	append(&kind, sizeof(kind));
	append(&key_length16, sizeof(key_length16));
	append(key, key_length);
	append(&counter, sizeof(counter));
	append(&aux, sizeof(aux));
	if (counters != NULL)
		append(counters, counter_length);
	append(value, value_length);
}

void
baton_delta_delete(uint16 kind, const char *key, Size key_length)
{
	uint16		key_length16 = (uint16) key_length;

	if (!begin(BATON_MSG_DELETE, key_length,
			   sizeof(kind) + sizeof(key_length16) + key_length))
		return;
	append(&kind, sizeof(kind));
	append(&key_length16, sizeof(key_length16));
	append(key, key_length);
}

void
baton_delta_give_up(void)
{
	BatonServed.delta_too_large = true;
}

Size
baton_delta_size(void)
{
	if (BatonServed.delta_too_large)
		return DELTA_TOO_LARGE;
	return initialised ? collected.len : 0;
}

int64
baton_delta_growth(void)
{
	return growth;
}

bool
baton_delta_shrinks(void)
{
	return !BatonServed.delta_too_large && growth_in_memory <= 0;
}

/*
 * The order of items in a context; of changes of one item, the earlier first.
 */
static int
compare_keys(uint16 kind, const char *key, uint16 key_length,
			 uint16 other_kind, const char *other, uint16 other_length)
{
	int			order;

	if (kind != other_kind)
		return kind < other_kind ? -1 : 1;
	order = memcmp(key, other, Min(key_length, other_length));
	if (order == 0)
		order = (int) key_length - (int) other_length;
	return order;
}

static int
compare_changes(const void *one, const void *other)
{
	const DeltaChange *a = one;
	const DeltaChange *b = other;
	int			order = compare_keys(a->kind, a->key, a->key_length,
									 b->kind, b->key, b->key_length);

	return order != 0 ? order : a->position - b->position;
}

static int
compare_positions(const void *one, const void *other)
{
	return ((const DeltaChange *) one)->position - ((const DeltaChange *) other)->position;
}

static void
find_changes(DeltaChange *changes)
{
	int			position = 0;

	for (int i = 0; i < change_count; i++)
	{
		DeltaHeader header;
		DeltaChange *change = &changes[i];
		const char *payload = collected.data + position + sizeof(header);

		memcpy(&header, collected.data + position, sizeof(header));
		change->position = position;
		memcpy(&change->kind, payload, sizeof(change->kind));
		memcpy(&change->key_length, payload + sizeof(change->kind), sizeof(change->key_length));
		change->key = payload + sizeof(change->kind) + sizeof(change->key_length);
		change->bytes = 0;
		change->is_void = false;
		if (header.type == BATON_MSG_PUT)
		{
			Size		before = sizeof(change->kind) + sizeof(change->key_length) +
			change->key_length;
			uint32		counter;

			memcpy(&counter, payload + before, sizeof(counter));
			before += sizeof(counter) + sizeof(int64);
			if (counter != 0)
				before += sizeof(BatonStatementCounter);
			change->bytes = ITEM_BYTES(change->key_length, header.length - before);
		}
		position += sizeof(header) + header.length;
	}
}

/* Subtracts what the changes, sorted like items, replace or delete. */
static void
subtract_replaced(const DeltaChange *changes, const BatonSessionRecord *record)
{
	const BatonItem *items = baton_record_items(record);
	uint32		item = 0;

	for (int i = 0; i < change_count; i++)
	{
		const DeltaChange *change = &changes[i];

		if (change->is_void)
			continue;
		for (; item < record->item_count; item++)
		{
			BatonStored stored;
			const BatonStored *entry = baton_entry(&stored, items[item].entry);
			int			order = compare_keys(entry->kind, entry->key, entry->key_length,
											 change->kind, change->key, change->key_length);

			if (order == 0)
			{
				int64		bytes = ITEM_BYTES(entry->key_length, entry->value_length);

				growth -= bytes;
				if (!baton_entry_is_shared(items[item].entry))
					growth_in_memory -= bytes;
			}
			if (order > 0)
				break;
		}
	}
}

/* Removes void changes; the others keep their order. */
static void
remove_void(DeltaChange *changes)
{
	int			kept = 0;
	int			length = 0;

	qsort(changes, change_count, sizeof(*changes), compare_positions);
	for (int i = 0; i < change_count; i++)
	{
		int			from = changes[i].position;
		int			to = i + 1 < change_count ? changes[i + 1].position : collected.len;

		if (changes[i].is_void)
			continue;
		memmove(collected.data + length, collected.data + from, to - from);
		length += to - from;
		kept++;
	}
	collected.len = length;
	collected.data[length] = '\0';
	change_count = kept;
}

/*
 * Deferred until the number of changes has grown by a sixteenth; otherwise
 * each transaction would pay for all changes of earlier ones.
 */
void
baton_delta_settle(const BatonSessionRecord *record)
{
	DeltaChange *changes;
	bool		some_void = false;

	if (change_count == 0 ||
		(change_count > SETTLE_ALWAYS && change_count < settled_count + settled_count / 16))
		return;

	changes = MemoryContextAllocHuge(CurrentMemoryContext, change_count * sizeof(*changes));
	find_changes(changes);
	qsort(changes, change_count, sizeof(*changes), compare_changes);
	growth = 0;
	for (int i = 0; i < change_count; i++)
	{
		if (i + 1 < change_count &&
			compare_keys(changes[i].kind, changes[i].key, changes[i].key_length,
						 changes[i + 1].kind, changes[i + 1].key, changes[i + 1].key_length) == 0)
			changes[i].is_void = some_void = true;
		else
			growth += changes[i].bytes;
	}
	growth_in_memory = growth;
	subtract_replaced(changes, record);
	if (some_void)
		remove_void(changes);
	settled_count = change_count;
	pfree(changes);
}

/* Sends these changes.  Returns false if the dispatcher has gone. */
static bool
send_changes(int fd, uint64 session, const char *changes, int length)
{
	int			position = 0;

	while (position < length)
	{
		DeltaHeader header;

		memcpy(&header, changes + position, sizeof(header));
		position += sizeof(header);
		if (!baton_channel_send(fd, (uint16) header.type, session,
								changes + position, header.length))
			return false;
		position += header.length;
	}
	return true;
}

void
baton_delta_send(int fd, uint64 session)
{
	Assert(!BatonServed.delta_too_large);

	/* if the dispatcher has gone, the control socket's end will tell */
	if (initialised)
		(void) send_changes(fd, session, collected.data, collected.len);
	baton_delta_drop();
}

void
baton_delta_drop(void)
{
	BatonServed.delta_too_large = false;
	change_count = settled_count = 0;
	growth = growth_in_memory = 0;
	if (!initialised)
		return;
	resetStringInfo(&collected);
	if (collected.maxlen > DELTA_KEPT_BYTES)
	{
		pfree(collected.data);
		initialised = false;
	}
}

/* ----------------------------------------------------------------
 *		Changes that were sent, and that the dispatcher may not have stored yet.
 *
 * If the dispatcher dies, they are sent again to the next one, which has the
 * session's context as it was before them, or with a part of them.  To put or
 * delete an item twice does no harm.
 *
 * Owner: this process.  The sessions have been given back, or greeted.
 * ----------------------------------------------------------------
 */

typedef struct Unheard
{
	dlist_node	node;
	uint64		session;
	uint32		told;			/* the session's count, with this message */
	uint16		kind;			/* of the message that follows the changes */
	int			changes;		/* bytes, at the start of `data` */
	int			payload;		/* bytes of the message's payload, after them */
	char		data[FLEXIBLE_ARRAY_MEMBER];
} Unheard;

/* More than that is not kept: then the last sessions are lost. */
#define UNHEARD_BYTES_MAX ((Size) 16 * 1024 * 1024)
#define UNHEARD_MAX 1000

/* In the order in which they were sent. */
static dlist_head unheard = DLIST_STATIC_INIT(unheard);
static Size unheard_bytes = 0;
static int	unheard_count = 0;

static bool
is_heard(const Unheard *one)
{
	BatonIdentity *identity = baton_identity((uint32) one->session);

	return identity->id != one->session || (int32) (identity->heard - one->told) >= 0;
}

/* Drops those that the dispatcher has stored, and those whose sessions ended. */
static void
drop_heard(void)
{
	dlist_mutable_iter each;

	dlist_foreach_modify(each, &unheard)
	{
		Unheard    *one = dlist_container(Unheard, node, each.cur);

		if (!is_heard(one))
			continue;
		dlist_delete(each.cur);
		unheard_bytes -= one->changes + one->payload;
		unheard_count--;
		pfree(one);
	}
}

void
baton_unheard_add(uint64 session, uint16 kind, const char *payload, int length)
{
	int			changes = initialised && session == baton_session_held() ? collected.len : 0;
	Size		size = (Size) changes + length;
	Unheard    *one;

	drop_heard();
	if (unheard_count >= UNHEARD_MAX || unheard_bytes + size > UNHEARD_BYTES_MAX)
		return;
	one = MemoryContextAllocExtended(TopMemoryContext, offsetof(Unheard, data) + size,
									 MCXT_ALLOC_NO_OOM);
	if (one == NULL)
		return;
	one->session = session;
	one->told = baton_identity((uint32) session)->told;
	one->kind = kind;
	one->changes = changes;
	one->payload = length;
	if (changes > 0)
		memcpy(one->data, collected.data, changes);
	if (length > 0)
		memcpy(one->data + changes, payload, length);
	dlist_push_tail(&unheard, &one->node);
	unheard_bytes += size;
	unheard_count++;
}

bool
baton_unheard_any(void)
{
	if (likely(dlist_is_empty(&unheard)))
		return false;
	drop_heard();
	return !dlist_is_empty(&unheard);
}

void
baton_unheard_sessions(StringInfo into)
{
	dlist_iter	each;

	drop_heard();
	baton_wire_u32(into, (uint32) unheard_count);
	dlist_foreach(each, &unheard)
		baton_wire_u64(into, dlist_container(Unheard, node, each.cur)->session);
}

void
baton_unheard_tell(int fd)
{
	dlist_iter	each;

	dlist_foreach(each, &unheard)
	{
		Unheard    *one = dlist_container(Unheard, node, each.cur);

		if (!send_changes(fd, one->session, one->data, one->changes) ||
			!baton_channel_send(fd, one->kind, one->session, one->data + one->changes, one->payload))
			return;				/* this dispatcher has gone, too */
	}
}

/* ----------------------------------------------------------------
 *		ParameterStatus: the values that each client has been told.
 *
 * guc.c keeps the value last sent in each reported parameter's record
 * (last_reported), and sends a value that differs (ReportGUCOption). In a
 * backend that serves many clients this memory must belong to the client: it
 * is exchanged when a session comes. If a parameter then has another value
 * (after a reload of the configuration, for example), the client shall hear of
 * it when it would from an ordinary backend: just before ReadyForQuery, where
 * PostgresMain calls ReportChangedGUCOptions() (guc.c). So nothing is sent
 * when the session comes; the records are marked when its own message is about
 * to be read (baton_report_arm).
 *
 * The value of the REPORTED entry: name NUL value NUL, for each parameter that
 * is reported and was sent.
 *
 * Invariants: `told` holds the records' last_reported as of the last look.
 * guc.c changes last_reported only while it sends a ParameterStatus, so
 * without one (note_message, or our own call) nothing has changed.
 * last_reported is allocated as guc.c does it.
 * ----------------------------------------------------------------
 */

static BatonPlacedReports *const placed = &BatonPlaced.reports;

/* For comparison with what was told. */
static StringInfoData now_told;

/* The reported parameters, in the table's order, as of its version. */
static struct config_generic **reported = NULL;
static int	reported_count = 0;
static uint64 reported_version = 0;

/*
 * The offsets in `told` of each parameter's pair, and of the end of the last
 * one. Valid if `told` has all of them, in this order.
 */
static int *told_at = NULL;
static bool told_at_is_known = false;

static void
find_reported(void)
{
	struct config_generic **variables;
	int			count;
	int			found = 0;

	if (reported != NULL && reported_version == baton_guc_table_version())
		return;
	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
		if (variables[i]->flags & GUC_REPORT)
			found++;
	if (reported != NULL)
		pfree(reported);
	reported = NULL;
	reported = MemoryContextAlloc(TopMemoryContext, (found + 1) * sizeof(*reported));
	told_at_is_known = false;
	if (told_at != NULL)
		pfree(told_at);
	told_at = NULL;
	told_at = MemoryContextAlloc(TopMemoryContext, (found + 1) * sizeof(*told_at));
	reported_count = 0;
	for (int i = 0; i < count; i++)
		if (variables[i]->flags & GUC_REPORT)
			reported[reported_count++] = variables[i];
	reported_version = baton_guc_table_version();
}

static void
look(StringInfo into)
{
	resetStringInfo(into);
	find_reported();
	told_at_is_known = false;
	for (int i = 0; i < reported_count; i++)
	{
		struct config_generic *record = reported[i];

		if (record->last_reported == NULL)
			continue;
		appendBinaryStringInfo(into, record->name, strlen(record->name) + 1);
		appendBinaryStringInfo(into, record->last_reported,
							   strlen(record->last_reported) + 1);
	}
}

const char *
baton_report_attach(void)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	if (placed->told.data == NULL)
	{
		initStringInfo(&placed->told);
		initStringInfo(&now_told);
	}
	MemoryContextSwitchTo(old);
	look(&placed->told);
	placed->told_serial = 0;
	if (baton_guc_find("in_hot_standby") == NULL)
		return "parameter \"in_hot_standby\" was not found";
	return NULL;
}

/*
 * The value of this name in the pairs, searched from `at` on; NULL if it has
 * none.
 */
static const char *
value_of(const char *name, const char *at, const char *end)
{
	while (at < end)
	{
		const char *value = at + strlen(at) + 1;

		if (value >= end)
			break;
		if (strcmp(at, name) == 0)
			return value;
		at = value + strlen(value) + 1;
	}
	return NULL;
}

/* Makes the records remember what the client was told. */
static void
exchange_all(const char *pairs, Size length)
{
	const char *end = pairs + length;
	const char *next = pairs;

	if (length > 0 && end[-1] != '\0')
		elog(ERROR, "stored parameter reports have no end");

	find_reported();
	told_at_is_known = true;
	for (int i = 0; i < reported_count; i++)
	{
		struct config_generic *record = reported[i];
		const char *value = NULL;

		/* another backend wrote them, usually in the same order */
		if (next < end && strcmp(next, record->name) == 0)
		{
			value = value_of(record->name, next, end);
			told_at[i] = next - pairs;
		}
		else
		{
			value = value_of(record->name, pairs, end);
			told_at_is_known = false;
		}
		if (value != NULL)
			next = value + strlen(value) + 1;
		baton_guc_set_reported(record, value);
	}
	told_at[reported_count] = length;
	told_at_is_known &= next == end;
}

/* The parameters that follow the role. */
static const char *const identity_names[] = {"session_authorization", "is_superuser"};

static struct config_generic *
of_identity(int nth)
{
	static struct config_generic *found[lengthof(identity_names)];

	if (found[nth] == NULL)
		found[nth] = baton_guc_find(identity_names[nth]);
	return found[nth];
}

/*
 * The same if `told` is what the records remember now, and differs from the
 * pairs in the value of session_authorization alone, as between two roles.
 * Returns false, having changed nothing, if this does not hold.
 */
static bool
exchange_session_user(const char *pairs, Size length)
{
	const struct config_generic *record = of_identity(0);
	const char *told = placed->told.data;
	Size		before;			/* up to the value */
	Size		after;			/* from the value's end on */
	int			nth = 0;

	if (!told_at_is_known)
		return false;
	while (nth < reported_count && reported[nth] != record)
		nth++;
	if (nth == reported_count)
		return false;
	before = told_at[nth] + strlen(record->name) + 1;
	after = placed->told.len - told_at[nth + 1];
	if (length <= before + after || memcmp(told, pairs, before) != 0 ||
		memcmp(told + told_at[nth + 1], pairs + length - after, after) != 0 ||
		before + strnlen(pairs + before, length - before) + 1 != length - after)
		return false;
	baton_guc_set_reported(reported[nth], pairs + before);
	for (int i = nth + 1; i <= reported_count; i++)
		told_at[i] += (int) length - placed->told.len;
	return true;
}

/*
 * The value as ShowGUCOption() (_ShowOption() in guc.c of 15) returns it,
 * without a copy; NULL if that is not supported.
 */
static const char *
shown(const struct config_generic *record)
{
	switch (record->vartype)
	{
		case PGC_BOOL:
			{
				const struct config_bool *conf = (const struct config_bool *) record;

				if (conf->show_hook)
					return conf->show_hook();
				return *conf->variable ? "on" : "off";
			}
		case PGC_STRING:
			{
				const struct config_string *conf = (const struct config_string *) record;

				if (conf->show_hook)
					return conf->show_hook();
				return *conf->variable ? *conf->variable : "";
			}
		default:
			return NULL;
	}
}

/* Does the parameter have a value that its client has not been told? */
static bool
is_news(struct config_generic *record)
{
	const char *value = shown(record);
	char	   *copy = NULL;
	bool		same;

	if (record->flags & GUC_SUPERUSER_ONLY)
		return true;			/* the next call might fail; leave it to guc.c */
	if (value == NULL)
		value = copy = GetConfigOptionByName(record->name, NULL, true);
	same = value != NULL && record->last_reported != NULL &&
		strcmp(value, record->last_reported) == 0;
	if (copy != NULL)
		pfree(copy);
	return !same;
}

static bool
any_news(void)
{
	for (int i = 0; i < reported_count; i++)
	{
		if (is_news(reported[i]))
			return true;
	}
	return false;
}

static bool
any_identity_news(void)
{
	for (int i = 0; i < (int) lengthof(identity_names); i++)
		if ((of_identity(i)->flags & GUC_REPORT) && is_news(of_identity(i)))
			return true;
	return false;
}

void
baton_report_install(const BatonStored *entry)
{
	uint64		serial = entry ? entry->serial : 0;

	find_reported();
	if (serial == 0 || serial != placed->told_serial || placed->sent)
	{
		const char *pairs = entry ? entry->value : "";
		Size		length = entry ? entry->value_length : 0;

		if (placed->sent)
			look(&placed->told);
		placed->sent = false;
		if (placed->told.len != (int) length ||
			memcmp(placed->told.data, pairs, length) != 0)
		{
			StringInfoData other;

			/* it is read up to its terminators, so from a copy */
			resetStringInfo(&now_told);
			appendBinaryStringInfo(&now_told, pairs, length);
			if (exchange_session_user(now_told.data, length))
				baton_guc_report_identity_touched = true;
			else
			{
				exchange_all(now_told.data, length);
				baton_guc_report_touched = true;
			}
			other = placed->told;
			placed->told = now_told;
			now_told = other;
		}
		placed->told_serial = serial;
	}

	/*
	 * A touched parameter stays touched until the client has been told. If
	 * none is touched, all parameters but these have the values that the last
	 * client had been told.
	 */
	if (baton_guc_report_touched)
		placed->news = any_news();
	else
		placed->news = baton_guc_report_identity_touched && any_identity_news();
	baton_guc_report_touched = placed->news;
	baton_guc_report_identity_touched = false;
}

void
baton_report_withhold(void)
{
	placed->withheld = true;
}

void
baton_report_arm(void)
{
	/* guc.c assumes that the client has received it */
	if (placed->withheld)
		exchange_all(placed->told.data, placed->told.len);
	placed->news |= placed->withheld;
	placed->withheld = false;
	if (!placed->news)
		return;
	placed->news = false;
	baton_guc_report_touched = false;
	placed->sent = true;		/* it will be; capture will look */
	baton_guc_look_for_reports();
}

void
baton_report_greet(StringInfo reported)
{
	exchange_all("", 0);
	BeginReportingGUCOptions();
	baton_guc_report_touched = false;
	look(&placed->told);
	placed->told_serial = 0;
	placed->sent = false;
	placed->news = false;
	appendBinaryStringInfo(reported, placed->told.data, placed->told.len);
}

bool
baton_report_capture(void)
{
	StringInfoData other;

	if (!placed->sent)
		return false;
	placed->sent = false;
	look(&now_told);
	if (now_told.len == placed->told.len &&
		memcmp(now_told.data, placed->told.data, placed->told.len) == 0)
		return false;
	baton_delta_put(BATON_KIND_REPORTED, "", 0, now_told.data, now_told.len,
					NULL, 0);
	other = placed->told;
	placed->told = now_told;
	now_told = other;
	placed->told_serial = 0;
	return true;
}

void
baton_report_note_message(char type)
{
	if (type == 'S')
		placed->sent = true;
}
