/*-------------------------------------------------------------------------
 *
 * parameters.c
 *		Parameters pg_baton.* that belong to no single file, their checks, and
 *		whether hooks of other libraries must be called.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "parser/scansup.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "parameters.h"
#include "pg_guc.h"
#include "pg_hba.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		The variables of parameters pg_baton.* that belong to no single file.
 *
 * parameter_table.c defines them, and describes each.
 */

int			baton_port;
char	   *baton_listen_addresses;
int			baton_max_backends;
int			baton_min_backends;
int			baton_max_dedicated;
int			baton_max_extra_backends;
int			baton_sharing_threshold;
int			baton_dispatchers;
int			baton_backend_idle_timeout_ms;
int			baton_backend_lifetime_ms;
int			baton_message_timeout_ms;
int			baton_hang_limit_ms;
int			baton_session_wait_timeout_ms;
int			baton_hold_sessions_ms;
bool		baton_keep_after_demotion;
int			baton_max_sessions;
int			baton_session_memory_kb;
int			baton_max_login_rate;
int			baton_max_login_rate_per_address;
int			baton_max_sessions_per_address;
int			baton_max_sessions_per_user;
int			baton_max_unauthenticated;
bool		baton_force_migration;
bool		baton_force_role_changes;
bool		baton_enabled;
int			baton_login;
int			baton_console_version;	/* the second number of a release */
int			baton_gss_encryption;
char	   *baton_native_dbuser_names;
int			baton_native_when_waiting;
char	   *baton_attach_option;
char	   *baton_dispatcher_program;
char	   *baton_dispatcher_log;
bool		baton_log_scheduling;
int			baton_log_min_wait_ms;
int			baton_log_min_pin_ms;

const char *const baton_start_only[BATON_START_ONLY_COUNT] = {
	"session_preload_libraries", "local_preload_libraries", "temp_buffers"
};

void
baton_parameters_forget_attach(void)
{
	if (!baton_guc_blank("pg_baton.attach"))
		elog(FATAL, "parameter \"%s\" is not as expected", "pg_baton.attach");
}

/* ----------------------------------------------------------------
 *		Constants that tests change.
 * ----------------------------------------------------------------
 */

void
baton_test_constants_assign(const char *value, void *extra)
{
	baton_message_timeout_ms = baton_test_constant(value, "message_timeout_ms", 60 * 1000);
	baton_hang_limit_ms = baton_test_constant(value, "hang_limit_ms", 10 * 1000);
	baton_force_role_changes = baton_test_constant(value, "force_role_changes", 0) != 0;
}

/* ----------------------------------------------------------------
 *		Checks of pg_baton's parameters of type string.
 *
 * guc.c calls them in any process, with or without a transaction: nothing
 * here reads catalogs.  If a value in a configuration file is refused, the
 * previous value stays in force, and the log says so.
 */

/* The dispatcher's log levels (log/mod.rs). */
static const char *const levels[] =
{
	"off", "error", "warn", "info", "debug", "trace"
};

static bool
is_list(const char *value, bool (*split) (char *, char, List **))
{
	char	   *copy = pstrdup(value);
	List	   *names;
	bool		valid = split(copy, ',', &names);

	list_free(names);
	pfree(copy);
	if (!valid)
		GUC_check_errdetail("List syntax is invalid.");
	return valid;
}

bool
baton_check_names(char **value, void **extra, GucSource source)
{
	return is_list(*value, SplitIdentifierString);
}

/* As PostmasterMain (postmaster.c) reads listen_addresses. */
bool
baton_check_list(char **value, void **extra, GucSource source)
{
	return is_list(*value, SplitGUCList);
}

/*
 * Skips a name in a list of database/user, as parameters.rs reads it: in
 * quotes, where a double quote stands for one, or up to a separator.  Returns
 * the position behind it and the blanks that follow, or NULL if there is no
 * name.
 */
