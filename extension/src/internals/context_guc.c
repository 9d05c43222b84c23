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
 * what guc.c does in its last step, and only that: it calls the assign hook,
 * and stores value, extra, source, context and role in the record
 * (guc_tables.h).  The value and its extra are made before, by guc_value.c.
 *
 * Invariants:
 * - Everything here runs outside transactions or at least outside any GUC nest
 *	 level that has stacked the record: record->stack is NULL.  Nothing is
 *	 pushed, so nothing is undone by an abort.
 * - A string or extra is owned by whoever refers to it: the record's active
 *	 value, its reset value, or a BatonGucCell.  guc.c shares one pointer
 *	 between active and reset value (set_string_field and set_extra_field free
 *	 what the record no longer refers to); baton_guc_release does the same.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/fd.h"
#if PG_VERSION_NUM >= 160000
#include "utils/guc_hooks.h"
#endif

#include "context_guc.h"
#include "guc_memory.h"
#include "majors.h"

bool		baton_guc_report_touched = false;

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
 * InitLocalBuffers (localbuf.c) takes as many local buffers as temp_buffers says,
 * once in a process; check_temp_buffers (guc.c in 15, localbuf.c from 16 on) takes
 * no other value afterwards.  From 16 on what may be pinned of them is reckoned by
 * what the parameter says now (LimitAdditionalLocalPins; in 18
 * GetAdditionalLocalPinLimit, which asserts it), so the two must not part.
 */
bool
baton_guc_is_of_process(const struct config_generic *record)
{
	return strcmp(record->name, "temp_buffers") == 0;
}

bool
baton_guc_is_identity(const struct config_generic *record)
{
	/* the flag marks these two and nothing else (set_config_option_ext) */
	return (record->flags & GUC_NOT_WHILE_SEC_REST) != 0 &&
		(strcmp(record->name, "role") == 0 ||
		 strcmp(record->name, "session_authorization") == 0);
}

/*
 * The first minor releases of 16 and 17, 16.2 for one, do not have it
 * (miscinit.c), so it may be NULL.  There the parameter's extra, as
 * check_session_authorization() (variable.c) makes it for whoever calls
 * SetSessionAuthorization(), says so: the role, and whether it is a superuser.
 * Nor do their check hooks take a parallel leader's state over.
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
 * Where GetSessionUserIsSuperuser() is missing, SetSessionUserId() (miscinit.c),
 * and so RESET SESSION AUTHORIZATION and DISCARD ALL, ends the role without a
 * word to its parameter; the commit that brought the one mended the other.
 */
bool
baton_guc_role_is_lost(void)
{
	struct config_string *role;

	if (&GetSessionUserIsSuperuser != NULL || OidIsValid(GetCurrentRoleId()))
		return false;
	role = (struct config_string *) baton_guc_find("role");
	/* the session's own, by SET ROLE, is carried as it is */
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

/*
 * What a stacked record refers to is known to guc.c alone (GucStack), and
 * would be freed under it.  Whoever comes here within a transaction ends his
 * session by it, and no more.
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
 * nothing up, and says that there are none, by which fd.c then goes; the end
 * of each transaction makes it unknown again.
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

	/* is_superuser is reported and follows role */
	if ((record->flags & GUC_REPORT) || baton_guc_is_identity(record))
	{
		if (record->flags & GUC_REPORT)
			baton_guc_look_for_report(record);
		baton_guc_report_touched = true;
	}

	baton_guc_release(record, &old);
}

/* In place, as guc.c owns both strings, which may be one. */
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
