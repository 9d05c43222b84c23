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
	return one->environment == other->environment && one->length == other->length &&
		memcmp(one->value, other->value, one->length) == 0;
}

#define SH_PREFIX common
#define SH_ELEMENT_TYPE CommonEntry
#define SH_KEY_TYPE const CommonKey *
#define SH_KEY key
#define SH_HASH_KEY(tb, key) ((key)->hash ^ (uint32) (key)->environment)
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
	uint64		environment;
	uint64		drops;			/* as it was then: nothing has gone since */
	CommonStatement *common;
} EntryMemo;

#define ENTRY_MEMOS 1024

int			baton_backend_statements = 1000;

static common_hash *map = NULL;
static dlist_head by_use = DLIST_STATIC_INIT(by_use);
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
drop(CommonStatement *common)
{
	Assert(common->pins == 0);
	drops++;
	common_delete(map, &common->key);
	dlist_delete(&common->use_node);
	DropCachedPlan(common->plan);
}

void
baton_common_trim(void)
{
	while (map->members > (uint32) baton_backend_statements)
	{
		CommonStatement *oldest = NULL;
		dlist_node *node;

		for (node = by_use.head.prev; node != &by_use.head; node = node->prev)
		{
			oldest = dlist_container(CommonStatement, use_node, node);
			if (oldest->pins == 0)
				break;
			oldest = NULL;
		}
		if (oldest == NULL)
			break;				/* a session has them all */
		drop(oldest);
	}
}

static void
set_key(CommonKey *key, const char *value, uint32 length, uint64 environment)
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
	common_insert(map, &common->key, &found);
	Assert(!found);
	dlist_push_head(&by_use, &common->use_node);
	return common;
}

static CommonStatement *
find_or_make(const char *value, uint32 length, uint64 environment)
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
baton_common_analysed(CommonStatement *common)
{
	common->custom.known = common->custom.alike = false;
	baton_names_analysed(common->names);
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

static void
look_at_names(void)
{
	dlist_iter	iter;

	if (!baton_names_to_look_at())
		return;
	dlist_foreach(iter, &by_use)
	{
		CommonStatement *common = dlist_container(CommonStatement, use_node, iter.cur);

		if (common->plan->is_valid && baton_names_look_at(common->names, common->plan))
			invalidate(common);
	}
	baton_names_looked_at();
}

BATON_STOP_POINT CommonStatement *
baton_common_get(const BatonStored *entry, uint64 environment)
{
	EntryMemo  *memo = &memos[entry->serial % ENTRY_MEMOS];

	look_at_names();
	if (memo->serial != entry->serial || memo->environment != environment ||
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
	dlist_move_head(&by_use, &memo->common->use_node);
	return memo->common;
}

CommonStatement *
baton_common_find(const char *value, uint32 length, uint64 environment)
{
	CommonKey	key;

	look_at_names();
	set_key(&key, value, length, environment);
	return find(&key);
}

CommonStatement *
baton_common_keep(CachedPlanSource *plan, const char *value, uint32 length,
				  uint64 environment)
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
