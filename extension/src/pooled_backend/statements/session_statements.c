/*-------------------------------------------------------------------------
 *
 * session_statements.c
 *		The statements that the session in place has looked up: what they take
 *		from the common statements, and leave to them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "nodes/memnodes.h"
#include "utils/memutils.h"

#include "arena.h"
#include "dispatcher_link.h"
#include "pg_plancache.h"
#include "pooled_state.h"
#include "session_statements.h"
#include "statement_cache.h"
#include "statement_description.h"
#include "statement_environment.h"

/* ----------------------------------------------------------------
 *		The counters of prepared statements, by which plancache.c chooses
 *		between custom and generic plans.
 *
 * Counters are not items; they are numbers in CONTROL that the owner of the
 * session writes. A statement's first counters go with its PUT; the backend
 * learns in which slot the dispatcher keeps them when the session comes again.
 * ----------------------------------------------------------------
 */

/* The counters of a plan that was never executed (CreateCachedPlan). */
static const BatonStatementCounter fresh_counters = {-1, 0, 0, 0};

/*
 * The number of custom plans that choose_custom_plan() (plancache.c) begins
 * with.
 */
#define FIRST_CUSTOM_PLANS 5

void
baton_counters_get(const CachedPlanSource *plan, const SparedPlans *spared,
				   BatonStatementCounter *counters)
{
	BatonStatementCounter now;
	int64		executions;
	int64		counted;

	baton_plan_get_counters(plan, counters);
	if (spared->due == 0)
		return;

	/* executions of the generic plan first count as custom plans */
	now = *counters;
	executions = now.num_generic_plans - spared->set.num_generic_plans;
	counted = Min(executions, spared->due);
	*counters = spared->own;
	counters->generic_cost = now.generic_cost;
	counters->num_custom_plans += counted +
		(now.num_custom_plans - spared->set.num_custom_plans);
	counters->total_custom_cost += counted * spared->cost +
		(now.total_custom_cost - spared->set.total_custom_cost);
	counters->num_generic_plans += executions - counted;
}

/*
 * From now on the plan's custom plans, of that cost each, are spared: as many
 * as the server would begin with, and no more.
 */
static void
counters_spare(CachedPlanSource *plan, SparedPlans *spared, double cost)
{
	if (spared->due > 0 || plan->num_custom_plans >= FIRST_CUSTOM_PLANS)
		return;
	spared->due = FIRST_CUSTOM_PLANS - plan->num_custom_plans;
	spared->cost = cost;
	baton_plan_get_counters(plan, &spared->own);

	/*
	 * what the server will then base the choice between custom and generic
	 * plans on
	 */
	spared->set = spared->own;
	spared->set.num_custom_plans = FIRST_CUSTOM_PLANS;
	spared->set.total_custom_cost += spared->due * cost;
	baton_plan_set_counters(plan, &spared->set);
}

static void
counters_end_sparing(CachedPlanSource *plan, SparedPlans *spared)
{
	BatonStatementCounter counters;

	if (spared->due == 0)
		return;
	baton_counters_get(plan, spared, &counters);
	spared->due = 0;
	baton_plan_set_counters(plan, &counters);
}

/* Gives the plan the counters of that slot. */
static void
counters_load(CachedPlanSource *plan, uint32 counter,
			  BatonStatementCounter *written)
{
	*written = counter == BATON_NO_COUNTER ? fresh_counters : *baton_counter(counter);
	baton_plan_set_counters(plan, written);
}

bool
baton_counters_changed(const CachedPlanSource *plan, const SparedPlans *spared,
					   const BatonStatementCounter *written)
{
	BatonStatementCounter counters;

	baton_counters_get(plan, spared, &counters);
	return counters.num_custom_plans != written->num_custom_plans ||
		counters.num_generic_plans != written->num_generic_plans ||
		counters.generic_cost != written->generic_cost ||
		counters.total_custom_cost != written->total_custom_cost;
}

