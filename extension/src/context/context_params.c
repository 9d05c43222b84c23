/*-------------------------------------------------------------------------
 *
 * context_params.c
 *		A session's own values of parameters (SET).
 *
 * Problem: SET, set_config, functions and DO blocks, rollbacks and savepoints
 * all change parameters, and no look at the statements tells what is left when
 * a transaction ends.  The records do: outside a transaction a parameter has a
 * value of the session's own if and only if its source is PGC_S_SESSION
 * (AtEOXact_GUC in guc.c has popped all else).
 *
 * So capture looks at the source of every record, which is a comparison each,
 * and compares those values with the ones that were last put in place or
 * captured ("placed").  Install compares the session's entries with the placed
 * ones, by serial first, and exchanges what differs.
 *
 * Which parameters: those that SET may change, without those that the start of
 * each transaction sets anew (StartTransaction in xact.c).  Of the latter only
 * the source is carried, which pg_settings shows.  A placeholder of the session
 * is carried even without a value, because it exists.
 *
 * The value of a PARAMETER entry: BatonParamHeader, then the text.
 *
 * Which records those are, and where they lie, is param_records.c's.
 *
 * Invariants: each BatonParam is in baton_params_placed, at one entry of
 * baton_scan[] at most, and owned by baton_params_context.  The records must
 * not be stacked (see context_guc.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/ilist.h"
#include "utils/memutils.h"

#include "context_guc.h"
#include "context_params.h"
#include "context_placeholders.h"
#include "guc_value.h"
#include "param_records.h"

/* Of the session that is put in place: one place for each wanted entry. */
static BatonParam **chosen = NULL;
static int	chosen_count = 0;
static int	chosen_size = 0;

static StringInfoData scratch;

const char *
baton_params_attach(void)
{
	if (baton_params_context == NULL)
	{
		MemoryContext old;

		baton_params_context = AllocSetContextCreate(TopMemoryContext,
													 "pg_baton parameters",
													 ALLOCSET_DEFAULT_SIZES);
		old = MemoryContextSwitchTo(baton_params_context);
		initStringInfo(&scratch);
		MemoryContextSwitchTo(old);
	}
	baton_scan_look();
	if (baton_guc_find("work_mem") == NULL ||
		baton_guc_find("work_mem")->vartype != PGC_INT)
		return "the server's parameters are not where they are expected";
	return NULL;
}

/* ---- placed ----------------------------------------------------------- */

/* Notes the record's present state; the text is made again if asked for. */
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
	resetStringInfo(&scratch);
	baton_guc_append_text(record, &param->value, &scratch);
	param->string = MemoryContextStrdup(baton_params_context, scratch.data);
}

/* ---- capture ---------------------------------------------------------- */

