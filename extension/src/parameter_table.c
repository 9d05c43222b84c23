/*-------------------------------------------------------------------------
 *
 * parameter_table.c
 *		The parameters pg_baton.*: the table that defines them.
 *
 * Each variable belongs to the file that uses it; those of the dispatcher,
 * and those that several files use, are in parameters.c.  The launcher knows
 * which values the dispatcher is told (parameters_message.c).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

#include "baton_shared.h"
#include "held_client.h"
#include "majors.h"
#include "client_input.h"
#include "monitor.h"
#include "parameters.h"
#include "parameter_table.h"
#include "pid_views.h"
#include "pool_settings.h"
#include "self_check.h"
#include "taint_rules.h"

static const struct config_enum_entry logins[] = {
	{"auto", BATON_LOGIN_AUTO, false},
	{"server", BATON_LOGIN_SERVER, false},
	{"dispatcher", BATON_LOGIN_DISPATCHER, false},
	{NULL, 0, false}
};

static const struct config_enum_entry console_versions[] = {
	{"1.24", 24, false},
	{"1.25", 25, false},
	{"1.26", 26, false},
	{NULL, 0, false}
};

static const struct config_enum_entry gss_encryptions[] = {
	{"auto", BATON_GSS_AUTO, false},
	{"on", BATON_GSS_ON, false},
	{"off", BATON_GSS_OFF, false},
	{NULL, 0, false}
};

static const struct config_enum_entry show_idle_sessions[] = {
	{"auto", BATON_SHOW_AUTO, false},
	{"on", BATON_SHOW_ON, false},
	{"off", BATON_SHOW_OFF, false},
	{NULL, 0, false}
};

/* The definition of one parameter. */
typedef struct ParameterDefinition
{
	const char *name;
	enum
	{
		PARAMETER_BOOL,
		PARAMETER_INT,
		PARAMETER_ENUM,
		PARAMETER_STRING
	}			type;
	void	   *variable;		/* bool *, int * (also for an enum) or char ** */
	GucContext	context;
	int			flags;			/* GUC_*, including the unit */
	int			boot;			/* default of a bool, int or enum */
	int			least;			/* limits of an int */
	int			most;
	const struct config_enum_entry *options;	/* of an enum */
	const char *boot_string;
	const char *short_description;
	const char *long_description;
	GucStringCheckHook check;	/* of a string, or NULL */
	GucStringAssignHook assign; /* of a string, or NULL */
} ParameterDefinition;

