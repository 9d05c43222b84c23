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
 * captured ("placed").  How another session's come in their place is
 * param_install.c's.
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
 * Invariants: each BatonParam is in BatonPlaced.params, at one entry of
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
#include "delta.h"
#include "guc_value.h"
#include "param_records.h"
#include "pooled_state.h"

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
