/*-------------------------------------------------------------------------
 *
 * context_params.c
 *		A session's own values of parameters (SET): the records that it may
 *		change, capture and installation.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/ilist.h"
#include "nodes/pg_list.h"
#include "utils/memutils.h"

#include "arena.h"
#include "context_params.h"
#include "delta.h"
#include "majors.h"
#include "pg_guc.h"
#include "pooled_state.h"

/* ----------------------------------------------------------------
 *		Custom parameters that only the session knows ("SET my.var").
 *
 * Problem: the first mention of a custom parameter adds a record to guc.c's
 * table of parameters, and nothing ever removes it. A client can distinguish a
 * parameter that exists and is empty from a parameter that does not exist
 * (current_setting('my.var', true) is '' or NULL, SHOW gives '' or an error),
 * so the next session must not find it.
 *
 * So a parameter that belongs to the present session is taken out of the table
 * when the session leaves (pg_guc.h). Parameters of the server's own
 * configuration files stay.
 * ----------------------------------------------------------------
 */

uint64		baton_placeholder_changes = 0;

static MemoryContext placeholder_context = NULL;

/* Names of the placeholders that belong to the server. */
static List *own_names = NIL;

const char *
baton_placeholders_attach(void)
{
	if (placeholder_context == NULL)
		placeholder_context = AllocSetContextCreate(TopMemoryContext,
													"pg_baton placeholders",
													ALLOCSET_SMALL_SIZES);
	return baton_guc_table_attach();
}

static bool
placeholder_is_own(const struct config_generic *record)
{
	ListCell   *cell;

	foreach(cell, own_names)
	{
		if (baton_guc_compare_names(lfirst(cell), record->name) == 0)
			return true;
	}
	return false;
}

void
baton_placeholders_note_own(bool all)
{
	struct config_generic **variables;
	MemoryContext old = MemoryContextSwitchTo(placeholder_context);
	int			count;

	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		struct config_generic *record = variables[i];

		if ((record->flags & GUC_CUSTOM_PLACEHOLDER) &&
			(all ? record->reset_source < PGC_S_GLOBAL :
			 record->reset_source == PGC_S_FILE) &&
			!baton_guc_is_removed(record) &&
			!placeholder_is_own(record))
		{
			own_names = lappend(own_names, pstrdup(record->name));
			baton_placeholder_changes++;
		}
	}
	MemoryContextSwitchTo(old);
}

struct config_generic *
baton_placeholder_create(const char *name)
{
	struct config_generic *record = baton_guc_find(name);

	return record != NULL ? record : baton_guc_add_placeholder(name);
}

void
baton_placeholder_hide(struct config_generic *record)
{
	Assert(record->reset_source == PGC_S_DEFAULT);
	if (!placeholder_is_own(record))
		baton_guc_remove_placeholder(record);
}

/* ----------------------------------------------------------------
 *		The parameters that a session carries, and those that hold a value
 *		placed for it.
 *
 * A capture looks at every record that a session can change; so those records
 * are kept apart, sorted by address, which is the fastest order for reading
 * memory.
 *
 * Invariant: scan[] holds the server's records that are carried, in the order
 * of their addresses (the built-in ones lie in arrays, and the look at all of
 * them is paid at every boundary); known_version and known_changes say as of
 * when (pg_guc.h, context_params.h).
 * ----------------------------------------------------------------
 */

/* The memory of all BatonPlaced.params. */
static MemoryContext params_context = NULL;

/* The records to look at, sorted by address. */
static BatonScanEntry *scan = NULL; /* room for scan_size */
static int	scan_count = 0;

/* Do the entries' params match what is placed? Cleared when that changes. */
static bool scan_linked = false;

static int	scan_size = 0;
static bool scan_made = false;
static uint64 known_version = 0;
static uint64 known_changes = 0;