void
baton_counters_store(const CachedPlanSource *plan, const SparedPlans *spared,
					 uint32 counter, BatonStatementCounter *written)
{
	baton_counters_get(plan, spared, written);
	if (counter != BATON_NO_COUNTER)
		*baton_counter(counter) = *written;
}

/* ----------------------------------------------------------------
 *		What a session's statements leave for other sessions.
 *
 * When a session leaves its backend, what its views have acquired goes to
 * their common statements: query trees, a generic plan, what custom plans
 * cost. A statement that the session itself has prepared becomes a common
 * statement as it is. Only what was made in the common statement's environment
 * is taken: trees are marked, and a generic plan is known by its number, when
 * the environment is about to change (baton_held_settle).
 * ----------------------------------------------------------------
 */

/*
 * The identifier of the context of query trees made in the plan's environment.
 */
static const char own_trees[] = "pg_baton: own environment";

/* Were the plan's trees made in its own environment? */
static bool
trees_are_own(const HeldStatement *held)
{
	return held->plan->query_context != NULL &&
		held->plan->query_context->ident == own_trees;
}

static bool
generic_plan_is_own(const HeldStatement *held)
{
	const CachedPlan *generic = held->plan->gplan;

	return generic != NULL && generic->is_valid &&
		generic->generation == held->own_generation && !held->folds;
}

/*
 * Gives a generic plan, and what was learnt of custom plans, to the common
 * statement.
 */
static void
hand_over_plans(HeldStatement *held, CommonStatement *common)
{
	CachedPlanSource *from = held->plan;
	CachedPlanSource *plan = common->plan;

	if (held->custom.known)
		common->custom = held->custom;
	if (from->gplan != plan->gplan && generic_plan_is_own(held))
	{
		baton_plan_give_generic(from, plan);
		common->generic_cost = from->generic_cost;
		if (held->inlines)
			baton_names_inlined(common->names);
	}
	if (common->custom.alike && plan->gplan != NULL && plan->gplan->is_valid &&
		!baton_values_fit(&common->custom, common->generic_cost))
		common->custom.alike = false;
}

/* Gives what a view has acquired to its common statement. */
static void
share_view(HeldStatement *held)
{
	CommonStatement *common = held->common;
	CachedPlanSource *view = held->plan;
	CachedPlanSource *plan = common->plan;

	if (!view->is_valid)
		return;
	if (trees_are_own(held) && baton_settings_fit(view, plan))
	{
		baton_plan_give_trees(view, plan);
		baton_common_analysed(common, BatonPlaced.held.session);
	}
	if (view->query_context == NULL && plan->is_valid)
		hand_over_plans(held, common);
}

/*
 * The session's own statement is kept already. If its analysis had another
 * result, other sessions get that result from now on.
 */
static void
share_with(HeldStatement *held, CommonStatement *common)
{
	CachedPlanSource *plan = held->plan;
	bool		same = common->plan->is_valid &&
	equal(plan->query_list, common->plan->query_list);

	if (!same)
	{
		if (!baton_settings_fit(plan, common->plan))
		{
			baton_plan_invalidate(common->plan);
			return;
		}
		baton_plan_give_trees(plan, common->plan);
		baton_plan_drop_generic(common->plan);
		baton_common_analysed(common, BatonPlaced.held.session);
	}
	if (!same || held->twin == common)
		hand_over_plans(held, common);
}

/*
 * Keeps the plan that the session has prepared. Returns false if it must not
 * be kept, or if a common statement has the same content, which then gets its
 * generic plan.
 */
static bool
share_plan(HeldStatement *held)
{
	CachedPlanSource *plan = held->plan;
	CommonStatement *common;

	if (!plan->is_valid || !trees_are_own(held))
		return false;
	if (!generic_plan_is_own(held))
		baton_plan_drop_generic(plan);
	common = baton_common_keep(plan, held->value, held->value_length,
							   held->environment);
	if (common == NULL)
	{
		share_with(held, baton_common_find(held->value, held->value_length,
										   held->environment));
		return false;
	}
	common->analyst = BatonPlaced.held.session;
	if (held->inlines && plan->gplan != NULL)
		baton_names_inlined(common->names);
	common->custom = held->custom;
	return true;
}

