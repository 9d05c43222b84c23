/*-------------------------------------------------------------------------
 *
 * statement_common.c
 *		The prepared statements that a backend keeps, each once by content.
 *
 * A common statement is a saved plan of plancache.c (CachedPlanSource) that is
 * never executed itself.  It holds what is costly: the raw parse tree, the
 * analysed query trees, and a reference to the generic plan.  A session that
 * looks the statement up gets a small plan of its own, which refers to all that
 * (statement_held.c); what that one comes to have anew, analysed or planned,
 * becomes the common statement's when the session leaves.  Being saved, common
 * statements are told of invalidations whether a session has them or not.
 *
 * Invariants: a common statement changes only when a session leaves, and goes
 * only while nothing refers to it; the map holds exactly those in the list.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "arena.h"
#include "common/hashfn.h"
#include "parser/analyze.h"
#include "plan_source.h"
#include "pooled_state.h"
#include "statement_common.h"
#include "statement_description.h"
#include "statement_make.h"
#include "statement_map.h"
#include "statement_settings.h"
#include "stop_point.h"
#include "utils/memutils.h"

typedef struct CommonEntry
{
	const CommonKey *key;		/* the statement's */
	uint32		hash;
	char		status;
} CommonEntry;

static inline bool
same_key(const CommonKey *one, const CommonKey *other)
{
	return baton_same_environment(one->environment, other->environment) && one->length == other->length &&
		memcmp(one->value, other->value, one->length) == 0;
}

#define SH_PREFIX common
#define SH_ELEMENT_TYPE CommonEntry
#define SH_KEY_TYPE const CommonKey *
#define SH_KEY key
#define SH_HASH_KEY(tb, key) ((key)->hash ^ (uint32) (key)->environment.number ^ (key)->environment.role)
#define SH_EQUAL(tb, a, b) same_key(a, b)
#define SH_SCOPE static inline
#define SH_USE_NONDEFAULT_ALLOCATOR
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) ((a)->hash)
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

BATON_MAP_ALLOCATOR(common)

/* Which statement an entry was last time: equal serial, equal content. */
typedef struct EntryMemo
{
	uint64		serial;
	StatementEnvironment environment;
	uint64		drops;			/* as it was then: nothing has gone since */
	CommonStatement *common;
} EntryMemo;

#define ENTRY_MEMOS 1024

static common_hash *map = NULL;
static dlist_head by_use = DLIST_STATIC_INIT(by_use);
static dlist_head new_ones = DLIST_STATIC_INIT(new_ones);
static uint64 drops = 0;
static EntryMemo *memos = NULL;

void
baton_common_attach(void)
{
	if (map != NULL)
		return;
	memos = MemoryContextAllocZero(TopMemoryContext, ENTRY_MEMOS * sizeof(EntryMemo));
	map = common_create(TopMemoryContext, 64, NULL);
}

static void
set_new(CommonStatement *common, bool is_new)
{
	if (common->is_new == is_new)
		return;
	common->is_new = is_new;
	if (is_new)
		dlist_push_head(&new_ones, &common->new_node);
	else
		dlist_delete(&common->new_node);
}

static void
drop(CommonStatement *common)
{
	Assert(common->pins == 0);
	drops++;
	set_new(common, false);
	common_delete(map, &common->key);
	dlist_delete(&common->use_node);
	DropCachedPlan(common->plan);
}

/* The least recently used one that no session has; NULL: there is none. */
static CommonStatement *
oldest(void)
{
	dlist_iter	iter;

	if (map == NULL)
		return NULL;
	dlist_reverse_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		if (common->pins == 0)
			return common;
	}
	return NULL;
}

uint64
baton_common_oldest(void)
{
	CommonStatement *common = oldest();

	return common == NULL ? 0 : common->last_use;
}

Size
baton_common_drop_oldest(void)
{
	CommonStatement *common = oldest();
	Size		bytes;

	if (common == NULL)
		return 0;
	bytes = baton_plan_bytes(common->plan, 1);
	drop(common);
	return bytes;
}

/* It is used: it goes to the head of the list. */
static void
note_use(CommonStatement *common)
{
	common->last_use = ++BatonSelf.memory.uses;
	dlist_move_head(&by_use, &common->use_node);
}

static void
set_key(CommonKey *key, const char *value, uint32 length, StatementEnvironment environment)
{
	key->environment = environment;
	key->value = value;
	key->length = length;
	key->hash = hash_bytes((const unsigned char *) value, length);
}

static CommonStatement *
find(const CommonKey *key)
{
	CommonEntry *entry = common_lookup(map, key);

	return entry == NULL ? NULL :
		unconstify(CommonStatement *, (const CommonStatement *)
				   ((const char *) entry->key - offsetof(CommonStatement, key)));
}