static BatonParam *
param_add(struct config_generic *record, const char *name)
{
	BatonParam *param = MemoryContextAllocZero(params_context,
											   sizeof(BatonParam));

	param->name = MemoryContextStrdup(params_context, name);
	param->record = record;
	dlist_push_tail(&BatonPlaced.params.list, &param->node);
	BatonPlaced.params.count++;
	return param;
}

static void
param_drop(BatonParam *param)
{
	dlist_delete(&param->node);
	BatonPlaced.params.count--;
	if (param->string != NULL)
		pfree(param->string);
	pfree(param->name);
	pfree(param);
}

/*
 * Does it have all its parts? Not if memory ran out while they were noted; it
 * then equals nothing.
 */
static bool
param_is_whole(const BatonParam *param)
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

/* Sorts by name; finds by name, or returns NULL. */
static void
params_sort(BatonParam **params, int count)
{
	qsort(params, count, sizeof(*params), compare_params);
}

static BatonParam *
params_find(BatonParam **sorted, int count, const char *name, Size length)
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
			placeholder_is_own(record) ? CARRY_VALUE : CARRY_PLACEHOLDER;
	for (int i = 0; i < (int) lengthof(per_transaction); i++)
	{
		if (strcmp(record->name, per_transaction[i]) == 0)
			return CARRY_SOURCE;
	}
	return CARRY_VALUE;
}

/*
 * Has the server's table of records changed since scan was made? It changes
 * when a placeholder is created, when a library defines its parameters (which
 * may replace a placeholder, define_custom_variable in guc.c), and when this
 * file takes a placeholder out or puts it in.
 */
static bool
scan_is_stale(void)
{
	return !scan_made || baton_placeholder_changes != known_changes ||
		baton_guc_table_version() != known_version;
}

/*
 * The first place in scan[] whose record is not at a lower address than this
 * one.
 */
static int
place_of(const struct config_generic *record)
{
	int			low = 0;
	int			high = scan_count;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (scan[middle].record < record)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Links scan[] to the placed parameters, and those to their records. */
static void
link_placed(void)
{
	dlist_iter	iter;

	for (int i = 0; i < scan_count; i++)
		scan[i].param = NULL;
	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);
		int			place;

		param->record = baton_guc_find(param->name);
		place = place_of(param->record);
		if (place < scan_count && scan[place].record == param->record)
			scan[place].param = param;
		else
			param->record = NULL;	/* no longer carried */
	}
	scan_linked = true;
}

/*
 * As baton_placeholder_create and _hide, keeping scan up to date. When one
 * session follows another, only a placeholder comes or goes; nothing else
 * changes in the table, which has hundreds of records.
 */
static struct config_generic *
scan_create_placeholder(const char *name)
{
	bool		stale = scan_is_stale();
	struct config_generic *record = baton_placeholder_create(name);
	uint64		version = baton_guc_table_version();
	int			place;

	if (stale || record == NULL || version == known_version ||
		scan_count == scan_size)
		return record;
	place = place_of(record);
	memmove(&scan[place + 1], &scan[place],
			(scan_count - place) * sizeof(*scan));
	scan_count++;
	scan[place].record = record;
	scan[place].param = NULL;
	scan[place].mode = carry_mode(record);
	known_version = version;
	return record;
}

static void
scan_hide_placeholder(struct config_generic *record)
{
	bool		stale = scan_is_stale();
	int			place = place_of(record);
	uint64		version;

	baton_placeholder_hide(record); /* the record may be gone now */
	version = baton_guc_table_version();
	if (stale || version == known_version ||
		place == scan_count || scan[place].record != record)
		return;
	scan_count--;
	memmove(&scan[place], &scan[place + 1],
			(scan_count - place) * sizeof(*scan));
	known_version = version;
}

static int
compare_addresses(const void *a, const void *b)
{
	const BatonScanEntry *one = a;
	const BatonScanEntry *two = b;

	return one->record < two->record ? -1 : one->record > two->record;
}

