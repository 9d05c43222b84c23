/*-------------------------------------------------------------------------
 *
 * pg_guc.c
 *		PostgreSQL's parameter records (guc.c): their memory, their hooks,
 *		their values, and making a value from its text.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "parser/scansup.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"

#include "majors.h"
#include "pg_guc.h"

#if PG_VERSION_NUM >= 160000
#include "utils/guc_hooks.h"
#endif
#if PG_VERSION_NUM >= 180000
#include "tcop/backend_startup.h"
#endif

/* ----------------------------------------------------------------
 *		The memory in which guc.c keeps values.
 *
 * guc.c frees strings, extras and last_reported with free() up to 15; from 16
 * on all of them are in GUCMemoryContext.
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

/* ----------------------------------------------------------------
 *		Assign and show hooks of the server's parameters, replaced by
 *		pg_baton's.
 *
 * A parameter's record has its hooks from its creation (guc_tables.c; guc.c
 * in 15), and guc.c calls them through the record each time
 * (set_config_with_handle, AtEOXact_GUC, ShowGUCOption; 15 to 18).  A
 * built-in record is never replaced, so a hook stored there stays.
 */

static struct config_generic *
find(const char *name, enum config_type type)
{
	struct config_generic *record = baton_guc_find(name);

	return record != NULL && record->vartype == type ? record : NULL;
}

bool
baton_guc_hook_real(const char *name, GucRealAssignHook assign,
					GucRealAssignHook *server_assign)
{
	struct config_real *record = (struct config_real *) find(name, PGC_REAL);

	if (record == NULL || record->assign_hook == NULL)
		return false;
	*server_assign = record->assign_hook;
	record->assign_hook = assign;
	return true;
}

bool
baton_guc_hook_enum(const char *name, GucEnumAssignHook assign,
					GucEnumAssignHook *server_assign)
{
	struct config_enum *record = (struct config_enum *) find(name, PGC_ENUM);

	if (record == NULL || record->assign_hook == NULL)
		return false;
	*server_assign = record->assign_hook;
	record->assign_hook = assign;
	return true;
}

bool
baton_guc_hook_int(const char *name, GucIntAssignHook assign, GucShowHook show,
				   GucIntAssignHook *server_assign, GucShowHook *server_show)
{
	struct config_int *record = (struct config_int *) find(name, PGC_INT);

	if (record == NULL || record->assign_hook == NULL || record->show_hook == NULL)
		return false;
	*server_assign = record->assign_hook;
	*server_show = record->show_hook;
	record->assign_hook = assign;
	record->show_hook = show;
	return true;
}

/* ----------------------------------------------------------------
 *		Reading and exchanging the values in PostgreSQL's parameter records.
 *
 * A session's parameters were accepted when the client set them.  Putting
 * them back must therefore never fail, ask for a privilege, look at a catalog
 * or send a message to the client, whatever has happened since (on a direct
 * connection a session keeps a search_path after its schema was dropped, or a
 * role after its membership was revoked). set_config_option() cannot
 * guarantee that, and it can neither lower the source of a reset value nor
 * restore an exact state.  So this file does what guc.c does in its last
 * step, and only that: it calls the assign hook, and stores value, extra,
 * source, context and role in the record (guc_tables.h). baton_guc_make()
 * makes the value and its extra before.
 *
 * Invariants:
 * - Everything here runs outside transactions or at least outside any GUC
 *   nest level that has stacked the record: record->stack is NULL.  Nothing
 *   is pushed, so an abort undoes nothing.
 * - A string or extra is owned by what refers to it: the record's active
 *   value, its reset value, or a BatonGucCell. guc.c shares one pointer
 *   between active and reset value (set_string_field and set_extra_field free
 *   what the record no longer refers to); baton_guc_release does the same.
 */

bool		baton_guc_report_touched = false;
bool		baton_guc_report_identity_touched = false;

/*
 * The order of guc_variables: ASCII case folding, independent of the locale
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

bool
baton_guc_is_aside(const struct config_generic *record)
{
	switch (record->group)
	{
		case CONN_AUTH_SETTINGS:
#if PG_VERSION_NUM >= 160000
		case CONN_AUTH_TCP:
#endif
		case CONN_AUTH_AUTH:
		case CONN_AUTH_SSL:
		case LOGGING_WHERE:
		case LOGGING_WHEN:
		case LOGGING_WHAT:
#if PG_VERSION_NUM >= 180000
		case VACUUM_AUTOVACUUM:
#else
		case AUTOVACUUM:
#endif
		case LOCK_MANAGEMENT:
			return true;
		default:
			return false;
	}
}

/*
 * InitLocalBuffers (localbuf.c) allocates temp_buffers local buffers, once in
 * a process; check_temp_buffers (guc.c in 15, localbuf.c from 16 on) accepts
 * no other value afterwards.  From 16 on the limit of pinned local buffers is
 * computed from the parameter's current value (LimitAdditionalLocalPins; in 18
 * GetAdditionalLocalPinLimit, which asserts it), so the two must stay equal.
 */
