/*-------------------------------------------------------------------------
 *
 * param_install.c
 *		A session's own values of parameters come to a backend, in the place of
 *		the last session's.
 *
 * What is in place already stays, by serial.  Where both sessions have the
 * parameter and nothing but the value is at stake, one value takes the other's
 * place.  All else that is in place goes back to its reset value first, and
 * what is wanted comes afterwards: see baton_params_make_room().
 *
 * Invariants: see context_params.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "utils/memutils.h"

#include "arena.h"
#include "context_guc.h"
#include "context_params.h"
#include "guc_value.h"
#include "param_records.h"
#include "pooled_state.h"
#include "stop_point.h"

/* Of the session that is put in place: one place for each wanted entry. */
static BatonParam **chosen = NULL;
static int	chosen_count = 0;
static int	chosen_size = 0;

static StringInfoData scratch;

static void
entry_header(const BatonStored *entry, BatonParamHeader *header)
{
	if (entry->value_length < sizeof(BatonParamHeader))
		elog(ERROR, "stored parameter is too short");
	memcpy(header, entry->value, sizeof(*header));
}

/* The entry's name and text, with an end; valid until the next call. */
static const char *
entry_strings(const BatonStored *entry, const char **text)
{
	int			start;

	if (scratch.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(baton_params_context);

		initStringInfo(&scratch);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&scratch);
	appendBinaryStringInfo(&scratch, entry->key,
						   entry->key_length);
	appendStringInfoChar(&scratch, '\0');
	start = scratch.len;
	appendBinaryStringInfo(&scratch,
						   entry->value + sizeof(BatonParamHeader),
						   entry->value_length - sizeof(BatonParamHeader));
	*text = scratch.data + start;
	return scratch.data;
}

static bool
same_as_entry(const BatonParam *param, const BatonStored *entry)
{
	Size		text_length = entry->value_length - sizeof(BatonParamHeader);
	const char *text = param->string ? param->string : "";

	return baton_param_is_whole(param) &&
		entry->key_length == strlen(param->name) &&
		memcmp(entry->key, param->name, entry->key_length) == 0 &&
		entry->value_length >= sizeof(BatonParamHeader) &&
		memcmp(entry->value, &param->header,
			   sizeof(BatonParamHeader)) == 0 &&
		strlen(text) == text_length &&
		memcmp(entry->value + sizeof(BatonParamHeader), text,
			   text_length) == 0;
}

/* Same values in the same order: the usual case of sessions that are alike. */
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
		baton_scan_hide_placeholder(record);
}

/*
 * NULL if the check hook refuses, unless `last`: it may look at parameters
 * that are still to come.
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
		/* a parameter of a library that is not loaded here is one too */
		record = baton_scan_create_placeholder(name);
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
is_role_entry(const BatonStored *entry)
{
	return entry->key_length == 4 &&
		memcmp(entry->key, "role", 4) == 0;
}

/*
 * Sessions that set the same parameters to values of their own are the usual
 * case, so one value takes the other's place at once: the record, where it is
 * found and what is placed stay.  Not where more than the value is at stake, or
 * where a check hook may look at another parameter, which may be the last
 * session's still: a library's may; of the server's own those of
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

/* False if the value must come in the other way, and nothing has changed. */
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
	string = MemoryContextStrdup(baton_params_context, text);	/* or fails now */

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
 * What of the wanted is in place already stays: that is chosen.  So is what
 * can be exchanged there.  True if that is all that was in place, and all that
 * is wanted.
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
		const BatonStored *entry = &wanted->entries[i];
		BatonParam *param = baton_params_find(sorted, count, entry->key,
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

/* The list takes the session's order, for all_placed. */
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

	if (baton_scan_linked && all_placed(wanted))
		return;
	baton_scan_look();
	baton_scan_linked = false;	/* until we are done, or if we fail */
	if (choose(wanted))
	{
		put_in_order();
		baton_scan_linked = true;
		return;
	}

	/*
	 * The rest goes.  The hooks of role and session_authorization may be
	 * called in any order (SetSessionAuthorization in miscinit.c).
	 */
	dlist_foreach_modify(iter, &BatonPlaced.params.list)
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
			if (chosen[i] == NULL && is_role_entry(&wanted->entries[i]) == (pass == 2))
				chosen[i] = put_in_place(&wanted->entries[i], pass > 0);
		}
	}

	put_in_order();
	baton_scan_look();

	/* What this backend cannot have is lost to the session by next capture. */
	dlist_foreach(iter, &BatonPlaced.params.list)
	{
		if (dlist_container(BatonParam, node, iter.cur)->record == NULL)
			baton_scan_linked = false;
	}
}
