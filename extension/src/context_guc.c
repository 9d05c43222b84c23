/*-------------------------------------------------------------------------
 *
 * context_guc.c
 *		Reading and exchanging the values in PostgreSQL's parameter records.
 *
 * A session's parameters were accepted when the client set them.  To put them
 * back must therefore never fail, ask for a privilege, look at a catalog or
 * say something to the client, whatever has happened since (stock keeps a
 * search_path whose schema was dropped, or a role whose membership was
 * revoked).  set_config_option() cannot promise that, and it can neither lower
 * the source of a reset value nor take an exact state back.  So this file does
 * what guc.c does in its last step, and only that: it calls the check hook to
 * make the hook's "extra" from the text, calls the assign hook, and stores
 * value, extra, source, context and role in the record (guc_tables.h).
 *
 * Invariants:
 * - Everything here runs outside transactions or at least outside any GUC nest
 *	 level that has stacked the record: record->stack is NULL.  Nothing is
 *	 pushed, so nothing is undone by an abort.
 * - A string or extra is owned by whoever refers to it: the record's active
 *	 value, its reset value, or a BatonGucCell.  guc.c shares one pointer
 *	 between active and reset value (set_string_field and set_extra_field free
 *	 what the record no longer refers to); baton_guc_release does the same.
 * - The hooks are called outside a transaction; check hooks that look at
 *	 catalogs take the value on faith then (check_default_tablespace,
 *	 check_temp_tablespaces: tablespace.c; check_default_text_search_config:
 *	 ts_cache.c; check_default_table_access_method: tableamapi.c).  Three do
 *	 not: role and session_authorization, which are made as a parallel worker
 *	 makes its leader's, and client_encoding, which needs a transaction the
 *	 first time (PrepareClientEncoding in mbutils.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "context_guc.h"

bool		baton_guc_report_touched = false;

/*
 * guc.c frees strings, extras and last_reported with free() up to 15; from 16
 * on all of that lives in GUCMemoryContext.
 */