/* Is the record's value, which is the session's own, the one placed? */
static bool
same_as_placed(const BatonParam *param, struct config_generic *record)
{
	if (param->header.form != BATON_PARAM_VALUE || !baton_param_is_whole(param) ||
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

/* What form the record's state must be carried in; -1 if not at all. */
static inline int
form_of(const BatonScanEntry *entry)
{
	const struct config_generic *record = entry->record;

	if (record->source == PGC_S_SESSION)
		return entry->mode == CARRY_SOURCE ?
			BATON_PARAM_SOURCE : BATON_PARAM_VALUE;
	/* other placeholders exist by the configuration or startup options */
	if (entry->mode == CARRY_PLACEHOLDER &&
		record->reset_source == PGC_S_DEFAULT)
		return BATON_PARAM_EXISTS;
	return -1;
}

static void
put_param(BatonParam *param)
{
	resetStringInfo(&scratch);
	appendBinaryStringInfo(&scratch, (char *) &param->header,
						   sizeof(param->header));
	if (param->string != NULL)
		appendStringInfoString(&scratch, param->string);
	baton_delta_put(BATON_KIND_PARAMETER, param->name, strlen(param->name),
					scratch.data, scratch.len, NULL, 0);
}

static void
delete_param(BatonParam *param, bool tell)
{
	if (tell)
		baton_delta_delete(BATON_KIND_PARAMETER, param->name,
						   strlen(param->name));
	baton_param_drop(param);
}

/* A parameter that a library's load has taken away, or its whole record. */
static bool
capture_lost(bool tell)
{
	dlist_mutable_iter iter;
	bool		changed = false;

	dlist_foreach_modify(iter, &baton_params_placed)
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
 * Brings placed up to date with the records; the differences go into the
 * delta, if anyone is to hear of them.
 */
static bool
look_for_changes(bool tell)
{
	bool		changed = false;

	if (!baton_scan_linked || baton_scan_is_stale())
	{
		baton_scan_look();
		changed = capture_lost(tell);
	}

	for (BatonScanEntry *entry = baton_scan; entry < baton_scan + baton_scan_count; entry++)
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
			param = entry->param = baton_param_add(record, record->name);
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

/* ---- install ---------------------------------------------------------- */

static void
entry_header(const BatonEntry *entry, BatonParamHeader *header)
{
	if (entry->value_length < sizeof(BatonParamHeader))
		elog(ERROR, "stored parameter is too short");
	memcpy(header, baton_entry_value(entry), sizeof(*header));
}

/* The entry's name and text, with an end; valid until the next call. */
static const char *
entry_strings(const BatonEntry *entry, const char **text)
{
	int			start;

	resetStringInfo(&scratch);
	appendBinaryStringInfo(&scratch, baton_entry_key(entry),
						   entry->key_length);
	appendStringInfoChar(&scratch, '\0');
	start = scratch.len;
	appendBinaryStringInfo(&scratch,
						   baton_entry_value(entry) + sizeof(BatonParamHeader),
						   entry->value_length - sizeof(BatonParamHeader));
	*text = scratch.data + start;
	return scratch.data;
}

static bool
same_as_entry(const BatonParam *param, const BatonEntry *entry)
{
	Size		text_length = entry->value_length - sizeof(BatonParamHeader);
	const char *text = param->string ? param->string : "";

	return baton_param_is_whole(param) &&
		entry->key_length == strlen(param->name) &&
		memcmp(baton_entry_key(entry), param->name, entry->key_length) == 0 &&
		entry->value_length >= sizeof(BatonParamHeader) &&
		memcmp(baton_entry_value(entry), &param->header,
			   sizeof(BatonParamHeader)) == 0 &&
		strlen(text) == text_length &&
		memcmp(baton_entry_value(entry) + sizeof(BatonParamHeader), text,
			   text_length) == 0;
}

/* Same values in the same order: the usual case of sessions that are alike. */
static bool
all_placed(const BatonEntryList *wanted)
{
	dlist_iter	iter;
	int			i = 0;

	if (wanted->count != baton_params_placed_count)
		return false;
	dlist_foreach(iter, &baton_params_placed)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);

		if (param->serial == 0 ||
			param->serial != wanted->entries[i++]->serial)
			return false;
	}
	return true;
}

/* Back to what RESET would give. */
static void
take_away(BatonParam *param)
{
	struct config_generic *record = param->record;
	BatonGucCell cell;

	/* one that is carried no longer must go all the same */
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
		baton_placeholder_hide(record);
}

/*
 * NULL if the check hook refuses, unless `last`: it may look at parameters
 * that are still to come.
 */
static BatonParam *
put_in_place(const BatonEntry *entry, bool last)
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
		/* a parameter of a library that is not loaded here is one too */
		record = baton_placeholder_create(name);
		if (record == NULL)
		{
			/* loading that library would have removed it */
			param = baton_param_add(NULL, name);
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
			 * Else a library has defined the parameter here, with a check
			 * that the value the placeholder had does not pass, or for others
			 * to set.  Loading it would have dropped the value as well.
			 */
			break;
		case BATON_PARAM_SOURCE:
			baton_guc_set_origin(record, cell.source, cell.scontext, cell.srole);
			break;
		default:				/* BATON_PARAM_EXISTS */
			break;
	}

	/*
	 * Noted as the entry has it, so that capture and the next install compare
	 * with what the session owns; the value is the record's.
	 */
	param = baton_param_add(record, name);
	param->string = MemoryContextStrdup(baton_params_context, text);
	param->serial = entry->serial;
	param->vartype = record->vartype;
	param->header = header;
	param->value = baton_guc_active(record);
	return param;
}

static bool
is_role_entry(const BatonEntry *entry)
{
	return entry->key_length == 4 &&
		memcmp(baton_entry_key(entry), "role", 4) == 0;
}

/* What of the wanted is in place already stays: that is chosen. */
static void
choose(const BatonEntryList *wanted)
{
	BatonParam **sorted = palloc((baton_params_placed_count + 1) * sizeof(*sorted));
	int			count = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &baton_params_placed)
	{
		sorted[count] = dlist_container(BatonParam, node, iter.cur);
		sorted[count++]->keep = false;
	}
	baton_params_sort(sorted, count);

	if (wanted->count > chosen_size)
	{
		int			size = wanted->count + 64;

		if (chosen != NULL)
			pfree(chosen);
		chosen = NULL;
		chosen_size = 0;
		chosen = MemoryContextAlloc(baton_params_context, size * sizeof(*chosen));
		chosen_size = size;
	}
	chosen_count = wanted->count;
	for (int i = 0; i < wanted->count; i++)
	{
		const BatonEntry *entry = wanted->entries[i];
		BatonParam *param = baton_params_find(sorted, count, baton_entry_key(entry),
											  entry->key_length);

		chosen[i] = NULL;
		if (param != NULL && !param->keep && param->record != NULL &&
			(param->serial == entry->serial ||
			 (param->serial == 0 && same_as_entry(param, entry))))
		{
			param->serial = entry->serial;
			param->keep = true;
			chosen[i] = param;
		}
	}
	pfree(sorted);
}