/* ----------------------------------------------------------------
 *		Custom plans that need not be made.
 *
 * The server plans a prepared statement anew for its first five executions
 * (choose_custom_plan, plancache.c); with many sessions of many statements
 * each, that is most of a backend's work in the first minutes. If all these
 * plans would equal the generic plan (statement_cache.c), the generic plan is
 * executed, and counted as custom plans of the cost that was measured for one
 * of them.
 *
 * The plan's counters are then such that the server chooses its generic plan.
 * Before code looks at them or at the choice, or changes what it depends on,
 * baton_sparing_end() restores the session's own counters: before listing
 * (pg_prepared_statements), EXPLAIN EXECUTE, settings, the session's own DDL.
 * It is not called before another library logs executions, as auto_explain
 * does.
 *
 * The server analyses a statement that a session prepares here. It counts as
 * equal to a kept statement only if the trees are equal: a table may have been
 * made since that hides the one meant before.
 * ----------------------------------------------------------------
 */

/*
 * A held statement has the plans of this common statement: spares the session
 * what it can.
 */
static void
sparing_begin(CachedPlanSource *plan, HeldStatement *held,
			  const CommonStatement *common)
{
	if (!common->custom.alike || !common->plan->is_valid || !plan->is_valid ||
		BatonPlaced.environment.epoch == 0 ||
		plan_cache_mode != PLAN_CACHE_MODE_AUTO || BatonServed.notice.discards_plans)
		return;
	counters_spare(plan, &held->spared, common->custom.cost);
	BatonPlaced.held.spared++;
}

/*
 * The held statement was prepared just now: does the backend keep an equal
 * one?
 */
static void
sparing_find_twin(HeldStatement *held, bool from_sql)
{
	CachedPlanSource *plan = held->plan;
	MemoryContext caller;
	StringInfoData value;
	CommonStatement *common;

	if (BatonPlaced.environment.epoch == 0 || plan->num_params == 0 || !plan->is_valid ||
		!baton_statement_is_describable(plan))
		return;

	/* what the context gets, if nothing changes it */
	caller = MemoryContextSwitchTo(BatonPlaced.held.memory);
	initStringInfo(&value);
	baton_statement_describe(&value, plan, from_sql);
	MemoryContextSwitchTo(caller);
	held->value = value.data;
	held->value_length = value.len;

	common = baton_common_find(value.data, value.len, held->environment);
	if (common == NULL || !common->custom.alike || !common->plan->is_valid ||
		!equal(plan->query_list, common->plan->query_list))
		return;
	held->twin = common;
	if (common->plan->gplan != NULL && common->plan->gplan->is_valid &&
		plan->gplan == NULL)
	{
		baton_plan_share_generic(common->plan, plan);
		baton_plan_set_generic_cost(plan, common->generic_cost);
		held->own_generation = plan->gplan->generation;
	}
	sparing_begin(plan, held, common);
}

bool
baton_sparing_asks(const char *query_string)
{
	const HeldStatement *held = BatonPlaced.held.last;

	if (held == NULL || held->plan == NULL || held->plan->query_string != query_string ||
		held->custom.known || list_length(held->plan->query_list) != 1 ||
		BatonPlaced.environment.epoch == 0 || held->epoch != BatonPlaced.environment.epoch)
		return false;
	return held->common == NULL || !held->common->custom.known;
}

void
baton_sparing_learn(const char *query_string, bool alike, const PlannedStmt *planned)
{
	CustomPlans *custom;

	if (!baton_sparing_asks(query_string))
		return;
	custom = &BatonPlaced.held.last->custom;
	custom->known = true;
	custom->alike = alike;
	if (alike)
		baton_values_set_costs(custom, planned);
}