char *
baton_guc_strdup(const char *string)
{
#if PG_VERSION_NUM >= 160000
	return guc_strdup(ERROR, string);
#else
	char	   *copy = strdup(string);

	if (copy == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	return copy;
#endif
}

void
baton_guc_free(void *pointer)
{
#if PG_VERSION_NUM >= 160000
	guc_free(pointer);
#else
	free(pointer);
#endif
}

/*
 * The order of guc_variables: ASCII case folding, whatever the locale
 * (guc_name_compare in guc.c).
 */
int
baton_guc_compare_names(const char *a, const char *b)
{
	for (;; a++, b++)
	{
		char		ca = *a;
		char		cb = *b;

		if (ca >= 'A' && ca <= 'Z')
			ca += 'a' - 'A';
		if (cb >= 'A' && cb <= 'Z')
			cb += 'a' - 'A';
		if (ca != cb)
		{
			if (ca == '\0')
				return -1;
			if (cb == '\0')
				return 1;
			return ca - cb;
		}
		if (ca == '\0')
			return 0;
	}
}

int
baton_guc_position(const char *name)
{
#if PG_VERSION_NUM < 160000
	struct config_generic **variables = get_guc_variables();
	int			low = 0;
	int			high = GetNumConfigOptions() - 1;

	while (low <= high)
	{
		int			middle = low + (high - low) / 2;
		int			order = baton_guc_compare_names(name,
													variables[middle]->name);

		if (order == 0)
			return middle;
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
#endif
	return -1;
}

struct config_generic *
baton_guc_find(const char *name)
{
#if PG_VERSION_NUM >= 160000
	return find_option(name, false, true, DEBUG5);
#else
	int			position = baton_guc_position(name);

	return position < 0 ? NULL : get_guc_variables()[position];
#endif
}

bool
baton_guc_is_identity(const struct config_generic *record)
{
	/* the flag marks these two and nothing else (set_config_option_ext) */
	return (record->flags & GUC_NOT_WHILE_SEC_REST) != 0 &&
		(strcmp(record->name, "role") == 0 ||
		 strcmp(record->name, "session_authorization") == 0);
}

/* Who the active value of role or session_authorization stands for. */
BatonGucIdentity
baton_guc_identity(const struct config_generic *record)
{
	BatonGucIdentity identity;

	if (strcmp(record->name, "role") == 0)
	{
		identity.role = GetCurrentRoleId();
		/* SetOuterUserId (miscinit.c) keeps it equal to the outer user's */
		identity.superuser = OidIsValid(identity.role) &&
			session_auth_is_superuser;
	}
	else
	{
		identity.role = GetSessionUserId();
		identity.superuser = GetSessionUserIsSuperuser();
	}
	return identity;
}

/* Calls the check hook as guc.c's call_*_check_hook do, without a message. */
static bool
call_check_hook(struct config_generic *record, config_var_value *value,
				GucSource source)
{
	bool		ok = true;

	GUC_check_errmsg_string = NULL;
	GUC_check_errdetail_string = NULL;
	GUC_check_errhint_string = NULL;

	switch (record->vartype)
	{
		case PGC_BOOL:
			{
				struct config_bool *conf = (struct config_bool *) record;

				if (conf->check_hook)
					ok = conf->check_hook(&value->val.boolval, &value->extra,
										  source);
				break;
			}
		case PGC_INT:
			{
				struct config_int *conf = (struct config_int *) record;

				if (conf->check_hook)
					ok = conf->check_hook(&value->val.intval, &value->extra,
										  source);
				break;
			}
		case PGC_REAL:
			{
				struct config_real *conf = (struct config_real *) record;

				if (conf->check_hook)
					ok = conf->check_hook(&value->val.realval, &value->extra,
										  source);
				break;
			}
		case PGC_STRING:
			{
				struct config_string *conf = (struct config_string *) record;

				if (conf->check_hook)
					ok = conf->check_hook(&value->val.stringval,
										  &value->extra, source);
				break;
			}
		case PGC_ENUM:
			{
				struct config_enum *conf = (struct config_enum *) record;

				if (conf->check_hook)
					ok = conf->check_hook(&value->val.enumval, &value->extra,
										  source);
				break;
			}
	}

	/* the hook's explanations were allocated in ErrorContext */
	if (!ok)
		FlushErrorState();
	return ok;
}

/*
 * The check hooks of role and session_authorization take the process' own
 * state, without a look at the catalogs, while InitializingParallelWorker is
 * set (check_role, check_session_authorization in variable.c; that is how
 * ParallelWorkerMain takes its leader's over).  So the state is put in place
 * for the length of the call.
 */
static bool
call_identity_check_hook(struct config_generic *record,
						 config_var_value *value, GucSource source,
						 const BatonGucIdentity *identity)
{
	BatonGucIdentity before = baton_guc_identity(record);
	bool		is_role = strcmp(record->name, "role") == 0;
	volatile bool ok = false;

	if (is_role)
		SetCurrentRoleId(identity->role, identity->superuser);
	else
		SetSessionAuthorization(identity->role, identity->superuser);

	InitializingParallelWorker = true;
	PG_TRY();
	{
		ok = call_check_hook(record, value, source);
	}
	PG_FINALLY();
	{
		InitializingParallelWorker = false;
		if (is_role)
			SetCurrentRoleId(before.role, before.superuser);
		else
			SetSessionAuthorization(before.role, before.superuser);
	}
	PG_END_TRY();
	return ok;
}

/* The conversion procedures of an encoding are looked up in a transaction. */
static bool
call_check_hook_in_transaction(struct config_generic *record,
							   config_var_value *value, GucSource source)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		ok;

	StartTransactionCommand();
	ok = call_check_hook(record, value, source);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return ok;
}

bool
baton_guc_make(struct config_generic *record, const char *text,
			   GucSource source, const BatonGucIdentity *identity,
			   config_var_value *value)
{
	bool		ok;

	memset(value, 0, sizeof(*value));

	switch (record->vartype)
	{
		case PGC_BOOL:
			if (!parse_bool(text, &value->val.boolval))
				return false;
			break;
		case PGC_INT:
			{
				struct config_int *conf = (struct config_int *) record;

				if (!parse_int(text, &value->val.intval, record->flags, NULL) ||
					value->val.intval < conf->min ||
					value->val.intval > conf->max)
					return false;
				break;
			}
		case PGC_REAL:
			{
				struct config_real *conf = (struct config_real *) record;

				if (!parse_real(text, &value->val.realval, record->flags,
								NULL) ||
					value->val.realval < conf->min ||
					value->val.realval > conf->max)
					return false;
				break;
			}
		case PGC_STRING:
			value->val.stringval = baton_guc_strdup(text);
			if (record->flags & GUC_IS_NAME)
				truncate_identifier(value->val.stringval,
									strlen(value->val.stringval), false);
			break;
		case PGC_ENUM:
			if (!config_enum_lookup_by_name((struct config_enum *) record,
											text, &value->val.enumval))
				return false;
			break;
	}

	if (identity != NULL && baton_guc_is_identity(record))
		ok = call_identity_check_hook(record, value, source, identity);
	else if (strcmp(record->name, "temp_buffers") == 0)
	{
		/*
		 * check_temp_buffers (guc.c) refuses once the backend has local
		 * buffers of another number.  The session may nevertheless have set
		 * it: it was on another backend then.
		 */
		ok = call_check_hook(record, value, PGC_S_TEST);
	}
	else
	{
		ok = call_check_hook(record, value, source);
		if (!ok && !IsTransactionState() &&
			strcmp(record->name, "client_encoding") == 0)
			ok = call_check_hook_in_transaction(record, value, source);
	}

	if (!ok && record->vartype == PGC_STRING)
		baton_guc_free(value->val.stringval);
	return ok;
}

bool
baton_guc_make_boot(struct config_generic *record, BatonGucCell *cell)
{
	bool		ok;

	memset(cell, 0, sizeof(*cell));
	cell->source = PGC_S_DEFAULT;
	cell->scontext = PGC_INTERNAL;
	cell->srole = BOOTSTRAP_SUPERUSERID;

	switch (record->vartype)
	{
		case PGC_BOOL:
			cell->value.val.boolval = ((struct config_bool *) record)->boot_val;
			break;
		case PGC_INT:
			cell->value.val.intval = ((struct config_int *) record)->boot_val;
			break;
		case PGC_REAL:
			cell->value.val.realval = ((struct config_real *) record)->boot_val;
			break;
		case PGC_STRING:
			{
				const char *boot = ((struct config_string *) record)->boot_val;

				if (boot != NULL)
					cell->value.val.stringval = baton_guc_strdup(boot);
				break;
			}
		case PGC_ENUM:
			cell->value.val.enumval = ((struct config_enum *) record)->boot_val;
			break;
	}

	ok = call_check_hook(record, &cell->value, PGC_S_DEFAULT);
	if (!ok && record->vartype == PGC_STRING && cell->value.val.stringval)
		baton_guc_free(cell->value.val.stringval);
	return ok;
}

BatonGucCell
baton_guc_reset_cell(struct config_generic *record)
{
	BatonGucCell cell;

	memset(&cell, 0, sizeof(cell));
	cell.source = record->reset_source;
	cell.scontext = record->reset_scontext;
	cell.srole = record->reset_srole;

	switch (record->vartype)
	{
		case PGC_BOOL:
			cell.value.val.boolval = ((struct config_bool *) record)->reset_val;
			cell.value.extra = ((struct config_bool *) record)->reset_extra;
			break;
		case PGC_INT:
			cell.value.val.intval = ((struct config_int *) record)->reset_val;
			cell.value.extra = ((struct config_int *) record)->reset_extra;
			break;
		case PGC_REAL:
			cell.value.val.realval = ((struct config_real *) record)->reset_val;
			cell.value.extra = ((struct config_real *) record)->reset_extra;
			break;
		case PGC_STRING:
			cell.value.val.stringval =
				((struct config_string *) record)->reset_val;
			cell.value.extra = ((struct config_string *) record)->reset_extra;
			break;
		case PGC_ENUM:
			cell.value.val.enumval = ((struct config_enum *) record)->reset_val;
			cell.value.extra = ((struct config_enum *) record)->reset_extra;
			break;
	}
	return cell;
}

/* Does not free what was there: the caller holds it in a cell. */
void
baton_guc_set_reset(struct config_generic *record, const BatonGucCell *cell)
{
	record->reset_source = cell->source;
	record->reset_scontext = cell->scontext;
	record->reset_srole = cell->srole;

	switch (record->vartype)
	{
		case PGC_BOOL:
			((struct config_bool *) record)->reset_val = cell->value.val.boolval;
			((struct config_bool *) record)->reset_extra = cell->value.extra;
			break;
		case PGC_INT:
			((struct config_int *) record)->reset_val = cell->value.val.intval;
			((struct config_int *) record)->reset_extra = cell->value.extra;
			break;
		case PGC_REAL:
			((struct config_real *) record)->reset_val = cell->value.val.realval;
			((struct config_real *) record)->reset_extra = cell->value.extra;
			break;
		case PGC_STRING:
			((struct config_string *) record)->reset_val =
				cell->value.val.stringval;
			((struct config_string *) record)->reset_extra = cell->value.extra;
			break;
		case PGC_ENUM:
			((struct config_enum *) record)->reset_val = cell->value.val.enumval;
			((struct config_enum *) record)->reset_extra = cell->value.extra;
			break;
	}
}

config_var_value
baton_guc_active(struct config_generic *record)
{
	config_var_value value;

	memset(&value, 0, sizeof(value));
	value.extra = record->extra;
	switch (record->vartype)
	{
		case PGC_BOOL:
			value.val.boolval = *((struct config_bool *) record)->variable;
			break;
		case PGC_INT:
			value.val.intval = *((struct config_int *) record)->variable;
			break;
		case PGC_REAL:
			value.val.realval = *((struct config_real *) record)->variable;
			break;
		case PGC_STRING:
			value.val.stringval = *((struct config_string *) record)->variable;
			break;
		case PGC_ENUM:
			value.val.enumval = *((struct config_enum *) record)->variable;
			break;
	}
	return value;
}

void
baton_guc_release(struct config_generic *record, config_var_value *value)
{
	BatonGucCell reset = baton_guc_reset_cell(record);

	Assert(record->stack == NULL);

	if (record->vartype == PGC_STRING && value->val.stringval != NULL)
	{
		struct config_string *conf = (struct config_string *) record;

		if (value->val.stringval != *conf->variable &&
			value->val.stringval != reset.value.val.stringval &&
			value->val.stringval != conf->boot_val)
			baton_guc_free(value->val.stringval);
		value->val.stringval = NULL;
	}
	if (value->extra != NULL)
	{
		if (value->extra != record->extra &&
			value->extra != reset.value.extra)
			baton_guc_free(value->extra);
		value->extra = NULL;
	}
}

void
baton_guc_activate(struct config_generic *record, const BatonGucCell *cell)
{
	config_var_value old = baton_guc_active(record);
	void	   *extra = cell->value.extra;

	Assert(record->stack == NULL);

	switch (record->vartype)
	{
		case PGC_BOOL:
			{
				struct config_bool *conf = (struct config_bool *) record;

				if (conf->assign_hook)
					conf->assign_hook(cell->value.val.boolval, extra);
				*conf->variable = cell->value.val.boolval;
				break;
			}
		case PGC_INT:
			{
				struct config_int *conf = (struct config_int *) record;

				if (conf->assign_hook)
					conf->assign_hook(cell->value.val.intval, extra);
				*conf->variable = cell->value.val.intval;
				break;
			}
		case PGC_REAL:
			{
				struct config_real *conf = (struct config_real *) record;

				if (conf->assign_hook)
					conf->assign_hook(cell->value.val.realval, extra);
				*conf->variable = cell->value.val.realval;
				break;
			}
		case PGC_STRING:
			{
				struct config_string *conf = (struct config_string *) record;

				if (conf->assign_hook)
					conf->assign_hook(cell->value.val.stringval, extra);
				*conf->variable = cell->value.val.stringval;
				break;
			}
		case PGC_ENUM:
			{
				struct config_enum *conf = (struct config_enum *) record;

				if (conf->assign_hook)
					conf->assign_hook(cell->value.val.enumval, extra);
				*conf->variable = cell->value.val.enumval;
				break;
			}
	}
	record->extra = extra;
	record->source = cell->source;
	record->scontext = cell->scontext;
	record->srole = cell->srole;

	/* is_superuser is reported and follows role */
	if ((record->flags & GUC_REPORT) || baton_guc_is_identity(record))
	{
		record->status |= (record->flags & GUC_REPORT) ? GUC_NEEDS_REPORT : 0;
		baton_guc_report_touched = true;
	}

	baton_guc_release(record, &old);
}

void
baton_guc_append_text(struct config_generic *record,
					  const config_var_value *value, StringInfo text)
{
	switch (record->vartype)
	{
		case PGC_BOOL:
			appendStringInfoString(text, value->val.boolval ? "on" : "off");
			break;
		case PGC_INT:
			appendStringInfo(text, "%d", value->val.intval);
			break;
		case PGC_REAL:
			/* 17 digits tell every double from its neighbours */
			appendStringInfo(text, "%.17g", value->val.realval);
			break;
		case PGC_STRING:
			if (value->val.stringval != NULL)
				appendStringInfoString(text, value->val.stringval);
			break;
		case PGC_ENUM:
			appendStringInfoString(text,
								   config_enum_lookup_by_value((struct config_enum *) record,
															   value->val.enumval));
			break;
	}
}