/* Brings scan up to date. */
static void
scan_look(void)
{
	if (scan_is_stale())
	{
		struct config_generic **variables;
		int			count;

		scan_made = false;
		scan_count = 0;
		known_version = baton_guc_table_version();
		known_changes = baton_placeholder_changes;
		variables = baton_guc_records(&count);
		if (count > scan_size)
		{
			int			size = count + 64;

			if (scan != NULL)
				pfree(scan);
			scan = NULL;
			scan_size = 0;
			scan = MemoryContextAlloc(params_context, size * sizeof(*scan));
			scan_size = size;
		}

		for (int i = 0; i < count; i++)
		{
			CarryMode	mode = carry_mode(variables[i]);

			if (mode != CARRY_NOT)
			{
				scan[scan_count].record = variables[i];
				scan[scan_count].mode = mode;
				scan_count++;
			}
		}
		qsort(scan, scan_count, sizeof(*scan), compare_addresses);
		scan_made = true;
		scan_linked = false;
	}
	if (!scan_linked)
		link_placed();
}

/* ----------------------------------------------------------------
 *		A session's own values of parameters (SET).
 *
 * Problem: SET, set_config, functions and DO blocks, rollbacks and savepoints
 * all change parameters, and the statements do not tell what is left when a
 * transaction ends. The records do: outside a transaction a parameter has a
 * value of the session's own if and only if its source is PGC_S_SESSION
 * (AtEOXact_GUC in guc.c has popped everything else).
 *
 * So capture looks at the source of every record, one comparison each, and
 * compares those values with the values that were last put in place or
 * captured ("placed"). Replacing them by another session's is described below
 * (baton_params_install).
 *
 * Carried are the parameters that SET may change, except those that the start
 * of each transaction sets anew (StartTransaction in xact.c). Of the latter
 * only the source is carried, which pg_settings shows. A placeholder of the
 * session is carried even without a value, because it exists.
 *
 * The value of a PARAMETER entry: BatonParamHeader, then the text.
 *
 * Invariants: each BatonParam is in BatonPlaced.params, belongs to at most one
 * entry of scan[], and is owned by params_context. The records must not be
 * stacked (see pg_guc.c).
 * ----------------------------------------------------------------
 */

static StringInfoData param_text;

const char *
baton_params_attach(void)
{
	if (params_context == NULL)
	{
		MemoryContext old;

		params_context = AllocSetContextCreate(TopMemoryContext,
											   "pg_baton parameters",
											   ALLOCSET_DEFAULT_SIZES);
		old = MemoryContextSwitchTo(params_context);
		initStringInfo(&param_text);
		MemoryContextSwitchTo(old);
	}
	scan_look();
	if (baton_guc_find("work_mem") == NULL ||
		baton_guc_find("work_mem")->vartype != PGC_INT)
		return "the server's parameters are not where they are expected";
	return NULL;
}

/* ---- placed ----------------------------------------------------------- */

/* Notes the record's present state; its text is made again on demand. */
static void
note_placed(BatonParam *param, uint8 form)
{
	struct config_generic *record = param->record;

	param->vartype = record->vartype;
	memset(&param->header, 0, sizeof(param->header));
	param->header.form = form;
	if (param->string != NULL)
		pfree(param->string);
	param->string = NULL;

	param->header.placeholder = (record->flags & GUC_CUSTOM_PLACEHOLDER) != 0;

	if (form == BATON_PARAM_EXISTS)
		return;
	param->header.scontext = record->scontext;
	param->header.srole = record->srole;
	if (form == BATON_PARAM_SOURCE)
		return;

	param->value = baton_guc_active(record);
	if (baton_guc_is_identity(record))
	{
		BatonGucIdentity identity = baton_guc_identity(record);

		param->header.role = identity.role;
		param->header.superuser = identity.superuser;
	}
	resetStringInfo(&param_text);
	baton_guc_append_text(record, &param->value, &param_text);
	param->string = MemoryContextStrdup(params_context, param_text.data);
}

/* ---- capture ---------------------------------------------------------- */

