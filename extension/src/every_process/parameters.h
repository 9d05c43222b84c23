/*-------------------------------------------------------------------------
 *
 * parameters.h
 *		Parameters pg_baton.* that belong to no single file, their checks, and
 *		whether hooks of other libraries must be called.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PARAMETERS_H
#define BATON_PARAMETERS_H

#include "fmgr.h"
#include "libpq/auth.h"
#include "utils/guc.h"

/* ----------------------------------------------------------------
 *		The parameters pg_baton.*: their variables.
 * ----------------------------------------------------------------
 */

/* pg_baton.login: whether dispatcher or server authenticates clients */
enum
{
	BATON_LOGIN_AUTO,
	BATON_LOGIN_SERVER,
	BATON_LOGIN_DISPATCHER
};

/* pg_baton.gss_encryption: whether clients that ask for it get it */
enum
{
	BATON_GSS_AUTO,
	BATON_GSS_OFF,
	BATON_GSS_ON
};

/* parameter_table.c describes each. */
extern int	baton_port;
extern char *baton_listen_addresses;
extern int	baton_max_backends;
extern int	baton_min_backends;
extern int	baton_max_dedicated;
extern int	baton_max_extra_backends;
extern int	baton_dispatchers;
extern int	baton_sharing_threshold;
extern int	baton_backend_idle_timeout_ms;
extern int	baton_backend_lifetime_ms;
extern int	baton_session_wait_timeout_ms;
extern int	baton_hold_sessions_ms;
extern bool baton_keep_after_demotion;
extern int	baton_max_sessions;
extern int	baton_session_memory_kb;
extern int	baton_max_login_rate;
extern int	baton_max_login_rate_per_address;
extern int	baton_max_sessions_per_address;
extern int	baton_max_sessions_per_user;
extern int	baton_max_unauthenticated;
extern bool baton_force_migration;
extern bool baton_enabled;
extern int	baton_login;
extern int	baton_console_version;
extern int	baton_gss_encryption;
extern char *baton_native_dbuser_names;
extern int	baton_native_when_waiting;
extern char *baton_dispatcher_program;
extern char *baton_dispatcher_log;
extern bool baton_log_scheduling;
extern int	baton_log_min_wait_ms;
extern int	baton_log_min_pin_ms;

/* Constants, except in tests (pg_baton.test_constants). */
extern int	baton_message_timeout_ms;	/* client_input.c */
extern int	baton_hang_limit_ms;	/* launcher.c; 0: no limit */
extern bool baton_force_role_changes;	/* handover.c */

/* Assign hook of pg_baton.test_constants: sets the three above. */
extern void baton_test_constants_assign(const char *value, void *extra);

/*
 * Parameters that only a starting backend takes, or a process takes once, and
 * that ALTER ROLE and ALTER DATABASE can set.  (Others of context backend they
 * cannot set: set_config_option() refuses these at PGC_SUSET.)
 */
#define BATON_START_ONLY_COUNT 3
extern const char *const baton_start_only[BATON_START_ONLY_COUNT];

/*
 * The option in a startup packet, followed by <slot>:<token>:<role>:<apart>.
 */
#define BATON_ATTACH_OPTION "pg_baton.attach="

/* "<slot>:<token>:<role>:<apart>" in a backend that the dispatcher has opened, else empty */
extern char *baton_attach_option;

/* Clears it: later sessions must not see it. */
extern void baton_parameters_forget_attach(void);

/* Variables of other files, which describe their use. */
extern int	baton_backend_cache_memory_kb;	/* handover.c */
extern char *baton_dedicated_objects;	/* taint_watch.c */
extern char *baton_stateless_libraries; /* taint_rules.c */

/* ----------------------------------------------------------------
 *		Checks of pg_baton's parameters of type string.
 */

/*
 * Check hooks, see guc.h: a list of identifiers, of database/user, of
 * addresses, of log levels.
 */
extern bool baton_check_names(char **value, void **extra, GucSource source);
extern bool baton_check_dbuser_names(char **value, void **extra, GucSource source);
extern bool baton_check_list(char **value, void **extra, GucSource source);
extern bool baton_check_log(char **value, void **extra, GucSource source);

/* ----------------------------------------------------------------
 *		Hooks of other libraries.
 */

/*
 * Called by pg_baton.c as it installs its hooks: the hooks that were there
 * before, or NULL; pg_baton's own ClientAuthentication_hook; and the hook that
 * replaces it where other libraries are overruled.
 */
extern void baton_others_were(needs_fmgr_hook_type needs_fmgr,
							  ClientAuthentication_hook_type client_authentication,
							  ClientAuthentication_hook_type ours,
							  ClientAuthentication_hook_type overruling);

/* Does another library's hook claim calls of this function? */
extern bool baton_others_need_calls(Oid function);

/*
 * The dispatcher has opened this backend: other libraries, loaded before
 * pg_baton or after, cannot refuse it (pg_hba.c).
 */
extern void baton_others_overrule(void);
extern bool baton_others_are_overruled(void);

/* Called by the hook in their place: calls the other libraries' hooks. */
extern void baton_others_tell(Port *port, int status);

/*
 * Do backends authenticate all clients, because of pg_baton.login or of such a
 * library?
 */
extern bool baton_server_authenticates(void);

#endif							/* BATON_PARAMETERS_H */
