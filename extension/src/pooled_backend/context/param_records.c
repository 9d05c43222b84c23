/*-------------------------------------------------------------------------
 *
 * param_records.c
 *		Which of the server's parameters a session carries, and which of them
 *		hold what was placed for it.
 *
 * A capture looks at every record that a session can change; so those are
 * kept apart, sorted by address, which is how memory is read fastest.
 *
 * Invariant: baton_scan[] holds those of the server's records that are carried,
 * in the order of their addresses (the built-in ones lie in arrays, and the
 * look at all of them is paid at every boundary); known_version and
 * known_changes say as of when (guc_table.h, context_placeholders.h).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "context_placeholders.h"
#include "param_records.h"
#include "pooled_state.h"

MemoryContext baton_params_context = NULL;
BatonScanEntry *baton_scan = NULL;	/* room for scan_size */
int			baton_scan_count = 0;
bool		baton_scan_linked = false;

static int	scan_size = 0;
static bool scan_made = false;
static uint64 known_version = 0;
static uint64 known_changes = 0;

BatonParam *
baton_param_add(struct config_generic *record, const char *name)
{
	BatonParam *param = MemoryContextAllocZero(baton_params_context,
											   sizeof(BatonParam));

	param->name = MemoryContextStrdup(baton_params_context, name);
	param->record = record;
	dlist_push_tail(&BatonPlaced.params.list, &param->node);
	BatonPlaced.params.count++;
	return param;
}

void
baton_param_drop(BatonParam *param)
{
	dlist_delete(&param->node);
	BatonPlaced.params.count--;
	if (param->string != NULL)
		pfree(param->string);
	pfree(param->name);
	pfree(param);
}

bool
baton_param_is_whole(const BatonParam *param)
{
	return param->header.form != BATON_PARAM_VALUE || param->string != NULL;
}

bool
baton_param_exists(const char *name)
{
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		const BatonParam *param = dlist_container(BatonParam, node, iter.cur);

		if (param->header.form == BATON_PARAM_EXISTS &&
			baton_guc_compare_names(param->name, name) == 0)
			return true;
	}
	return false;
}

static int
compare_names(const char *a, Size a_length, const char *b, Size b_length)
{
	int			order = memcmp(a, b, Min(a_length, b_length));

	return order != 0 ? order : a_length < b_length ? -1 : a_length > b_length;
}

static int
compare_params(const void *a, const void *b)
{
	const char *one = (*(BatonParam *const *) a)->name;
	const char *other = (*(BatonParam *const *) b)->name;

	return compare_names(one, strlen(one), other, strlen(other));
}

void
baton_params_sort(BatonParam **params, int count)
{
	qsort(params, count, sizeof(*params), compare_params);
}

BatonParam *
baton_params_find(BatonParam **sorted, int count, const char *name, Size length)
{
	int			low = 0;
	int			high = count - 1;

	while (low <= high)
	{
		int			middle = low + (high - low) / 2;
		const char *other = sorted[middle]->name;
		int			order = compare_names(name, length, other, strlen(other));

		if (order == 0)
			return sorted[middle];
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return NULL;
}

static CarryMode
carry_mode(const struct config_generic *record)
{
	static const char *const per_transaction[] = {
		"transaction_isolation", "transaction_read_only",
		"transaction_deferrable", "seed"
	};

	if (record->context != PGC_USERSET && record->context != PGC_SUSET)
		return CARRY_NOT;
	if (record->flags & GUC_CUSTOM_PLACEHOLDER)
		return baton_guc_is_removed(record) ? CARRY_NOT :
			baton_placeholder_is_own(record) ? CARRY_VALUE : CARRY_PLACEHOLDER;
	for (int i = 0; i < (int) lengthof(per_transaction); i++)
	{
		if (strcmp(record->name, per_transaction[i]) == 0)
			return CARRY_SOURCE;
	}
	return CARRY_VALUE;
}

/*
 * Has the server's table changed?  It does when a placeholder comes into
 * being, when a library defines its parameters (which may replace a
 * placeholder, define_custom_variable in guc.c), and when we take one out or
 * put it in.
 */
bool
baton_scan_is_stale(void)
{
	return !scan_made || baton_placeholder_changes != known_changes ||
		baton_guc_table_version() != known_version;
}

/* The first place in baton_scan[] whose record does not lie before this one. */
static int
place_of(const struct config_generic *record)
{
	int			low = 0;
	int			high = baton_scan_count;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (baton_scan[middle].record < record)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Points baton_scan[] at what is placed, and that at its records. */
static void
link_placed(void)
{
	dlist_iter	iter;

	for (int i = 0; i < baton_scan_count; i++)
		baton_scan[i].param = NULL;
	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);
		int			place;

		param->record = baton_guc_find(param->name);
		place = place_of(param->record);
		if (place < baton_scan_count && baton_scan[place].record == param->record)
			baton_scan[place].param = param;
		else
			param->record = NULL;	/* carried no longer */
	}
	baton_scan_linked = true;
}