void
baton_params_make_room(const BatonEntryList *wanted)
{
	dlist_mutable_iter iter;

	if (baton_scan_linked && all_placed(wanted))
		return;
	baton_scan_look();
	baton_scan_linked = false;	/* until we are done, or if we fail */
	choose(wanted);

	/*
	 * The rest goes.  The hooks of role and session_authorization may be
	 * called in any order (SetSessionAuthorization in miscinit.c).
	 */
	dlist_foreach_modify(iter, &baton_params_placed)
	{
		BatonParam *param = dlist_container(BatonParam, node, iter.cur);

		if (!param->keep)
		{
			take_away(param);
			baton_param_drop(param);
		}
	}
}

void
baton_params_install(const BatonEntryList *wanted)
{
	dlist_iter	iter;

	if (baton_scan_linked)
		return;					/* there was no room to make */
	Assert(chosen_count == wanted->count);

	/*
	 * What is new comes; role last, for "none" is the session user then, and
	 * before it what was refused while not all was there.
	 */
	for (int pass = 0; pass < 3; pass++)
	{
		for (int i = 0; i < wanted->count; i++)
		{
			if (chosen[i] == NULL && is_role_entry(wanted->entries[i]) == (pass == 2))
				chosen[i] = put_in_place(wanted->entries[i], pass > 0);
		}
	}

	/* The list takes the session's order, for all_placed. */
	dlist_init(&baton_params_placed);
	for (int i = 0; i < wanted->count; i++)
		dlist_push_tail(&baton_params_placed, &chosen[i]->node);

	baton_scan_look();

	/* What this backend cannot have is lost to the session by next capture. */
	dlist_foreach(iter, &baton_params_placed)
	{
		if (dlist_container(BatonParam, node, iter.cur)->record == NULL)
			baton_scan_linked = false;
	}
}