bool
baton_guc_is_of_process(const struct config_generic *record)
{
	return strcmp(record->name, "temp_buffers") == 0;
}

bool
baton_guc_is_identity(const struct config_generic *record)
{
	/* only these two have the flag (set_config_option_ext) */
	return (record->flags & GUC_NOT_WHILE_SEC_REST) != 0 &&
		(strcmp(record->name, "role") == 0 ||
		 strcmp(record->name, "session_authorization") == 0);
}

/*
 * The first minor releases of 16 and 17, such as 16.2, do not have it
 * (miscinit.c), so it may be NULL.  There the role and its superuser flag come
 * from the parameter's extra, which check_session_authorization() (variable.c)
 * makes for the call of SetSessionAuthorization().  In these releases the
 * check hooks do not take over a parallel leader's state, either.
 */
extern bool GetSessionUserIsSuperuser(void) __attribute__((weak));

typedef struct RoleExtra
{
	Oid			role;
	bool		is_superuser;
} RoleExtra;

static bool
session_user_is_superuser(const struct config_generic *record)
{
	const RoleExtra *extra = record->extra;

	if (&GetSessionUserIsSuperuser != NULL)
		return GetSessionUserIsSuperuser();
	if (extra == NULL || extra->role != GetSessionUserId())
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("parameter \"%s\" is not as expected", record->name)));
	return extra->is_superuser;
}

void *
baton_guc_role_extra(const BatonGucIdentity *identity)
{
#if PG_VERSION_NUM >= 160000
	if (&GetSessionUserIsSuperuser == NULL)
	{
		RoleExtra  *extra = guc_malloc(ERROR, sizeof(RoleExtra));

		extra->role = identity->role;
		extra->is_superuser = identity->superuser;
		return extra;
	}
#endif
	return NULL;
}

/*
 * The role that the active value of role or session_authorization stands for.
 */
BatonGucIdentity
baton_guc_identity(const struct config_generic *record)
{
	BatonGucIdentity identity;

	if (strcmp(record->name, "role") == 0)
	{
		identity.role = GetCurrentRoleId();
		/* SetOuterUserId (miscinit.c) keeps it equal to the outer user's */
		identity.superuser = OidIsValid(identity.role) &&
			baton_current_role_is_superuser();
	}
	else
	{
		identity.role = GetSessionUserId();
		identity.superuser = session_user_is_superuser(record);
	}
	return identity;
}

/*
 * Where GetSessionUserIsSuperuser() is missing, SetSessionUserId()
 * (miscinit.c), and so RESET SESSION AUTHORIZATION and DISCARD ALL, ends the
 * role without changing its parameter; the commit that added the function also
 * fixed that.
 */