void
baton_sparing_end(void)
{
	dlist_iter	iter;

	if (BatonPlaced.held.spared == 0)
		return;
	BatonPlaced.held.spared = 0;
	dlist_foreach(iter, &BatonPlaced.held.list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan != NULL)
			counters_end_sparing(held->plan, &held->spared);
	}
}

/* ----------------------------------------------------------------
 *		The statements that the session in place has looked up.
 *
 * Nothing is done for a statement before its name is looked up
 * (pg_plancache.c). Then the name is searched for in the session's context,
 * and if it is there, a plan for it is entered into the table: a *view*, which
 * is a CachedPlanSource of the session's own, with the session's counters,
 * that refers to the data of the common statement (statement_cache.c).
 *
 * What plancache.c (15.18) does to a view, and why it does not harm the common
 * statement:
 * - RevalidateCachedQuery() frees query_context before it analyses again: a
 *   view has none as long as it refers to the common statement's trees; the
 *   new trees are its own.
 * - GetCachedPlan() copies query_list before planning (BuildCachedPlan), and
 *   counts the references to a generic plan: the view has its own reference.
 * - DropCachedPlan() frees the view's context, which contains nothing else,
 *   and releases its reference to the generic plan.
 * - resultDesc, the raw parse tree, text and parameter types are only read
 *   (fixed_result is set for each prepared statement).
 * - Invalidation walks the saved plans, which includes both.
 *
 * When the session leaves, what a view has acquired goes to the common
 * statement: query trees, a generic plan; but only what was made in the common
 * statement's environment. A plan that the session itself prepared becomes a
 * common statement as it is.
 *
 * Invariants: each entry of the table belongs to a held statement, or was
 * entered under a name that is held; a view pins its common statement.
 * ----------------------------------------------------------------
 */

/*
 * From this number on, names without a statement are forgotten from time to
 * time.
 */
#define SWEEP_FROM 128

/* A larger map is not kept. */
#define MAP_KEPT_SIZE 64

/*
 * Closing this many takes tens of milliseconds, while the next session waits.
 */
#define MANY 20000

typedef struct HeldEntry
{
	const char *name;			/* the statement's */
	HeldStatement *held;
	uint32		hash;
	char		status;
} HeldEntry;

#define SH_PREFIX held
#define SH_ELEMENT_TYPE HeldEntry
#define SH_KEY_TYPE const char *
#define SH_KEY name
#define SH_HASH_KEY(tb, key) string_hash(key, NAMEDATALEN)
#define SH_EQUAL(tb, a, b) (strncmp(a, b, NAMEDATALEN - 1) == 0)
#define SH_SCOPE static inline
#define SH_USE_NONDEFAULT_ALLOCATOR
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) ((a)->hash)
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

BATON_MAP_ALLOCATOR(held)

/* Tells when a plan is dropped; allocated in the plan's context. */
typedef struct PlanTie
{
	MemoryContextCallback callback;
	CachedPlanSource *plan;
	HeldStatement *held;		/* NULL: no statement refers to the plan any
								 * more */
	CommonStatement *common;	/* pinned by the plan */
} PlanTie;

static BatonPlacedHeld *const placed = &BatonPlaced.held;
static MemoryContext work_context = NULL;

static void
environment_changes(void)
{
	baton_held_settle();
	baton_sparing_end();
}

static void
plan_gone(void *argument)
{
	PlanTie    *tie = argument;

	if (tie->held != NULL && tie->held->plan == tie->plan)
		tie->held->plan = NULL;
	if (tie->common != NULL)
		tie->common->pins--;
}

static void
tie_plan(HeldStatement *held, CachedPlanSource *plan, CommonStatement *common)
{
	PlanTie    *tie = MemoryContextAlloc(plan->context, sizeof(PlanTie));

	tie->plan = plan;
	tie->held = held;
	tie->common = common;
	held->tie = tie;
	tie->callback.func = plan_gone;
	tie->callback.arg = tie;
	MemoryContextRegisterResetCallback(plan->context, &tie->callback);
	if (common != NULL)
		common->pins++;
}