/* Adds a statement, which lies in its plan's context. */
static CommonStatement *
add(CachedPlanSource *plan, const CommonKey *key)
{
	CommonStatement *common = MemoryContextAllocZero(plan->context,
													 sizeof(CommonStatement));
	char	   *value = MemoryContextAlloc(plan->context, key->length);
	bool		found;

	memcpy(value, key->value, key->length);
	common->key = *key;
	common->key.value = value;
	common->plan = plan;
	common->generic_cost = -1;
	common->names = baton_names_collect(plan);
	set_new(common, true);
	common_insert(map, &common->key, &found);
	Assert(!found);
	dlist_push_head(&by_use, &common->use_node);
	note_use(common);
	return common;
}

static CommonStatement *
find_or_make(const char *value, uint32 length, StatementEnvironment environment)
{
	CommonKey	key;
	CommonStatement *common;
	CachedPlanSource *plan;
	bool		from_sql;

	set_key(&key, value, length, environment);
	common = find(&key);
	if (common != NULL)
		return common;
	plan = baton_statement_make(value, length, &from_sql);
	if (plan == NULL)
		return NULL;
	baton_settings_make_common(plan);
	common = add(plan, &key);
	SaveCachedPlan(plan);
	return common;
}

void
baton_common_analysed(CommonStatement *common, uint64 session)
{
	common->analyst = session;
	common->custom.known = common->custom.alike = false;
	baton_names_analysed(common->names);
	set_new(common, true);
}

/* An object was made that it may mean: is to be analysed again. */
static void
invalidate(CommonStatement *common)
{
	CachedPlanSource *plan = common->plan;

	if (plan->raw_parse_tree == NULL ||
		!stmt_requires_parse_analysis(plan->raw_parse_tree))
		return;					/* is never analysed (statement_make.c) */
	baton_plan_invalidate(plan);
}

void
baton_common_object_made(uint32 hash)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		if (common->plan->is_valid && baton_names_hidden_by(common->names, hash))
			invalidate(common);
	}
}

/* Those that are not valid will be new again when they are. */
static void
look_at_new_ones(void)
{
	while (!dlist_is_empty(&new_ones) && baton_names_can_look())
	{
		CommonStatement *common = dlist_head_element(CommonStatement, new_node, &new_ones);

		if (common->plan->is_valid && baton_names_look_at(common->names, common->plan))
			invalidate(common);
		set_new(common, false);
	}
}

BATON_STOP_POINT CommonStatement *
baton_common_get(const BatonStored *entry, StatementEnvironment environment, uint64 session)
{
	EntryMemo  *memo = &memos[entry->serial % ENTRY_MEMOS];

	baton_names_look_up_functions();
	look_at_new_ones();
	if (memo->serial != entry->serial || !baton_same_environment(memo->environment, environment) ||
		memo->drops != drops || memo->common == NULL)
	{
		/* it is taken apart: of a copy */
		char	   *value = baton_entry_copy_value(entry);

		memo->common = find_or_make(value, entry->value_length, environment);
		pfree(value);
		if (memo->common == NULL)
			return NULL;
		memo->serial = entry->serial;
		memo->environment = environment;
		memo->drops = drops;
	}
	/* a time that was read is its session's alone */
	if (memo->common->analyst != session && memo->common->plan->is_valid &&
		baton_names_moment(memo->common->names))
		invalidate(memo->common);
	note_use(memo->common);
	return memo->common;
}

CommonStatement *
baton_common_find(const char *value, uint32 length, StatementEnvironment environment)
{
	CommonKey	key;

	look_at_new_ones();
	set_key(&key, value, length, environment);
	return find(&key);
}

CommonStatement *
baton_common_keep(CachedPlanSource *plan, const char *value, uint32 length,
				  StatementEnvironment environment)
{
	CommonKey	key;
	CommonStatement *common;

	set_key(&key, value, length, environment);
	if (find(&key) != NULL)
		return NULL;
	baton_settings_make_common(plan);
	common = add(plan, &key);
	if (plan->gplan != NULL)
		common->generic_cost = plan->generic_cost;
	return common;
}

void
baton_common_watch(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		common->watched = common->plan->is_valid &&
			baton_statement_has_settings(common->key.value, common->key.length);
	}
}

static inline bool
is_lost(const CommonStatement *common)
{
	return common->watched && !common->plan->is_valid;
}

bool
baton_common_lost_any(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
		if (is_lost(dlist_container(CommonStatement, use_node, iter.cur)))
		return true;
	return false;
}

/* Whatever environment it was analysed in. */
bool
baton_common_lost(const char *value, uint32 length)
{
	dlist_iter	iter;

	dlist_foreach(iter, &by_use)
	{
		const CommonStatement *common =
		dlist_container(CommonStatement, use_node, iter.cur);

		if (is_lost(common) && common->key.length == length &&
			memcmp(common->key.value, value, length) == 0)
			return true;
	}
	return false;
}