static const char *
skip_name(const char *at)
{
	const char *begin;

	while (scanner_isspace(*at))
		at++;
	begin = at;
	if (*at == '"')
	{
		do
		{
			at = strchr(at + 1, '"');
			if (at == NULL)
				return NULL;
			at++;
		} while (*at == '"');
		if (at - begin == 2)
			return NULL;
	}
	else
	{
		at += strcspn(at, ",/\" \t\n\r");
		if (at == begin)
			return NULL;
	}
	while (scanner_isspace(*at))
		at++;
	return at;
}

bool
baton_check_dbuser_names(char **value, void **extra, GucSource source)
{
	const char *at = *value;

	while (scanner_isspace(*at))
		at++;
	while (*at != '\0')
	{
		at = skip_name(at);
		if (at != NULL)
			at = *at == '/' ? skip_name(at + 1) : NULL;
		if (at == NULL || (*at != '\0' && (*at != ',' || *++at == '\0')))
		{
			GUC_check_errdetail("Entries are of the form database/user, with commas between; * or _ stands for any.");
			return false;
		}
	}
	return true;
}

static bool
is_level(const char *word)
{
	for (int i = 0; i < (int) lengthof(levels); i++)
	{
		if (pg_strcasecmp(word, levels[i]) == 0)
			return true;
	}
	return false;
}

/* Levels, or module=level, separated by commas. */
bool
baton_check_log(char **value, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*value);
	char	   *rest = copy;
	bool		valid = true;

	while (rest != NULL && valid)
	{
		char	   *word = rest;
		char	   *equals;

		rest = strchr(rest, ',');
		if (rest != NULL)
			*rest++ = '\0';
		while (scanner_isspace(*word))
			word++;
		for (char *end = word + strlen(word); end > word && scanner_isspace(end[-1]);)
			*--end = '\0';
		equals = strchr(word, '=');
		valid = equals != word && is_level(equals ? equals + 1 : word);
		if (!valid)
			GUC_check_errdetail("\"%s\" is neither a level nor of the form module=level.", word);
	}
	if (!valid)
		GUC_check_errhint("Levels are off, error, warn, info, debug and trace.");
	pfree(copy);
	return valid;
}

/* ----------------------------------------------------------------
 *		Hooks of other libraries.
 *
 * pg_baton.c calls those hooks itself, after pg_baton's own.  The files that
 * pg_baton.c calls ask here whether another library's hook would have to be
 * called, too.
 */

static needs_fmgr_hook_type next_needs_fmgr = NULL;
static ClientAuthentication_hook_type next_client_authentication = NULL;
static ClientAuthentication_hook_type own_client_authentication = NULL;
static ClientAuthentication_hook_type overruling_client_authentication = NULL;

/*
 * ClientAuthentication_hook before other libraries were overruled; NULL: they
 * are not.
 */
static ClientAuthentication_hook_type overruled = NULL;

void
baton_others_were(needs_fmgr_hook_type needs_fmgr,
				  ClientAuthentication_hook_type client_authentication,
				  ClientAuthentication_hook_type ours,
				  ClientAuthentication_hook_type overruling)
{
	next_needs_fmgr = needs_fmgr;
	next_client_authentication = client_authentication;
	own_client_authentication = ours;
	overruling_client_authentication = overruling;
}

bool
baton_others_need_calls(Oid function)
{
	return next_needs_fmgr != NULL && next_needs_fmgr(function);
}

/*
 * Does another library have a hook that is called for each client's
 * authentication?
 */
static bool
others_authenticate(void)
{
	return next_client_authentication != NULL ||
		ClientAuthentication_hook != own_client_authentication;
}

bool
baton_server_authenticates(void)
{
	return baton_login == BATON_LOGIN_SERVER ||
		(baton_login == BATON_LOGIN_AUTO && others_authenticate());
}

void
baton_others_overrule(void)
{
	overruled = ClientAuthentication_hook;
	ClientAuthentication_hook = overruling_client_authentication;
}

bool
baton_others_are_overruled(void)
{
	return overruled != NULL;
}

void
baton_others_tell(Port *port, int status)
{
	baton_overruled_call(overruled, port, status);
}