/* The session's item of that name; NULL if it has none. */
static const BatonItem *
find_item(const char *name)
{
	const BatonItem *items;
	Size		length = strnlen(name, NAMEDATALEN - 1);
	uint32		low = 0;
	uint32		high = placed->statement_count;

	if (placed->statement_count == 0)
		return NULL;
	items = placed->items;
	while (low < high)
	{
		uint32		middle = low + (high - low) / 2;
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, items[middle].entry);
		int			order = memcmp(name, entry->key,
								   Min(length, entry->key_length));

		if (order == 0)
			order = length < entry->key_length ? -1 : length > entry->key_length;
		if (order == 0)
			return &items[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* A plan of the session's own that refers to the common statement's data. */
static CachedPlanSource *
make_view(CommonStatement *common)
{
	CachedPlanSource *view = baton_plan_view(common->plan);

	baton_settings_share(view, common->plan);
	return view;
}

/* Makes the plan of an item that is not in the table. */
static void
make(HeldStatement *held, const BatonItem *item)
{
	BatonStored stored;
	const BatonStored *entry = baton_entry(&stored, item->entry);
	MemoryContext caller = MemoryContextSwitchTo(work_context);
	CommonStatement *common;
	CachedPlanSource *view;

	/* an error may have left data */
	MemoryContextReset(work_context);
	held->environment = baton_statement_environment();
	common = baton_common_get(entry, held->environment, placed->session);
	if (common == NULL)
	{
		ereport(LOG,
				(errmsg("pg_baton could not make prepared statement \"%s\" of a session",
						held->name)));
		held->in_context = false;
		held->unready = false;
		MemoryContextSwitchTo(caller);
		MemoryContextReset(work_context);
		return;
	}
	view = make_view(common);
	tie_plan(held, view, common);
	held->common = common;
	held->counter = item->counter;
	held->prepare_time = item->aux;
	counters_load(view, held->counter, &held->written);
	held->spared.due = 0;
	if (BatonServed.notice.discards_plans ||
		(BatonServed.notice.invalidates && baton_common_lost(common->key.value, common->key.length)))
		baton_settings_disarm(view);

	baton_table_enter(held->name, held->hash, view,
					  baton_statement_is_from_sql(common->key.value, common->key.length),
					  held->prepare_time);
	SaveCachedPlan(view);
	if (common->plan->gplan != NULL)
	{
		baton_plan_share_generic(common->plan, view);

		/*
		 * The session would make a generic plan to learn its cost; this
		 * plan's cost is known.
		 */
		if (view->generic_cost < 0 && view->gplan->is_valid)
		{
			held->written.generic_cost = common->generic_cost;
			baton_plan_set_generic_cost(view, common->generic_cost);
		}
		held->own_generation = view->gplan->generation;
	}
	sparing_begin(view, held, common);
	held->plan = view;
	held->epoch = BatonPlaced.environment.epoch;
	held->unready = false;
	placed->fresh++;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(work_context);
}

static void
forget(HeldStatement *held)
{
	held_delete(placed->map, held->name);
	dlist_delete(&held->node);
	if (held->value != NULL)
		pfree(held->value);
	pfree(held);
}

/* Forgets names that have no statement and that need not be reported. */
static void
sweep(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &placed->list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan == NULL && !held->in_context &&
			baton_table_find(held->name, held->hash) == NULL)
			forget(held);
	}
	placed->sweep_from = placed->map->members * 2;
}

