/*-------------------------------------------------------------------------
 *
 * parameters_message.c
 *		The part of the configuration that the dispatcher is told.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "libpq/pqcomm.h"
#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "replication/walsender.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "baton_shared.h"
#include "dispatcher_link.h"
#include "hba_match.h"
#include "majors.h"
#include "parameters.h"
#include "parameters_message.h"
#include "pg_guc.h"
#include "pool_settings.h"
#include "self_check.h"

/* ----------------------------------------------------------------
 *		The same port for the server and the pool.
 *
 * Both can use the same number if they listen at different addresses and
 * there are no Unix sockets (their names contain nothing but the port).
 * Otherwise the dispatcher cannot listen, and dispatcher and launcher report
 * which lines to change.
 */

/* The file and line that set a parameter, or else the source of its value. */
static char *
place_of(const char *name)
{
	const struct config_generic *record = baton_guc_find(name);

	if (record == NULL)
		return pstrdup(name);
	if (record->sourcefile != NULL)
		return psprintf("\"%s\" (%s line %d)", name, record->sourcefile, record->sourceline);
	return psprintf("\"%s\" (%s)", name, GucSource_Names[record->source]);
}

char *
baton_port_collision(void)
{
	if (baton_port != PostPortNumber)
		return NULL;
	return psprintf("%s or %s", place_of("port"), place_of("pg_baton.port"));
}

/* ----------------------------------------------------------------
 *		The part of the configuration that the dispatcher is told.
 *
 * The dispatcher reads no configuration file: a PARAMETERS message contains
 * everything that it must know, of pg_baton's parameters and of the server's.
 * A new configuration_generation invalidates the greetings that the
 * dispatcher kept under the old configuration.
 */

/*
 * The parameters that only a starting backend can take: a startup packet that
 * sets such an option splits a pool.  A comma-separated list of all there are,
 * including those of other extensions, from the server's own table.  It
 * includes the libraries to be loaded at the start: they have another context,
 * but setting them later loads nothing (process_session_preload_libraries in
 * miscinit.c).  It includes temp_buffers, which a process takes once.
 */
static char *
backend_only_parameters(void)
{
	struct config_generic **variables;
	int			count;
	StringInfoData list;

	initStringInfo(&list);
	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		const struct config_generic *variable = variables[i];

		if (baton_counts_at_start(variable) &&
			strcmp(variable->name, "pg_baton.attach") != 0)
			appendStringInfo(&list, "%s%s", list.len > 0 ? "," : "", variable->name);
	}
	return list.data;
}

/*
 * Another number if any parameter has another value than when this was called
 * last: many tools reload the configuration without changing it.  The time of
 * the change serves as the number: unlike a counter, it never repeats one that
 * an earlier launcher gave.
 */
static TimestampTz
configuration_generation(void)
{
	static TimestampTz generation = 0;
	static uint64 generation_hash;
	struct config_generic **variables;
	int			count;
	uint64		hash = 0;

	variables = baton_guc_records(&count);
	for (int i = 0; i < count; i++)
	{
		const char *name = variables[i]->name;
		const char *value = GetConfigOption(name, true, false);

		hash ^= hash_bytes_extended((const unsigned char *) name, strlen(name),
									value == NULL ? 0 :
									hash_bytes_extended((const unsigned char *) value,
														strlen(value), 1));
	}
	if (generation == 0 || hash != generation_hash)
		generation = GetCurrentTimestamp();
	generation_hash = hash;
	return generation;
}

static char *
hex_of(const char *bytes, Size length)
{
	char	   *hex = palloc(length * 2 + 1);

	hex[hex_encode(bytes, length, hex)] = '\0';
	return hex;
}

/*
 * Some do not exist in all majors: ssl_groups was ssl_ecdh_curve before 18.
 */