bool
baton_guc_role_is_lost(void)
{
	struct config_string *role;

	if (&GetSessionUserIsSuperuser != NULL || OidIsValid(GetCurrentRoleId()))
		return false;
	role = (struct config_string *) baton_guc_find("role");
	/* a role that the session set by SET ROLE is carried as it is */
	return role->gen.source != PGC_S_SESSION && strcmp(*role->variable, "none") != 0;
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

void
baton_guc_set_client_role(struct config_generic *record, Oid role)
{
	if (record->reset_source == PGC_S_CLIENT)
		record->reset_srole = role;
	if (record->source == PGC_S_CLIENT)
		record->srole = role;
}

/* Does not free the previous values: the caller holds them in a cell. */
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

/*
 * Only guc.c knows what a stacked record refers to (GucStack), and this code
 * would free it.  A session that gets here within a transaction is ended, and
 * only that session.
 */
static void
require_unstacked(const struct config_generic *record)
{
	if (unlikely(record->stack != NULL))
		elog(ERROR, "parameter \"%s\" cannot be exchanged within a transaction",
			 record->name);
}

void
baton_guc_release(struct config_generic *record, config_var_value *value)
{
	BatonGucCell reset = baton_guc_reset_cell(record);

	require_unstacked(record);

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

/*
 * Outside a transaction assign_temp_tablespaces (tablespace.c) can look
 * nothing up, and tells fd.c that there are none; the end of each transaction
 * resets that to unknown.
 */
static void
let_temp_tablespaces_be_looked_up(void)
{
	if (!IsTransactionState())
		AtEOXact_Files(true);
}

void
baton_guc_activate(struct config_generic *record, const BatonGucCell *cell)
{
	config_var_value old = baton_guc_active(record);
	void	   *extra = cell->value.extra;

	require_unstacked(record);

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
				if (conf->assign_hook == assign_temp_tablespaces)
					let_temp_tablespaces_be_looked_up();
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
	baton_guc_set_origin(record, cell->source, cell->scontext, cell->srole);

	/* is_superuser is reported, and changes with the role */
	if ((record->flags & GUC_REPORT) || baton_guc_is_identity(record))
	{
		if (record->flags & GUC_REPORT)
			baton_guc_look_for_report(record);
		baton_guc_report_touched = true;
	}

	baton_guc_release(record, &old);
}

/* In place, as guc.c owns both strings, which may be the same one. */
bool
baton_guc_blank(const char *name)
{
	struct config_string *record = (struct config_string *) baton_guc_find(name);

	if (record == NULL || record->gen.vartype != PGC_STRING)
		return false;
	explicit_bzero(*record->variable, strlen(*record->variable));
	explicit_bzero(record->reset_val, strlen(record->reset_val));
	return true;
}

/* ----------------------------------------------------------------
 *		Making a parameter's value from its text, and the text from the value.
 *
 * This part does not change the parameter's record.  A value is made as in
 * guc.c, by the record's check hook, which gives it its "extra"; but no
 * message is sent if the hook refuses.
 *
 * The hooks are called outside a transaction, where check hooks that would
 * look at catalogs accept the value unchecked (check_default_tablespace,
 * check_temp_tablespaces: tablespace.c; check_default_text_search_config:
 * ts_cache.c; check_default_table_access_method: tableamapi.c).  Three do
 * not: those of role and session_authorization, which are made as a parallel
 * worker makes its leader's, and that of client_encoding, which needs a
 * transaction the first time (PrepareClientEncoding in mbutils.c).
 */

/*
 * Calls the check hook as guc.c's call_*_check_hook functions do, without a
 * message.
 */
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
 * The check hooks of role and session_authorization use the process's own
 * state, without reading catalogs, while InitializingParallelWorker is set
 * (check_role, check_session_authorization in variable.c; so
 * ParallelWorkerMain takes over its leader's).  So that state is set for the
 * duration of the call.
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

/*
 * SetSessionAuthorization() sets is_superuser by SetConfigOption(), after
 * which ReportChangedGUCOptions() (guc.c) of 15 would examine all parameters.
 */
void
baton_guc_set_session_user(const BatonGucIdentity *identity)
{
	static struct config_generic *is_superuser = NULL;

	if (is_superuser == NULL)
		is_superuser = baton_guc_find("is_superuser");
	is_superuser->flags &= ~GUC_REPORT;
	SetSessionAuthorization(identity->role, identity->superuser);
	is_superuser->flags |= GUC_REPORT;
	baton_guc_look_for_report(is_superuser);
	baton_guc_report_identity_touched = true;
}

void
baton_guc_override_identity(const char *name, const BatonGucIdentity *identity)
{
	static struct config_string *conf = NULL;
	BatonGucCell cell = {.source = PGC_S_OVERRIDE,.scontext = PGC_BACKEND,.srole = BOOTSTRAP_SUPERUSERID};
	config_var_value old;
	BatonGucCell old_reset;

	if (conf == NULL)
		conf = (struct config_string *) baton_guc_find("session_authorization");
	require_unstacked(&conf->gen);
	cell.value.val.stringval = baton_guc_strdup(name);
	cell.value.extra = baton_guc_role_extra(identity);
	if (cell.value.extra == NULL)
	{
		bool		ok;

		/* it only allocates, and raises no error (variable.c) */
		InitializingParallelWorker = true;
		ok = call_check_hook(&conf->gen, &cell.value, PGC_S_OVERRIDE);
		InitializingParallelWorker = false;
		if (!ok)
			elog(FATAL, "session_authorization cannot be \"%s\"", name);
	}

	old_reset = baton_guc_reset_cell(&conf->gen);
	baton_guc_set_reset(&conf->gen, &cell);
	baton_guc_release(&conf->gen, &old_reset.value);

	old = baton_guc_active(&conf->gen);
	*conf->variable = cell.value.val.stringval;
	conf->gen.extra = cell.value.extra;
	baton_guc_set_origin(&conf->gen, cell.source, cell.scontext, cell.srole);
	baton_guc_release(&conf->gen, &old);

	if (conf->gen.flags & GUC_REPORT)
		baton_guc_look_for_report(&conf->gen);
	baton_guc_report_identity_touched = true;
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
 * Those of log_statement_stats and related parameters (check_stage_log_stats
 * and check_log_stats in guc.c) check only whether the others are off.  The
 * session may have combined them in other ways: by the configuration files, or
 * within a transaction.
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
 * Checks as define_custom_variable and reapply_stacked_values (guc.c) do, for
 * the role that set the placeholder.  Their warning is suppressed, since the
 * client has sent no command at this moment.
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
			/* 17 digits distinguish every double from its neighbours */
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

/* As ReportGUCOption() in guc.c stores it (15 to 18). */
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

/* ----------------------------------------------------------------
 *		log_connections and log_disconnections, as in a new backend.
 *
 * The dispatcher logs its clients as the server logs its own, and the
 * launcher sends it the values of these two.  But a running process keeps the
 * values it started with (set_config_option in guc.c ignores a reload of
 * parameters of context superuser-backend, except in the postmaster), and the
 * launcher keeps running.  So the postmaster, which reads its files before it
 * signals any process to do so (SIGHUP_handler in postmaster.c), stores them
 * in memory that it shares with its children, by the parameters' assign
 * hooks.
 */

typedef struct LogSettings
{
	bool		receipt;
	bool		authentication;
	bool		authorization;
	bool		disconnections;
} LogSettings;

/* Only the postmaster writes it. */
static LogSettings *settings = NULL;

static GucBoolAssignHook previous_disconnections = NULL;

static void
assign_disconnections(bool value, void *extra)
{
	if (!IsUnderPostmaster)
		settings->disconnections = value;
	if (previous_disconnections)
		previous_disconnections(value, extra);
}

/*
 * Puts a hook into a boolean parameter's record, and returns its current
 * value.
 */
static bool
watch_bool(const char *name, GucBoolAssignHook hook, GucBoolAssignHook *previous)
{
	struct config_bool *record = (struct config_bool *) baton_guc_find(name);

	if (record == NULL || record->gen.vartype != PGC_BOOL)
	{
		ereport(LOG,
				(errmsg("pg_baton does not follow \"%s\": it is not as expected", name)));
		return false;
	}
	*previous = record->assign_hook;
	record->assign_hook = hook;
	return *record->variable;
}

#if PG_VERSION_NUM >= 180000

static GucStringAssignHook previous_connections = NULL;

/* The server's hook has just converted the text. */
static void
note_connections(void)
{
	settings->receipt = (log_connections & LOG_CONNECTION_RECEIPT) != 0;
	settings->authentication = (log_connections & LOG_CONNECTION_AUTHENTICATION) != 0;
	settings->authorization = (log_connections & LOG_CONNECTION_AUTHORIZATION) != 0;
}

static void
assign_connections(const char *value, void *extra)
{
	previous_connections(value, extra);
	if (!IsUnderPostmaster)
		note_connections();
}

static void
watch_connections(void)
{
	struct config_string *record = (struct config_string *) baton_guc_find("log_connections");

	if (record == NULL || record->gen.vartype != PGC_STRING || record->assign_hook == NULL)
	{
		ereport(LOG,
				(errmsg("pg_baton does not follow \"%s\": it is not as expected",
						"log_connections")));
		return;
	}
	previous_connections = record->assign_hook;
	record->assign_hook = assign_connections;
	note_connections();
}

#else

static GucBoolAssignHook previous_connections = NULL;

static void
note_connections(bool value)
{
	settings->receipt = settings->authentication = settings->authorization = value;
}

static void
assign_connections(bool value, void *extra)
{
	if (!IsUnderPostmaster)
		note_connections(value);
	if (previous_connections)
		previous_connections(value, extra);
}

static void
watch_connections(void)
{
	note_connections(watch_bool("log_connections", assign_connections, &previous_connections));
}

#endif

void
baton_log_settings_init(void)
{
	settings = mmap(NULL, sizeof(LogSettings), PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (settings == MAP_FAILED)
		ereport(FATAL,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not map shared memory of pg_baton: %m")));
	watch_connections();
	settings->disconnections = watch_bool("log_disconnections", assign_disconnections,
										  &previous_disconnections);
}

bool
baton_log_receipt(void)
{
	return settings->receipt;
}

bool
baton_log_authentication(void)
{
	return settings->authentication;
}

bool
baton_log_authorization(void)
{
	return settings->authorization;
}

bool
baton_log_disconnections(void)
{
	return settings->disconnections;
}