/* A name is about to be looked up, or entered. */
static void
wanted(const char *name, uint32 hash)
{
	HeldEntry  *entry;
	HeldStatement *held;
	const BatonItem *item;
	bool		found;

	if (!placed->is_open)
		return;
	entry = held_lookup_hash(placed->map, name, hash);
	if (entry != NULL)
	{
		placed->last = entry->held;
		if (placed->last->unready)
			make(placed->last, find_item(placed->last->name));
		return;
	}
	if (placed->map->members >= Max(SWEEP_FROM, placed->sweep_from))
		sweep();

	item = find_item(name);
	held = MemoryContextAllocZero(placed->memory, sizeof(HeldStatement));
	strlcpy(held->name, name, NAMEDATALEN);
	held->hash = hash;
	held->counter = BATON_NO_COUNTER;
	held->own_generation = -1;
	held->in_context = held->unready = item != NULL;
	entry = held_insert_hash(placed->map, held->name, hash, &found);
	Assert(!found);
	entry->held = held;
	dlist_push_tail(&placed->list, &held->node);
	placed->last = held;
	if (item != NULL)
		make(held, item);
}

/*
 * An object was made that statements may mean. Also called for the session's
 * earlier objects: it may have prepared statements on another backend after
 * that.
 */
static void
object_made(uint32 hash)
{
	dlist_iter	iter;

	baton_common_object_made(hash);
	dlist_foreach(iter, &placed->list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan == NULL || held->common == NULL || !held->plan->is_valid ||
			held->common->plan->is_valid)
			continue;
		baton_plan_invalidate_trees(held->plan);
		baton_settings_rearm(held->plan, held->common->plan);
	}
}

const char *
baton_held_attach(void)
{
	const char *problem = baton_table_attach(wanted);

	if (problem != NULL || placed->map != NULL)
		return problem;
	placed->memory = AllocSetContextCreate(TopMemoryContext,
										   "pg_baton held statements",
										   ALLOCSET_DEFAULT_SIZES);
	work_context = AllocSetContextCreate(TopMemoryContext,
										 "pg_baton statement work",
										 ALLOCSET_DEFAULT_SIZES);
	placed->map = held_create(TopMemoryContext, MAP_KEPT_SIZE / 2, NULL);
	baton_names_attach(object_made);
	baton_environment_watch(environment_changes);
	return NULL;
}

static void
look_up(const char *name, Size length)
{
	char		key[NAMEDATALEN] = {0};

	memcpy(key, name, Min(length, NAMEDATALEN - 1));
	wanted(key, string_hash(key, NAMEDATALEN));
}

void
baton_held_look_up(const char *name)
{
	look_up(name, strlen(name));
}

static int
compare_times(const void *a, const void *b)
{
	const BatonItem *one = a;
	const BatonItem *other = b;

	return one->aux < other->aux ? -1 : one->aux > other->aux;
}

void
baton_held_look_up_all(void)
{
	BatonItem  *sorted;

	if (!placed->is_open || placed->statement_count == 0)
		return;

	/*
	 * in the order in which they were prepared, in which a walk returns equal
	 * hashes
	 */
	sorted = palloc(placed->statement_count * sizeof(*sorted));
	memcpy(sorted, placed->items, placed->statement_count * sizeof(*sorted));
	qsort(sorted, placed->statement_count, sizeof(*sorted), compare_times);
	for (uint32 i = 0; i < placed->statement_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, sorted[i].entry);

		look_up(entry->key, entry->key_length);
	}
	pfree(sorted);
}

void
baton_held_look_up_described(void)
{
	for (uint32 i = 0; placed->is_open && i < placed->statement_count; i++)
	{
		BatonStored stored;
		const BatonStored *entry = baton_entry(&stored, placed->items[i].entry);

		if (baton_statement_has_settings(entry->value, entry->value_length))
			look_up(entry->key, entry->key_length);
	}
}

void
baton_held_tie(HeldStatement *held, CachedPlanSource *plan)
{
	tie_plan(held, plan, NULL);
	held->plan = plan;
	held->common = NULL;
	held->is_new = true;
	held->epoch = 0;
	held->own_generation = -1;
	held->counter = BATON_NO_COUNTER;
	held->counter_due = false;
	held->folds = held->inlines = false;
	memset(&held->custom, 0, sizeof(held->custom));
	held->spared.due = 0;
	held->twin = NULL;
	if (held->value != NULL)
		pfree(held->value);
	held->value = NULL;
}