static const ParameterDefinition definitions[] =
{
	{
		.name = "pg_baton.port",
		.type = PARAMETER_INT,
		.variable = &baton_port,
		.context = PGC_POSTMASTER,
		.boot = 6543,.least = 1,.most = 65535,
		.short_description = "Sets the port on which the pool listens.",
		.long_description = "Also part of the name of its Unix socket, in each directory of unix_socket_directories.",
	},
	{
		.name = "pg_baton.listen_addresses",
		.type = PARAMETER_STRING,
		.variable = &baton_listen_addresses,
		.context = PGC_POSTMASTER,
		.flags = GUC_LIST_INPUT,
		.boot_string = "",
		.short_description = "Sets the host names or IP addresses on which the pool listens.",
		.long_description = "Empty means the same as listen_addresses.",
		.check = baton_check_list,
	},
	{
		.name = "pg_baton.monitor_port",
		.type = PARAMETER_INT,
		.variable = &baton_monitor_port,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 65535,
		.short_description = "Sets the port on which the monitor serves metrics and health checks by HTTP.",
		.long_description = "0: there is no monitor.",
	},
	{
		.name = "pg_baton.monitor_listen_addresses",
		.type = PARAMETER_STRING,
		.variable = &baton_monitor_listen_addresses,
		.context = PGC_SIGHUP,
		.flags = GUC_LIST_INPUT,
		.boot_string = "localhost",
		.short_description = "Sets the IP addresses on which the monitor listens.",
		.long_description = "\"localhost\" and \"*\" are the addresses of IPv4 and IPv6; there are no other names.",
		.check = baton_monitor_check_addresses,
	},
	{
		.name = "pg_baton.console_version",
		.type = PARAMETER_ENUM,
		.variable = &baton_console_version,
		.context = PGC_SIGHUP,
		.boot = 25,
		.options = console_versions,
		.short_description = "Sets the release of PgBouncer whose columns the console's results have.",
		.long_description = "A console keeps those that it began with.",
	},
	{
		.name = "pg_baton.enabled",
		.type = PARAMETER_BOOL,
		.variable = &baton_enabled,
		.context = PGC_SIGHUP,
		.boot = true,
		.short_description = "Lets new sessions on the pool's port share backends.",
		.long_description = "If off, each new session is an ordinary connection for life. Existing sessions go on as they are.",
	},
	{
		.name = "pg_baton.login",
		.type = PARAMETER_ENUM,
		.variable = &baton_login,
		.context = PGC_SIGHUP,
		.boot = BATON_LOGIN_AUTO,
		.options = logins,
		.short_description = "Sets which process authenticates the clients that the dispatcher could authenticate.",
		.long_description = "auto: a backend if a library has a hook for authentication, else the dispatcher. "
		"A backend always handles the methods that the dispatcher does not know.",
	},
	{
		.name = "pg_baton.gss_encryption",
		.type = PARAMETER_ENUM,
		.variable = &baton_gss_encryption,
		.context = PGC_SIGHUP,
		.boot = BATON_GSS_AUTO,
		.options = gss_encryptions,
		.short_description = "Sets which clients get GSSAPI encryption when they ask for it.",
		.long_description = "Such sessions are ordinary connections for life. "
		"auto: all clients if a line of pg_hba.conf distinguishes connections by GSSAPI encryption, else no client.",
	},
	{
		.name = "pg_baton.native_dbuser_names",
		.type = PARAMETER_STRING,
		.variable = &baton_native_dbuser_names,
		.context = PGC_SIGHUP,
		.boot_string = "",
		.short_description = "Lists databases and users whose sessions are ordinary connections for life.",
		.long_description = "Entries database/user, separated by commas; * or _ stands for any.",
		.check = baton_check_dbuser_names,
	},
	{
		.name = "pg_baton.native_when_waiting",
		.type = PARAMETER_INT,
		.variable = &baton_native_when_waiting,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 1000000,
		.short_description = "Sets the number of waiting sessions from which on new sessions are ordinary connections for life.",
		.long_description = "They are until half as many sessions wait. Zero means never.",
	},
	{
		.name = "pg_baton.max_backends",
		.type = PARAMETER_INT,
		.variable = &baton_max_backends,
		.context = PGC_SIGHUP,
		.boot = 20,.least = 1,.most = MAX_BACKENDS,
		.short_description = "Sets the maximum number of backends that serve the pool's sessions in turn.",
		.long_description = "The limit is for the whole server, all users and databases together. "
		"Backends of dedicated sessions do not count, up to pg_baton.max_dedicated. "
		"In any case the pool leaves the connections reserved for administrators alone.",
	},
	{
		.name = "pg_baton.max_dedicated",
		.type = PARAMETER_INT,
		.variable = &baton_max_dedicated,
		.context = PGC_SIGHUP,
		.boot = -1,.least = -1,.most = MAX_BACKENDS,
		.short_description = "Sets the maximum number of backends that dedicated sessions have besides pg_baton.max_backends.",
		.long_description = "-1 means as many as max_connections leaves, which is the most in any case.",
	},
	{
		.name = "pg_baton.max_extra_backends",
		.type = PARAMETER_INT,
		.variable = &baton_max_extra_backends,
		.context = PGC_SIGHUP,
		.boot = -1,.least = -1,.most = MAX_BACKENDS,
		.short_description = "Sets the maximum number of backends besides pg_baton.max_backends in a stall.",
		.long_description = "In a stall, sessions wait while transactions or starts keep all backends for so long that no waiting session gets one. "
		"-1 means as many as max_connections leaves, which is the most in any case.",
	},
	{
		.name = "pg_baton.min_backends",
		.type = PARAMETER_INT,
		.variable = &baton_min_backends,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = MAX_BACKENDS,
		.short_description = "Sets the number of backends a pool keeps even if they are idle.",
		.long_description = "A database keeps them as long as it has sessions.",
	},
	{
		.name = "pg_baton.pool_max_backends",
		.type = PARAMETER_INT,
		.variable = &baton_pool_max_backends,
		.context = PGC_SUSET,
		.boot = -1,.least = -1,.most = MAX_BACKENDS,
		.short_description = "Sets the maximum number of a role's sessions in a database that are served at a time.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; takes effect at once. -1 means no limit but pg_baton.max_backends.",
	},
	{
		.name = "pg_baton.pool_min_backends",
		.type = PARAMETER_INT,
		.variable = &baton_pool_min_backends,
		.context = PGC_SUSET,
		.boot = -1,.least = -1,.most = MAX_BACKENDS,
		.short_description = "Sets the number of backends that a database keeps for a role even if they are idle.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; takes effect at once. -1 means pg_baton.min_backends.",
	},
	{
		.name = "pg_baton.pool_max_sessions",
		.type = PARAMETER_INT,
		.variable = &baton_pool_max_sessions,
		.context = PGC_SUSET,
		.boot = -1,.least = -1,.most = 1000000,
		.short_description = "Sets the maximum number of a role's sessions in a database on the pool's port.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; applies to sessions that log in from then on. -1 means no limit but pg_baton.max_sessions.",
	},
	{
		.name = "pg_baton.pool_mode",
		.type = PARAMETER_ENUM,
		.variable = &baton_pool_mode,
		.context = PGC_SUSET,
		.boot = BATON_MODE_SHARED,
		.options = baton_pool_modes,
		.short_description = "Sets whether sessions share backends, or each has one of its own.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; takes effect at once.",
	},
	{
		.name = "pg_baton.dispatchers",
		.type = PARAMETER_INT,
		.variable = &baton_dispatchers,
		.context = PGC_SIGHUP,
		.boot = 1,.least = 1,.most = BATON_SESSION_THREADS_MAX,
		.short_description = "Sets the number of the dispatcher's threads that wait for sessions.",
		.long_description = "Read when a dispatcher starts.",
	},
	{
		.name = "pg_baton.pool_weight",
		.type = PARAMETER_INT,
		.variable = &baton_pool_weight,
		.context = PGC_SUSET,
		.boot = 100,.least = 1,.most = 10000,
		.short_description = "Sets the weight of a role's sessions in a database where there are too few backends for all.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; takes effect at once. A role with twice the weight gets twice as many transactions.",
	},
	{
		.name = "pg_baton.pool_reserve",
		.type = PARAMETER_INT,
		.variable = &baton_pool_reserve,
		.context = PGC_SUSET,
		.boot = 0,.least = 0,.most = MAX_BACKENDS,
		.short_description = "Sets the number of backends that are reserved for a role in a database.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; takes effect at once.",
	},
	{
		.name = "pg_baton.pool_memory",
		.type = PARAMETER_INT,
		.variable = &baton_pool_memory_kb,
		.context = PGC_SUSET,
		.flags = GUC_UNIT_KB,
		.boot = -1,.least = -1,.most = INT_MAX,
		.short_description = "Sets the maximum memory for the contexts of a role's sessions in a database.",
		.long_description = "Meant for ALTER ROLE and ALTER DATABASE; takes effect at once. A session whose context does not fit stays on its backend "
		"(cause \"pool memory\"). -1 means no limit but pg_baton.session_memory.",
	},
	{
		.name = "pg_baton.sharing_threshold",
		.type = PARAMETER_INT,
		.variable = &baton_sharing_threshold,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 1000000,
		.short_description = "Sets the number of sessions up to which each session keeps a backend of its own.",
		.long_description = "More sessions share pg_baton.max_backends. Zero means that sessions always share.",
	},
	{
		.name = "pg_baton.backend_idle_timeout",
		.type = PARAMETER_INT,
		.variable = &baton_backend_idle_timeout_ms,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_MS,
		.boot = 3 * 60 * 1000,.least = 0,.most = INT_MAX,
		.short_description = "Sets the time after which a backend that no session needs is ended.",
		.long_description = "Zero keeps backends for ever.",
	},
	{
		.name = "pg_baton.backend_lifetime",
		.type = PARAMETER_INT,
		.variable = &baton_backend_lifetime_ms,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_MS,
		.boot = 0,.least = 0,.most = INT_MAX,
		.short_description = "Sets the time after which a backend is replaced by a new one, between two transactions.",
		.long_description = "Zero keeps backends for as long as they are of use.",
	},
	{
		.name = "pg_baton.session_wait_timeout",
		.type = PARAMETER_INT,
		.variable = &baton_session_wait_timeout_ms,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_MS,
		.boot = 60 * 1000,.least = 0,.most = INT_MAX,
		.short_description = "Sets the maximum time a session waits for a backend.",
		.long_description = "A session that has waited so long gets an error, and keeps its connection. Zero turns the limit off.",
	},
	{
		.name = "pg_baton.hold_sessions",
		.type = PARAMETER_INT,
		.variable = &baton_hold_sessions_ms,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_MS,
		.boot = 0,.least = 0,.most = 24 * 60 * 60 * 1000,
		.short_description = "Sets how long idle sessions wait for the server when it restarts.",
		.long_description = "Then they end with 57P01. Zero ends them when the server stops.",
	},
	{
		.name = "pg_baton.keep_after_demotion",
		.type = PARAMETER_BOOL,
		.variable = &baton_keep_after_demotion,
		.context = PGC_SIGHUP,
		.boot = false,
		.short_description = "Lets sessions of a primary go on if it comes back as a standby.",
		.long_description = "Off ends them with 57P01, so that their clients look for the new primary.",
	},
	{
		.name = "pg_baton.transaction_timeout",
		.type = PARAMETER_INT,
		.variable = &baton_transaction_timeout_ms,
		.context = PGC_SUSET,
		.flags = GUC_UNIT_MS,
		.boot = 0,.least = 0,.most = INT_MAX,
		.short_description = "Sets the maximum time a transaction may hold a backend that sessions share.",
		.long_description = "The session is ended then. Zero turns the limit off.",
	},
	{
		.name = "pg_baton.max_sessions",
		.type = PARAMETER_INT,
		.variable = &baton_max_sessions,
		.context = PGC_POSTMASTER,
		.boot = 10000,.least = 1,.most = 1000000,
		.short_description = "Sets the maximum number of sessions on the pool's port.",
		.long_description = "Further clients are refused with SQLSTATE 53300.",
	},
	{
		.name = "pg_baton.max_login_rate",
		.type = PARAMETER_INT,
		.variable = &baton_max_login_rate,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 1000000,
		.short_description = "Sets the maximum number of logins that begin in a second on the pool's port.",
		.long_description = "Further logins are refused with SQLSTATE 53300. Zero means no limit.",
	},
	{
		.name = "pg_baton.max_login_rate_per_address",
		.type = PARAMETER_INT,
		.variable = &baton_max_login_rate_per_address,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 1000000,
		.short_description = "Sets the maximum number of logins that begin in a second from one address.",
		.long_description = "Of IPv6, from one network of 64 bits. Zero means no limit. Unix sockets have none.",
	},
	{
		.name = "pg_baton.max_sessions_per_address",
		.type = PARAMETER_INT,
		.variable = &baton_max_sessions_per_address,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 1000000,
		.short_description = "Sets the maximum number of sessions from one address.",
		.long_description = "Of IPv6, from one network of 64 bits. Superusers are exempt. Zero means no limit. Unix sockets have none.",
	},
	{
		.name = "pg_baton.max_sessions_per_user",
		.type = PARAMETER_INT,
		.variable = &baton_max_sessions_per_user,
		.context = PGC_SIGHUP,
		.boot = 0,.least = 0,.most = 1000000,
		.short_description = "Sets the maximum number of sessions of one user, in all databases.",
		.long_description = "Superusers are exempt. Zero means no limit.",
	},
	{
		.name = "pg_baton.max_unauthenticated",
		.type = PARAMETER_INT,
		.variable = &baton_max_unauthenticated,
		.context = PGC_SIGHUP,
		.boot = -1,.least = -1,.most = 1000000,
		.short_description = "Sets the maximum number of connections on the pool's port that have not logged in yet.",
		.long_description = "When another connection comes, the oldest one of the address that has most of them is ended. -1 means 1000 more than pg_baton.max_sessions.",
	},
	{
		.name = "pg_baton.session_memory",
		.type = PARAMETER_INT,
		.variable = &baton_session_memory_kb,
		.context = PGC_POSTMASTER,
		.flags = GUC_UNIT_KB,
		.boot = 256 * 1024,.least = 64,.most = INT_MAX,
		.short_description = "Sets the maximum memory for the contexts of all sessions.",
		.long_description = "A context is what is kept of a session between its transactions: parameters, prepared statements and so on. "
		"A session whose context does not fit stays on its backend (cause \"context memory\").",
	},
	{
		.name = "pg_baton.backend_cache_memory",
		.type = PARAMETER_INT,
		.variable = &baton_backend_cache_memory_kb,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_KB,
		.boot = 64 * 1024,.least = 1024,.most = INT_MAX,
		.short_description = "Sets the maximum memory that a backend keeps for later sessions.",
		.long_description = "It keeps prepared statements and compiled PL/pgSQL functions; the least recently used are dropped first. "
		"A backend that is still far beyond the limit is replaced.",
	},
	{
		.name = "pg_baton.dedicated_objects",
		.type = PARAMETER_STRING,
		.variable = &baton_dedicated_objects,
		.context = PGC_SIGHUP,
		.flags = GUC_LIST_INPUT,
		.boot_string = "dblink, isn_weak, java, javau, orafce, pg_variables, pllua, plluau, plperl, plperlu, "
		"plpython3u, plr, pltcl, pltclu, plv8",
		.short_description = "Lists functions, extensions and languages whose use dedicates a backend to the session.",
		.long_description = "They keep a session's state in the process, where pg_baton cannot see it.",
		.check = baton_check_names,
	},
	{
		.name = "pg_baton.dedicating_parameters",
		.type = PARAMETER_STRING,
		.variable = &baton_dedicating_parameters,
		.context = PGC_SIGHUP,
		.flags = GUC_LIST_INPUT,
		.boot_string = "",
		.short_description = "Lists parameters whose change dedicates a backend to the session.",
		.long_description = "Their change leaves more in the process than the value.",
		.check = baton_check_names,
	},
	{
		.name = "pg_baton.stateless_libraries",
		.type = PARAMETER_STRING,
		.variable = &baton_stateless_libraries,
		.context = PGC_SIGHUP,
		.flags = GUC_LIST_INPUT,
		.boot_string = "",
		.short_description = "Lists libraries whose C functions keep nothing of a session in the process.",
		.long_description = "The list adds to the libraries that pg_baton knows. A session that uses any other library keeps its backend.",
		.check = baton_check_list,
		.assign = baton_taint_library_listed,
	},
	{
		.name = "pg_baton.force_migration",
		.type = PARAMETER_BOOL,
		.variable = &baton_force_migration,
		.context = PGC_SIGHUP,
		.flags = GUC_NOT_IN_SAMPLE,
		.boot = false,
		.short_description = "Lets another backend than the last one serve each transaction of a session.",
		.long_description = "For tests: this proves that nothing of a session is lost between backends. It is slow.",
	},
	{
		.name = "pg_baton.test_constants",
		.type = PARAMETER_STRING,
		.variable = &baton_test_constants,
		.context = PGC_SIGHUP,
		.flags = GUC_NOT_IN_SAMPLE,
		.boot_string = "",
		.short_description = "Lists constants of pg_baton that have another value.",
		.long_description = "For tests: entries name=value, separated by commas (parameters.h).",
		.assign = baton_test_constants_assign,
	},
	{
		.name = "pg_baton.dispatcher_program",
		.type = PARAMETER_STRING,
		.variable = &baton_dispatcher_program,
		.context = PGC_SIGHUP,
		.boot_string = "baton-dispatcher",
		.short_description = "Sets the program that the launcher starts as the dispatcher.",
		.long_description = "A name without a slash is looked for beside the server's own program, then on the PATH, then in /usr/local/bin.",
	},
	{
		.name = "pg_baton.dispatcher_log",
		.type = PARAMETER_STRING,
		.variable = &baton_dispatcher_log,
		.context = PGC_SIGHUP,
		.boot_string = "info",
		.short_description = "Sets what the dispatcher writes to the server's log.",
		.long_description = "A level (off, error, warn, info, debug, trace) or a list of module=level. Takes effect when a dispatcher starts.",
		.check = baton_check_log,
	},
	{
		.name = "pg_baton.show_idle_sessions",
		.type = PARAMETER_ENUM,
		.variable = &baton_show_idle_sessions,
		.context = PGC_SUSET,
		.boot = BATON_SHOW_AUTO,
		.options = show_idle_sessions,
		.short_description = "Lists sessions that have no backend and nothing to do in pg_stat_activity.",
		.long_description = "If off, the number of rows can be compared with max_connections. "
		"auto: off for members of pg_monitor that are not members of pg_signal_backend, else on.",
	},
	{
		.name = "pg_baton.log_scheduling",
		.type = PARAMETER_BOOL,
		.variable = &baton_log_scheduling,
		.context = PGC_SIGHUP,
		.boot = false,
		.short_description = "Logs which session gets which backend, why a session keeps its backend, and why pools grow and shrink.",
		.long_description = "The lines begin with \"pg_baton: scheduling:\".",
	},
	{
		.name = "pg_baton.log_min_wait",
		.type = PARAMETER_INT,
		.variable = &baton_log_min_wait_ms,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_MS,
		.boot = -1,.least = -1,.most = INT_MAX,
		.short_description = "Sets the time from which on a session's wait for a backend is logged.",
		.long_description = "Zero logs all waits. -1 logs none.",
	},
	{
		.name = "pg_baton.log_min_pin",
		.type = PARAMETER_INT,
		.variable = &baton_log_min_pin_ms,
		.context = PGC_SIGHUP,
		.flags = GUC_UNIT_MS,
		.boot = -1,.least = -1,.most = INT_MAX,
		.short_description = "Sets the time from which on it is logged that a session keeps its backend.",
		.long_description = "Zero logs all dedicated sessions. -1 logs none.",
	},
	{
		/* the dispatcher sends it when it opens a backend, see attach.c */
		.name = "pg_baton.attach",
		.type = PARAMETER_STRING,
		.variable = &baton_attach_option,
		.context = PGC_BACKEND,
		.flags = GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE,
		.boot_string = "",
		.short_description = "Attaches a new backend to the pool; only the dispatcher can use it.",
		.long_description = NULL,
	},
};

void
baton_parameters_define(void)
{
	for (int i = 0; i < (int) lengthof(definitions); i++)
	{
		const ParameterDefinition *d = &definitions[i];

		switch (d->type)
		{
			case PARAMETER_BOOL:
				DefineCustomBoolVariable(d->name, d->short_description, d->long_description,
										 (bool *) d->variable, d->boot != 0,
										 d->context, d->flags, NULL, NULL, NULL);
				break;
			case PARAMETER_INT:
				DefineCustomIntVariable(d->name, d->short_description, d->long_description,
										(int *) d->variable, d->boot, d->least, d->most,
										d->context, d->flags, NULL, NULL, NULL);
				break;
			case PARAMETER_ENUM:
				DefineCustomEnumVariable(d->name, d->short_description, d->long_description,
										 (int *) d->variable, d->boot, d->options,
										 d->context, d->flags, NULL, NULL, NULL);
				break;
			case PARAMETER_STRING:
				DefineCustomStringVariable(d->name, d->short_description, d->long_description,
										   (char **) d->variable, d->boot_string,
										   d->context, d->flags, d->check, d->assign, NULL);
				break;
		}
	}

	MarkGUCPrefixReserved("pg_baton");
}