static const char *const tls_settings[] = {
	"ssl", "ssl_cert_file", "ssl_key_file", "ssl_ca_file", "ssl_crl_file", "ssl_crl_dir",
	"ssl_dh_params_file", "ssl_ciphers", "ssl_tls13_ciphers", "ssl_ecdh_curve", "ssl_groups",
	"ssl_prefer_server_ciphers", "ssl_min_protocol_version", "ssl_max_protocol_version",
	"ssl_passphrase_command", "ssl_passphrase_command_supports_reload"
};

static const char *
server_setting(const char *name)
{
	return GetConfigOption(name, false, false);
}

static void
add(StringInfo pairs, uint32 *count, const char *name, const char *value)
{
	baton_wire_string(pairs, name);
	baton_wire_string(pairs, value);
	(*count)++;
}

static void
add_number(StringInfo pairs, uint32 *count, const char *name, int64 value)
{
	add(pairs, count, name, psprintf(INT64_FORMAT, value));
}

/*
 * Does a client that asks for GSSAPI encryption get it?  Its session is native
 * then. libpq asks whenever it has a ticket (gssencmode = prefer), so if no
 * rule demands encryption the answer is no.
 */
static bool
offers_gss(void)
{
#ifdef ENABLE_GSS
	if (baton_gss_encryption == BATON_GSS_AUTO)
		return !baton_enabled || baton_user_namespaces() || baton_hba_wants_gss();
	return baton_gss_encryption == BATON_GSS_ON;
#else
	return false;
#endif
}