/* Is the record's value, which is the session's own, the placed value? */
static bool
same_as_placed(const BatonParam *param, struct config_generic *record)
{
	if (param->header.form != BATON_PARAM_VALUE || !param_is_whole(param) ||
		param->vartype != record->vartype ||
		param->header.scontext != (uint8) record->scontext ||
		param->header.srole != record->srole)
		return false;

	switch (record->vartype)
	{
		case PGC_BOOL:
			return *((struct config_bool *) record)->variable ==
				param->value.val.boolval;
		case PGC_INT:
			return *((struct config_int *) record)->variable ==
				param->value.val.intval;
		case PGC_REAL:
			return memcmp(((struct config_real *) record)->variable,
						  &param->value.val.realval, sizeof(double)) == 0;
		case PGC_ENUM:
			return *((struct config_enum *) record)->variable ==
				param->value.val.enumval;
		case PGC_STRING:
			{
				const char *value = *((struct config_string *) record)->variable;

				if (strcmp(value ? value : "", param->string) != 0)
					return false;
				break;
			}
	}
	if (record->flags & GUC_NOT_WHILE_SEC_REST)
	{
		BatonGucIdentity identity = baton_guc_identity(record);

		return identity.role == param->header.role &&
			identity.superuser == (bool) param->header.superuser;
	}
	return true;
}

/* The form in which the record's state must be carried; -1: not carried. */
static inline int
form_of(const BatonScanEntry *entry)
{
	const struct config_generic *record = entry->record;

	if (record->source == PGC_S_SESSION)
		return entry->mode == CARRY_SOURCE ?
			BATON_PARAM_SOURCE : BATON_PARAM_VALUE;
	/* other placeholders come from the configuration or startup options */
	if (entry->mode == CARRY_PLACEHOLDER &&
		record->reset_source == PGC_S_DEFAULT)
		return BATON_PARAM_EXISTS;
	return -1;
}

static void
put_param(BatonParam *param)
{
	resetStringInfo(&param_text);
	appendBinaryStringInfo(&param_text, (char *) &param->header,
						   sizeof(param->header));
	if (param->string != NULL)
		appendStringInfoString(&param_text, param->string);
	baton_delta_put(BATON_KIND_PARAMETER, param->name, strlen(param->name),
					param_text.data, param_text.len, NULL, 0);
}

static void
delete_param(BatonParam *param, bool tell)
{
	if (tell)
		baton_delta_delete(BATON_KIND_PARAMETER, param->name,
						   strlen(param->name));
	param_drop(param);
}

/*
 * Drops a parameter whose value, or whole record, a library's load has
 * removed.
 */
static bool
capture_lost(bool tell)
{
	dlist_mutable_iter iter;
	bool		changed = false;

	dlist_foreach_modify(iter, &BatonPlaced.params.list)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);

		if (param->record == NULL)
		{
			delete_param(param, tell);
			changed = true;
		}
	}
	return changed;
}

/*
 * Brings placed up to date with the records; if `tell`, the differences go
 * into the delta.
 */
static bool
look_for_changes(bool tell)
{
	bool		changed = false;

	if (!scan_linked || scan_is_stale())
	{
		scan_look();
		changed = capture_lost(tell);
	}

	for (BatonScanEntry *entry = scan; entry < scan + scan_count; entry++)
	{
		struct config_generic *record = entry->record;
		BatonParam *param = entry->param;
		int			form = form_of(entry);

		if (form < 0)
		{
			if (param == NULL)
				continue;
			entry->param = NULL;
			delete_param(param, tell);
			changed = true;
			continue;
		}
		if (param != NULL && param->header.form == form &&
			(form == BATON_PARAM_EXISTS ||
			 (form == BATON_PARAM_VALUE && same_as_placed(param, record)) ||
			 (form == BATON_PARAM_SOURCE &&
			  param->header.scontext == (uint8) record->scontext &&
			  param->header.srole == record->srole)))
			continue;
		if (param == NULL)
			param = entry->param = param_add(record, record->name);
		note_placed(param, form);
		param->serial = 0;
		if (tell)
			put_param(param);
		changed = true;
	}
	return changed;
}