/*
 * A placeholder comes, or goes, as one session follows another: of the table,
 * which has hundreds of records, nothing else has changed.
 */
struct config_generic *
baton_scan_create_placeholder(const char *name)
{
	bool		stale = baton_scan_is_stale();
	struct config_generic *record = baton_placeholder_create(name);
	uint64		version = baton_guc_table_version();
	int			place;

	if (stale || record == NULL || version == known_version ||
		baton_scan_count == scan_size)
		return record;
	place = place_of(record);
	memmove(&baton_scan[place + 1], &baton_scan[place],
			(baton_scan_count - place) * sizeof(*baton_scan));
	baton_scan_count++;
	baton_scan[place].record = record;
	baton_scan[place].param = NULL;
	baton_scan[place].mode = carry_mode(record);
	known_version = version;
	return record;
}

void
baton_scan_hide_placeholder(struct config_generic *record)
{
	bool		stale = baton_scan_is_stale();
	int			place = place_of(record);
	uint64		version;

	baton_placeholder_hide(record); /* the record may be none any more */
	version = baton_guc_table_version();
	if (stale || version == known_version ||
		place == baton_scan_count || baton_scan[place].record != record)
		return;
	baton_scan_count--;
	memmove(&baton_scan[place], &baton_scan[place + 1],
			(baton_scan_count - place) * sizeof(*baton_scan));
	known_version = version;
}

static int
compare_addresses(const void *a, const void *b)
{
	const BatonScanEntry *one = a;
	const BatonScanEntry *two = b;

	return one->record < two->record ? -1 : one->record > two->record;
}

void
baton_scan_look(void)
{
	if (baton_scan_is_stale())
	{
		struct config_generic **variables;
		int			count;

		scan_made = false;
		baton_scan_count = 0;
		known_version = baton_guc_table_version();
		known_changes = baton_placeholder_changes;
		variables = baton_guc_records(&count);
		if (count > scan_size)
		{
			int			size = count + 64;

			if (baton_scan != NULL)
				pfree(baton_scan);
			baton_scan = NULL;
			scan_size = 0;
			baton_scan = MemoryContextAlloc(baton_params_context, size * sizeof(*baton_scan));
			scan_size = size;
		}

		for (int i = 0; i < count; i++)
		{
			CarryMode	mode = carry_mode(variables[i]);

			if (mode != CARRY_NOT)
			{
				baton_scan[baton_scan_count].record = variables[i];
				baton_scan[baton_scan_count].mode = mode;
				baton_scan_count++;
			}
		}
		qsort(baton_scan, baton_scan_count, sizeof(*baton_scan), compare_addresses);
		scan_made = true;
		baton_scan_linked = false;
	}
	if (!baton_scan_linked)
		link_placed();
}