bool
baton_parameters_send(int channel)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "pg_baton parameters",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old_context = MemoryContextSwitchTo(context);
	StringInfoData pairs;
	StringInfoData payload;
	char	   *collision;
	uint32		count = 0;
	bool		sent;

	initStringInfo(&pairs);

	/* pg_baton's parameters */
	add_number(&pairs, &count, "port", baton_port);
	add(&pairs, &count, "listen_addresses",
		baton_listen_addresses[0] != '\0' ? baton_listen_addresses :
		server_setting("listen_addresses"));
	add_number(&pairs, &count, "max_backends", baton_max_backends);
	add_number(&pairs, &count, "min_backends", baton_min_backends);
	add_number(&pairs, &count, "max_dedicated", baton_max_dedicated);
	add_number(&pairs, &count, "max_extra_backends", baton_max_extra_backends);
	add_number(&pairs, &count, "sharing_threshold", baton_sharing_threshold);
	add_number(&pairs, &count, "dispatchers", baton_dispatchers);
	add_number(&pairs, &count, "backend_idle_timeout_ms", baton_backend_idle_timeout_ms);
	add_number(&pairs, &count, "backend_lifetime_ms", baton_backend_lifetime_ms);
	add_number(&pairs, &count, "session_wait_timeout_ms", baton_session_wait_timeout_ms);
	add_number(&pairs, &count, "hold_sessions_ms", baton_hold_sessions_ms);
	add_number(&pairs, &count, "keep_after_demotion", baton_keep_after_demotion ? 1 : 0);
	add_number(&pairs, &count, "max_sessions", baton_max_sessions);
	add_number(&pairs, &count, "session_memory_bytes", (int64) baton_session_memory_kb * 1024);
	add_number(&pairs, &count, "max_login_rate", baton_max_login_rate);
	add_number(&pairs, &count, "max_login_rate_per_address", baton_max_login_rate_per_address);
	add_number(&pairs, &count, "max_sessions_per_address", baton_max_sessions_per_address);
	add_number(&pairs, &count, "max_sessions_per_user", baton_max_sessions_per_user);
	add_number(&pairs, &count, "max_unauthenticated", baton_max_unauthenticated);
	add_number(&pairs, &count, "enabled", baton_enabled ? 1 : 0);
	add_number(&pairs, &count, "login_by_server", baton_server_authenticates() ? 1 : 0);
	add_number(&pairs, &count, "gss_encryption", offers_gss() ? 1 : 0);
	add(&pairs, &count, "console_version", psprintf("1.%d", baton_console_version));
	add(&pairs, &count, "native_dbuser_names", baton_native_dbuser_names);
	add_number(&pairs, &count, "native_when_waiting", baton_native_when_waiting);
	add_number(&pairs, &count, "force_migration", baton_force_migration ? 1 : 0);
	add(&pairs, &count, "dispatcher_log", baton_dispatcher_log);
	add_number(&pairs, &count, "log_scheduling", baton_log_scheduling ? 1 : 0);
	add(&pairs, &count, "test_constants", baton_test_constants);

	/* the server's parameters */
	add_number(&pairs, &count, "server_port", PostPortNumber);
	collision = baton_port_collision();
	add(&pairs, &count, "port_collision", collision != NULL ? collision : "");
	add_number(&pairs, &count, "db_user_namespace", baton_user_namespaces() ? 1 : 0);
	add(&pairs, &count, "unix_socket_directories", server_setting("unix_socket_directories"));
	add(&pairs, &count, "unix_socket_group", server_setting("unix_socket_group"));
	add(&pairs, &count, "unix_socket_permissions", psprintf("%04o", Unix_socket_permissions));
	add_number(&pairs, &count, "authentication_timeout_ms", (int64) AuthenticationTimeout * 1000);
	add_number(&pairs, &count, "max_connections", MaxConnections);
	add_number(&pairs, &count, "max_wal_senders", max_wal_senders);
	add_number(&pairs, &count, "superuser_reserved_connections", baton_reserved_connections());
	add(&pairs, &count, "server_version", server_setting("server_version"));
	add(&pairs, &count, "data_directory", DataDir);
	add(&pairs, &count, "backend_only_parameters", backend_only_parameters());
	add(&pairs, &count, "backend_start_settings", baton_start_settings());
	add_number(&pairs, &count, "log_receipt", baton_log_receipt() ? 1 : 0);
	add_number(&pairs, &count, "log_authentication", baton_log_authentication() ? 1 : 0);
	add_number(&pairs, &count, "log_authorization", baton_log_authorization() ? 1 : 0);
	add_number(&pairs, &count, "log_disconnections", baton_log_disconnections() ? 1 : 0);

	/*
	 * for a relay's sockets; the parameters' show hooks would read this
	 * process's socket
	 */
	add_number(&pairs, &count, "tcp_keepalives_idle", tcp_keepalives_idle);
	add_number(&pairs, &count, "tcp_keepalives_interval", tcp_keepalives_interval);
	add_number(&pairs, &count, "tcp_keepalives_count", tcp_keepalives_count);
	add_number(&pairs, &count, "tcp_user_timeout", tcp_user_timeout);

	/*
	 * TLS: all parameters that be_tls_init (be-secure-openssl.c) uses,
	 * unchanged
	 */
	for (int i = 0; i < (int) lengthof(tls_settings); i++)
	{
		const char *value = GetConfigOption(tls_settings[i], true, false);

		if (value != NULL)
			add(&pairs, &count, tls_settings[i], value);
	}

	/*
	 * The assumed form of an unknown user's password, so that refusing it
	 * takes as long. scram_iterations came with 16.
	 */
	add(&pairs, &count, "password_encryption", server_setting("password_encryption"));
	if (GetConfigOption("scram_iterations", true, false) != NULL)
		add(&pairs, &count, "scram_iterations", server_setting("scram_iterations"));

	/*
	 * A SCRAM exchange with a user that does not exist derives its salt from
	 * this (mock_scram_secret in auth-scram.c): with the same secret, both
	 * ports send the same salt.
	 */
	add(&pairs, &count, "mock_authentication_nonce",
		hex_of(GetMockAuthenticationNonce(), MOCK_AUTH_NONCE_LEN));

	add_number(&pairs, &count, "configuration_generation", configuration_generation());

	initStringInfo(&payload);
	baton_wire_u32(&payload, count);
	appendBinaryStringInfo(&payload, pairs.data, pairs.len);
	sent = baton_channel_send(channel, BATON_MSG_PARAMETERS, 0, payload.data, payload.len);

	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(context);
	return sent;
}