bool
baton_params_capture(void)
{
	return look_for_changes(true);
}

void
baton_params_forget(void)
{
	BatonEntryList nothing = {NULL, 0, 0};

	(void) look_for_changes(false);
	baton_params_make_room(&nothing);
	baton_params_install(&nothing);
}

/* ----------------------------------------------------------------
 *		Replacing the last session's own parameter values by another session's.
 *
 * A value that is in place already, by its serial, stays. If both sessions
 * have the parameter and only the value differs, the new value directly
 * replaces the old. Everything else in place first returns to its reset value,
 * and the missing values come afterwards: see baton_params_make_room().
 * ----------------------------------------------------------------
 */

/* For the session that is put in place: one place for each wanted entry. */
static BatonParam **chosen = NULL;
static int	chosen_count = 0;
static int	chosen_size = 0;

static StringInfoData entry_text;

static void
entry_header(const BatonStored *entry, BatonParamHeader *header)
{
	if (entry->value_length < sizeof(BatonParamHeader))
		elog(ERROR, "stored parameter is too short");
	memcpy(header, entry->value, sizeof(*header));
}

/* The entry's name and text, NUL-terminated; valid until the next call. */
static const char *
entry_strings(const BatonStored *entry, const char **text)
{
	int			start;

	if (entry_text.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(params_context);

		initStringInfo(&entry_text);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&entry_text);
	appendBinaryStringInfo(&entry_text, entry->key,
						   entry->key_length);
	appendStringInfoChar(&entry_text, '\0');
	start = entry_text.len;
	appendBinaryStringInfo(&entry_text,
						   entry->value + sizeof(BatonParamHeader),
						   entry->value_length - sizeof(BatonParamHeader));
	*text = entry_text.data + start;
	return entry_text.data;
}

static bool
same_as_entry(const BatonParam *param, const BatonStored *entry)
{
	Size		text_length = entry->value_length - sizeof(BatonParamHeader);
	const char *text = param->string ? param->string : "";

	return param_is_whole(param) &&
		entry->key_length == strlen(param->name) &&
		memcmp(entry->key, param->name, entry->key_length) == 0 &&
		entry->value_length >= sizeof(BatonParamHeader) &&
		memcmp(entry->value, &param->header,
			   sizeof(BatonParamHeader)) == 0 &&
		strlen(text) == text_length &&
		memcmp(entry->value + sizeof(BatonParamHeader), text,
			   text_length) == 0;
}

/* Same values in the same order: the usual case of similar sessions. */
static bool
all_placed(const BatonEntryList *wanted)
{
	dlist_iter	iter;
	int			i = 0;

	if (wanted->count != BatonPlaced.params.count)
		return false;
	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);

		if (param->serial == 0 ||
			param->serial != wanted->entries[i++].serial)
			return false;
	}
	return true;
}

/* Returns the parameter to its RESET value. */
static void
take_away(BatonParam *param)
{
	struct config_generic *record = param->record;
	BatonGucCell cell;

	/* a parameter that is no longer carried must go, too */
	if (record == NULL)
		record = baton_guc_find(param->name);
	if (record == NULL)
		return;
	cell = baton_guc_reset_cell(record);
	if (param->header.form == BATON_PARAM_SOURCE)
	{
		baton_guc_set_origin(record, cell.source, cell.scontext, cell.srole);
	}
	else if (record->source == PGC_S_SESSION)
		baton_guc_activate(record, &cell);

	if ((record->flags & GUC_CUSTOM_PLACEHOLDER) &&
		record->reset_source == PGC_S_DEFAULT)
		scan_hide_placeholder(record);
}

/*
 * Returns NULL if the check hook refuses, unless `last`: the hook may look at
 * parameters that are still to come.
 */
