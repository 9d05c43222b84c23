/*-------------------------------------------------------------------------
 *
 * guc_value.c
 *		Making a parameter's value from its text, and the text from the value.
 *
 * Nothing of the parameter's record is changed here; that is context_guc.c's.
 * A value is made as guc.c makes it, by the record's check hook, which gives
 * it its "extra"; but what the hook refuses is not told to anybody.
 *
 * The hooks are called outside a transaction; check hooks that look at
 * catalogs take the value on faith then (check_default_tablespace,
 * check_temp_tablespaces: tablespace.c; check_default_text_search_config:
 * ts_cache.c; check_default_table_access_method: tableamapi.c).  Three do
 * not: role and session_authorization, which are made as a parallel worker
 * makes its leader's, and client_encoding, which needs a transaction the
 * first time (PrepareClientEncoding in mbutils.c).
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

#include "guc_memory.h"
#include "guc_value.h"

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

	value->extra = baton_guc_role_extra(identity);
	if (value->extra != NULL)
		return true;
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

/*
 * Those of log_statement_stats and its like (check_stage_log_stats and
 * check_log_stats in guc.c) ask only whether the others are off, which the
 * session may have got past in a way of its own: by the configuration files,
 * say, or within a transaction.
 */
static bool
hook_is_about_others(const struct config_generic *record)
{
	static const char *const names[] = {
		"log_parser_stats", "log_planner_stats", "log_executor_stats",
		"log_statement_stats"
	};

	if (record->group != STATS_MONITORING)
		return false;
	for (int i = 0; i < (int) lengthof(names); i++)
	{
		if (strcmp(record->name, names[i]) == 0)
			return true;
	}
	return false;
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
	else if (hook_is_about_others(record))
		ok = true;
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

/*
 * As define_custom_variable and reapply_stacked_values (guc.c) ask: on behalf
 * of whoever set the placeholder.  The warning they give then would come here
 * at a moment when the client has asked for nothing.
 */
bool
baton_guc_placeholder_fits(const char *name, const char *text,
						   GucContext scontext, GucSource source, Oid srole)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		in_transaction = IsTransactionState();
	int			verdict;

	if (!in_transaction)
		StartTransactionCommand();
	verdict = set_config_option_ext(name, text, scontext, source, srole,
									GUC_ACTION_SET, false, DEBUG5, false);
	if (!in_transaction)
		CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return verdict != 0;
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

/* ReportGUCOption() in guc.c keeps it so (15 to 18). */
void
baton_guc_set_reported(struct config_generic *record, const char *value)
{
	if (record->last_reported != NULL)
	{
		if (value != NULL && strcmp(record->last_reported, value) == 0)
			return;
		baton_guc_free(record->last_reported);
		record->last_reported = NULL;
	}
	if (value != NULL)
		record->last_reported = baton_guc_strdup(value);
}