void
baton_held_prepared(CachedPlanSource *plan)
{
	PreparedStatement *statement;

	if (!placed->is_open || placed->last == NULL)
		return;
	statement = baton_table_find(placed->last->name, placed->last->hash);
	if (statement == NULL || statement->plansource != plan || placed->last->plan == plan)
		return;
	baton_held_tie(placed->last, plan);
	placed->last->environment = baton_statement_environment();
	placed->last->epoch = BatonPlaced.environment.epoch;
	placed->fresh++;
	sparing_find_twin(placed->last, statement->from_sql);
}

void
baton_held_settle(void)
{
	dlist_iter	iter;

	if (placed->fresh == 0 || BatonPlaced.environment.epoch == 0)
		return;
	placed->fresh = 0;
	dlist_foreach(iter, &placed->list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);
		CachedPlanSource *plan = held->plan;

		if (plan == NULL || held->epoch != BatonPlaced.environment.epoch)
			continue;
		if (plan->query_context != NULL)
			MemoryContextSetIdentifier(plan->query_context, own_trees);
		if (plan->gplan != NULL)
			held->own_generation = plan->gplan->generation;
	}
}

void
baton_held_folds(const char *query_string, bool folds, bool inlines)
{
	dlist_iter	iter;

	dlist_foreach(iter, &placed->list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan == NULL || held->plan->query_string != query_string)
			continue;
		held->folds |= folds;
		held->inlines |= inlines;
	}
}

static void
close_one(HeldStatement *held)
{
	CachedPlanSource *plan = held->plan;
	PreparedStatement *statement = baton_table_find(held->name, held->hash);

	if (statement == NULL)
		return;
	if (plan != statement->plansource)
	{
		/* stored without being noticed */
		DropCachedPlan(statement->plansource);
		baton_table_remove(held->name, held->hash);
		return;
	}
	baton_table_remove(held->name, held->hash);
	if (held->common != NULL && held->value == NULL &&
		!baton_settings_changed(plan))
		share_view(held);
	else if (held->common == NULL && held->value != NULL &&
			 !baton_settings_changed(plan) && share_plan(held))
	{
		held->tie->held = NULL;
		return;
	}
	DropCachedPlan(plan);
}

void
baton_held_close(void)
{
	dlist_iter	iter;
	int			names = placed->map->members;

	placed->is_open = false;
	placed->last = NULL;
	if (names == 0)
		return;
	baton_held_settle();
	dlist_foreach(iter, &placed->list)
		close_one(dlist_container(HeldStatement, node, iter.cur));
	baton_table_refresh(names);
	dlist_init(&placed->list);
	if (placed->map->size > MAP_KEPT_SIZE)
	{
		held_destroy(placed->map);
		placed->map = NULL;
		placed->map = held_create(TopMemoryContext, MAP_KEPT_SIZE / 2, NULL);
	}
	else
		held_reset(placed->map);
	MemoryContextReset(work_context);
	MemoryContextReset(placed->memory);
	placed->sweep_from = 0;
	placed->fresh = 0;
}

bool
baton_held_are_many(void)
{
	return placed->map != NULL && placed->map->members > MANY;
}

Size
baton_held_bytes(void)
{
	dlist_iter	iter;
	Size		bytes = 0;

	if (placed->map == NULL)
		return 0;
	dlist_foreach(iter, &placed->list)
	{
		HeldStatement *held = dlist_container(HeldStatement, node, iter.cur);

		if (held->plan == NULL)
			continue;
		bytes += baton_plan_bytes(held->plan, 1);
		if (held->common != NULL)
			bytes += baton_plan_bytes(held->common->plan, 2);
	}
	return bytes;
}

void
baton_held_open(const BatonSessionRecord *session_record)
{
	placed->is_open = true;
	placed->session = session_record->id;
	placed->statement_count = session_record->statement_count;
	placed->items = placed->statement_count == 0 ? NULL :
		baton_record_items(session_record) + session_record->first_statement;
	baton_names_stay_begins();
}