static BatonParam *
put_in_place(const BatonStored *entry, bool last)
{
	BatonParamHeader header;
	const char *name;
	const char *text;
	struct config_generic *record;
	BatonParam *param;
	BatonGucCell cell;
	BatonGucIdentity identity;

	entry_header(entry, &header);
	name = entry_strings(entry, &text);
	record = baton_guc_find(name);
	if (record == NULL)
	{
		/*
		 * a parameter of a library that is not loaded here is a placeholder,
		 * too
		 */
		record = scan_create_placeholder(name);
		if (record == NULL)
		{
			/* loading that library would have removed the parameter */
			param = param_add(NULL, name);
			param->serial = entry->serial;
			return param;
		}
	}

	memset(&cell, 0, sizeof(cell));
	cell.source = PGC_S_SESSION;
	cell.scontext = header.scontext;
	cell.srole = header.srole;
	identity.role = header.role;
	identity.superuser = header.superuser;

	switch (header.form)
	{
		case BATON_PARAM_VALUE:
			if (header.placeholder && !(record->flags & GUC_CUSTOM_PLACEHOLDER) &&
				!baton_guc_placeholder_fits(name, text, header.scontext,
											PGC_S_SESSION, header.srole))
				break;
			if (baton_guc_make(record, text, PGC_S_SESSION, &identity,
							   &cell.value))
				baton_guc_activate(record, &cell);
			else if (strchr(name, GUC_QUALIFIER_SEPARATOR) == NULL)
			{
				if (!last)
					return NULL;
				ereport(ERROR,
						(errcode(ERRCODE_INTERNAL_ERROR),
						 errmsg("could not restore parameter \"%s\" of the session",
								name)));
			}

			/*
			 * Otherwise a library has defined the parameter here. Its check
			 * refuses the placeholder's value, or other roles must set it.
			 * Loading the library would have dropped the value as well.
			 */
			break;
		case BATON_PARAM_SOURCE:
			baton_guc_set_origin(record, cell.source, cell.scontext, cell.srole);
			break;
		default:				/* BATON_PARAM_EXISTS */
			break;
	}

	/*
	 * Noted as in the entry, so that capture and the next install compare
	 * with what the session owns; the value is the record's.
	 */
	param = param_add(record, name);
	param->string = MemoryContextStrdup(params_context, text);
	param->serial = entry->serial;
	param->vartype = record->vartype;
	param->header = header;
	param->value = baton_guc_active(record);
	return param;
}

static bool
is_role_entry(const BatonStored *entry)
{
	return entry->key_length == 4 &&
		memcmp(entry->key, "role", 4) == 0;
}

/*
 * May the new value directly replace the old? The record, its place and what
 * is placed then stay; this is the usual case of sessions that set the same
 * parameters to different values. Not if more than the value differs, or if a
 * check hook may look at another parameter, which may still be the last
 * session's: a library's hook may; of the server's own hooks those of
 * log_statement_stats and its like do, and role's looks at the session user.
 */
static bool
may_be_exchanged(const BatonParam *param, const BatonParamHeader *header)
{
	const struct config_generic *record = param->record;
	bool		placeholder = (record->flags & GUC_CUSTOM_PLACEHOLDER) != 0;

	return param->header.form == BATON_PARAM_VALUE &&
		header->form == BATON_PARAM_VALUE &&
		record->source == PGC_S_SESSION &&
		placeholder == (header->placeholder != 0) &&
		(placeholder || record->group != CUSTOM_OPTIONS) &&
		record->group != STATS_MONITORING &&
		!baton_guc_is_identity(record);
}

/*
 * Returns false, having changed nothing, if the value must be put in place in
 * the other way.
 */
static bool
exchange(BatonParam *param, const BatonStored *entry)
{
	BatonParamHeader header;
	BatonGucCell cell;
	const char *text;
	char	   *string;

	entry_header(entry, &header);
	if (!may_be_exchanged(param, &header))
		return false;
	(void) entry_strings(entry, &text);
	string = MemoryContextStrdup(params_context, text); /* or fails now */

	memset(&cell, 0, sizeof(cell));
	cell.source = PGC_S_SESSION;
	cell.scontext = header.scontext;
	cell.srole = header.srole;
	if (!baton_guc_make(param->record, text, PGC_S_SESSION, NULL, &cell.value))
	{
		pfree(string);
		return false;
	}
	baton_guc_activate(param->record, &cell);

	if (param->string != NULL)
		pfree(param->string);
	param->string = string;
	param->serial = entry->serial;
	param->header = header;
	param->value = baton_guc_active(param->record);
	return true;
}

/*
 * Chooses the wanted values that are in place already; they stay. Values that
 * can be exchanged there are chosen, too. Returns true if these are all that
 * was in place, and all that is wanted.
 */
static bool
choose(const BatonEntryList *wanted)
{
	BatonParam **sorted = palloc((BatonPlaced.params.count + 1) * sizeof(*sorted));
	int			count = 0;
	int			kept = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		sorted[count] = dlist_container(BatonParam, node, iter.cur);
		sorted[count++]->keep = false;
	}
	params_sort(sorted, count);

	if (wanted->count > chosen_size)
	{
		int			size = wanted->count + 64;

		if (chosen != NULL)
			pfree(chosen);
		chosen = NULL;
		chosen_size = 0;
		chosen = MemoryContextAlloc(params_context, size * sizeof(*chosen));
		chosen_size = size;
	}
	chosen_count = wanted->count;
	for (int i = 0; i < wanted->count; i++)
	{
		const BatonStored *entry = &wanted->entries[i];
		BatonParam *param = params_find(sorted, count, entry->key,
										entry->key_length);

		chosen[i] = NULL;
		if (param != NULL && !param->keep && param->record != NULL &&
			(param->serial == entry->serial ||
			 (param->serial == 0 && same_as_entry(param, entry)) ||
			 exchange(param, entry)))
		{
			param->serial = entry->serial;
			param->keep = true;
			chosen[i] = param;
			kept++;
		}
	}
	pfree(sorted);
	return kept == count && kept == wanted->count;
}

/* Sorts the list in the session's order, for all_placed. */
static void
put_in_order(void)
{
	dlist_init(&BatonPlaced.params.list);
	for (int i = 0; i < chosen_count; i++)
		dlist_push_tail(&BatonPlaced.params.list, &chosen[i]->node);
}

BATON_STOP_POINT void
baton_params_make_room(const BatonEntryList *wanted)
{
	dlist_mutable_iter iter;

	if (scan_linked && all_placed(wanted))
		return;
	scan_look();
	scan_linked = false;		/* until the end, also if this fails */
	if (choose(wanted))
	{
		put_in_order();
		scan_linked = true;
		return;
	}

	/*
	 * The rest goes. The hooks of role and session_authorization may be
	 * called in any order (SetSessionAuthorization in miscinit.c).
	 */
	dlist_foreach_modify(iter, &BatonPlaced.params.list)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);

		if (!param->keep)
		{
			take_away(param);
			param_drop(param);
		}
	}
}

void
baton_params_install(const BatonEntryList *wanted)
{
	dlist_iter	iter;

	if (scan_linked)
		return;					/* no room had to be made */
	Assert(chosen_count == wanted->count);

	/*
	 * New values come now. Values that were refused while others were missing
	 * are tried again; role comes last, since "none" means the session user
	 * then.
	 */
	for (int pass = 0; pass < 3; pass++)
	{
		for (int i = 0; i < wanted->count; i++)
		{
			if (chosen[i] == NULL && is_role_entry(&wanted->entries[i]) == (pass == 2))
				chosen[i] = put_in_place(&wanted->entries[i], pass > 0);
		}
	}

	put_in_order();
	scan_look();

	/* At the next capture the session loses what this backend cannot have. */
	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		if (dlist_container(BatonParam, node, iter.cur)->record == NULL)
			scan_linked = false;
	}
}
