/* extension/sql/pg_baton--1.0.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_baton" to load this file. \quit

-- The views and the functions beneath them.  The dispatcher sends the columns
-- in this very order (docs/views.md): a change here is a change there.

CREATE FUNCTION pg_baton_get_sessions(
    OUT id bigint,
    OUT pid integer,
    OUT user_name name,
    OUT database name,
    OUT application_name text,
    OUT client_addr inet,
    OUT client_port integer,
    OUT mode text,
    OUT state text,
    OUT dedicated_cause text,
    OUT backend_pid integer,
    OUT login_time timestamp with time zone,
    OUT state_since timestamp with time zone,
    OUT transactions bigint,
    OUT migrations bigint,
    OUT context_bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_sessions'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_sessions() IS
    'Asks the dispatcher; see the view pg_baton_sessions';

CREATE VIEW pg_baton_sessions AS
    SELECT id,
        pid,
        user_name,
        database,
        application_name,
        client_addr,
        client_port,
        mode,
        state,
        dedicated_cause,
        backend_pid,
        login_time,
        state_since,
        transactions,
        migrations,
        context_bytes
    FROM pg_baton_get_sessions();

COMMENT ON VIEW pg_baton_sessions IS
    'Sessions on the pool''s port, one row each';

COMMENT ON COLUMN pg_baton_sessions.id IS
    'The session''s id; never used twice while the server runs';
COMMENT ON COLUMN pg_baton_sessions.pid IS
    'Its process ID, by which SQL knows it';
COMMENT ON COLUMN pg_baton_sessions.user_name IS
    'The user it logged in as';
COMMENT ON COLUMN pg_baton_sessions.database IS
    'The database it is connected to';
COMMENT ON COLUMN pg_baton_sessions.application_name IS
    'Its application_name as last stored; empty if it has none';
COMMENT ON COLUMN pg_baton_sessions.client_addr IS
    'The client''s address; NULL on a Unix socket';
COMMENT ON COLUMN pg_baton_sessions.client_port IS
    'The client''s TCP port; -1 on a Unix socket';
COMMENT ON COLUMN pg_baton_sessions.mode IS
    '"shared": any backend of its pool serves its next transaction; "dedicated": something of it lives in one backend; "native": an ordinary connection for life';
COMMENT ON COLUMN pg_baton_sessions.state IS
    '"login", "idle", "waiting" (for a backend), "active", "idle in transaction"';
COMMENT ON COLUMN pg_baton_sessions.dedicated_cause IS
    'Why it is dedicated; NULL if it is not';
COMMENT ON COLUMN pg_baton_sessions.backend_pid IS
    'The backend that holds it now (while active, in a transaction, dedicated, or lingering on it between transactions); NULL if the dispatcher holds it';
COMMENT ON COLUMN pg_baton_sessions.login_time IS
    'When it logged in';
COMMENT ON COLUMN pg_baton_sessions.state_since IS
    'When its state last changed';
COMMENT ON COLUMN pg_baton_sessions.transactions IS
    'Transactions it has completed';
COMMENT ON COLUMN pg_baton_sessions.migrations IS
    'Times it came to another backend than the one before';
COMMENT ON COLUMN pg_baton_sessions.context_bytes IS
    'Memory its stored context accounts for; what several sessions hold in common is counted for each';

REVOKE ALL ON FUNCTION pg_baton_get_sessions() FROM PUBLIC;
REVOKE ALL ON pg_baton_sessions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_sessions() TO pg_monitor;
GRANT SELECT ON pg_baton_sessions TO pg_monitor;

CREATE FUNCTION pg_baton_get_backends(
    OUT slot integer,
    OUT pid integer,
    OUT session_pid integer,
    OUT user_name name,
    OUT database name,
    OUT state text,
    OUT session_id bigint,
    OUT dedicated_cause text,
    OUT transactions bigint,
    OUT switches bigint,
    OUT state_since timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_backends'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_backends() IS
    'Asks the dispatcher; see the view pg_baton_backends';

CREATE VIEW pg_baton_backends AS
    SELECT slot,
        pid,
        session_pid,
        user_name,
        database,
        state,
        session_id,
        dedicated_cause,
        transactions,
        switches,
        state_since
    FROM pg_baton_get_backends();

COMMENT ON VIEW pg_baton_backends IS
    'Backends of the pools, one row each';

COMMENT ON COLUMN pg_baton_backends.slot IS
    'Number of its slot';
COMMENT ON COLUMN pg_baton_backends.pid IS
    'Process id; NULL while it is starting';
COMMENT ON COLUMN pg_baton_backends.session_pid IS
    'The process ID of the session it holds, by which SQL knows that; NULL if none';
COMMENT ON COLUMN pg_baton_backends.user_name IS
    'The user whose session it holds, or held last; NULL if none has been there';
COMMENT ON COLUMN pg_baton_backends.database IS
    'The database of its pool';
COMMENT ON COLUMN pg_baton_backends.state IS
    '"starting", "idle", "lingering" (between two transactions of a session it may give back), "assigned", "busy", "retiring"';
COMMENT ON COLUMN pg_baton_backends.session_id IS
    'The session it holds; NULL if none';
COMMENT ON COLUMN pg_baton_backends.dedicated_cause IS
    'Why that session is dedicated to it; NULL if it is not';
COMMENT ON COLUMN pg_baton_backends.transactions IS
    'Transactions it has completed, for all sessions';
COMMENT ON COLUMN pg_baton_backends.switches IS
    'Times it put another session in place';
COMMENT ON COLUMN pg_baton_backends.state_since IS
    'When its state last changed';

REVOKE ALL ON FUNCTION pg_baton_get_backends() FROM PUBLIC;
REVOKE ALL ON pg_baton_backends FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_backends() TO pg_monitor;
GRANT SELECT ON pg_baton_backends TO pg_monitor;

CREATE FUNCTION pg_baton_get_pools(
    OUT database name,
    OUT user_name name,
    OUT options text,
    OUT backends integer,
    OUT starting integer,
    OUT idle integer,
    OUT busy integer,
    OUT dedicated integer,
    OUT sessions integer,
    OUT waiting integer,
    OUT longest_wait interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_pools'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_pools() IS
    'Asks the dispatcher; see the view pg_baton_pools';

CREATE VIEW pg_baton_pools AS
    SELECT database,
        user_name,
        options,
        backends,
        starting,
        idle,
        busy,
        dedicated,
        sessions,
        waiting,
        longest_wait
    FROM pg_baton_get_pools();

COMMENT ON VIEW pg_baton_pools IS
    'Pools, one row each: a database, and the options that only a starting backend can take';

COMMENT ON COLUMN pg_baton_pools.database IS
    'The pool''s database';
COMMENT ON COLUMN pg_baton_pools.user_name IS
    'The only user whose sessions its backends serve; NULL, as a rule: any';
COMMENT ON COLUMN pg_baton_pools.options IS
    'The startup options that split the pool, as "name=value" separated by blanks; empty for most';
COMMENT ON COLUMN pg_baton_pools.backends IS
    'Its backends, of whatever state';
COMMENT ON COLUMN pg_baton_pools.starting IS
    'Of these: starting';
COMMENT ON COLUMN pg_baton_pools.idle IS
    'Of these: idle or lingering';
COMMENT ON COLUMN pg_baton_pools.busy IS
    'Of these: assigned or busy, dedicated ones left out';
COMMENT ON COLUMN pg_baton_pools.dedicated IS
    'Of these: held by a dedicated session';
COMMENT ON COLUMN pg_baton_pools.sessions IS
    'Its sessions, of all users';
COMMENT ON COLUMN pg_baton_pools.waiting IS
    'Of these: waiting for a backend';
COMMENT ON COLUMN pg_baton_pools.longest_wait IS
    'How long the first of them has been waiting; NULL if none waits';
REVOKE ALL ON FUNCTION pg_baton_get_pools() FROM PUBLIC;
REVOKE ALL ON pg_baton_pools FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_pools() TO pg_monitor;
GRANT SELECT ON pg_baton_pools TO pg_monitor;

CREATE FUNCTION pg_baton_get_pool_users(
    OUT user_name name,
    OUT database name,
    OUT options text,
    OUT sessions integer,
    OUT waiting integer,
    OUT longest_wait interval,
    OUT completed bigint,
    OUT memory_bytes bigint,
    OUT memory_limit_bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_pool_users'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_pool_users() IS
    'Asks the dispatcher; see the view pg_baton_pool_users';

CREATE VIEW pg_baton_pool_users AS
    SELECT user_name,
        database,
        options,
        sessions,
        waiting,
        longest_wait,
        completed,
        memory_bytes,
        memory_limit_bytes
    FROM pg_baton_get_pool_users();

COMMENT ON VIEW pg_baton_pool_users IS
    'The users of each pool, one row each';

COMMENT ON COLUMN pg_baton_pool_users.user_name IS
    'The user';
COMMENT ON COLUMN pg_baton_pool_users.database IS
    'The pool''s database';
COMMENT ON COLUMN pg_baton_pool_users.options IS
    'The startup options that split the pool, as in pg_baton_pools';
COMMENT ON COLUMN pg_baton_pool_users.sessions IS
    'The user''s sessions in this pool';
COMMENT ON COLUMN pg_baton_pool_users.waiting IS
    'Of these: waiting for a backend, those left out that are in the pool''s ready queue';
COMMENT ON COLUMN pg_baton_pool_users.longest_wait IS
    'How long the first of them has been waiting; NULL if none waits';
COMMENT ON COLUMN pg_baton_pool_users.completed IS
    'Transactions that have been completed for them';
COMMENT ON COLUMN pg_baton_pool_users.memory_bytes IS
    'Memory that their stored contexts account for';
COMMENT ON COLUMN pg_baton_pool_users.memory_limit_bytes IS
    'How much they may, with those of the user in the database''s other pools ("pg_baton.pool_memory"); NULL if there is no limit';
REVOKE ALL ON FUNCTION pg_baton_get_pool_users() FROM PUBLIC;
REVOKE ALL ON pg_baton_pool_users FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_pool_users() TO pg_monitor;
GRANT SELECT ON pg_baton_pool_users TO pg_monitor;

CREATE FUNCTION pg_baton_get_pool_settings(
    OUT user_name name,
    OUT database name,
    OUT name text,
    OUT setting text,
    OUT unit text,
    OUT source text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_pool_settings'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_pool_settings() IS
    'Asks the dispatcher; see the view pg_baton_pool_settings';

CREATE VIEW pg_baton_pool_settings AS
    SELECT user_name,
        database,
        name,
        setting,
        unit,
        source
    FROM pg_baton_get_pool_settings();

COMMENT ON VIEW pg_baton_pool_settings IS
    'What is in force of the parameters "pg_baton.pool_*" for a user in a database, one row each';

COMMENT ON COLUMN pg_baton_pool_settings.user_name IS
    'The user';
COMMENT ON COLUMN pg_baton_pool_settings.database IS
    'The database';
COMMENT ON COLUMN pg_baton_pool_settings.name IS
    'The parameter';
COMMENT ON COLUMN pg_baton_pool_settings.setting IS
    'Its value';
COMMENT ON COLUMN pg_baton_pool_settings.unit IS
    'The value''s unit; NULL if it has none';
COMMENT ON COLUMN pg_baton_pool_settings.source IS
    'Where the value comes from: "default", "configuration file", "command line", "global" (ALTER ROLE ALL), "database", "user", "database user" (ALTER ROLE IN DATABASE)';

REVOKE ALL ON FUNCTION pg_baton_get_pool_settings() FROM PUBLIC;
REVOKE ALL ON pg_baton_pool_settings FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_pool_settings() TO pg_monitor;
GRANT SELECT ON pg_baton_pool_settings TO pg_monitor;

CREATE FUNCTION pg_baton_get_dispatchers(
    OUT pid integer,
    OUT started timestamp with time zone,
    OUT threads integer,
    OUT connections integer,
    OUT sessions integer,
    OUT waiting integer,
    OUT accepted bigint,
    OUT logins bigint,
    OUT logins_failed bigint,
    OUT cancels bigint,
    OUT dispatched bigint,
    OUT handed_over_directly bigint,
    OUT queued bigint,
    OUT backends_started bigint,
    OUT memory_bytes bigint,
    OUT memory_limit_bytes bigint,
    OUT cpu_user_us bigint,
    OUT cpu_system_us bigint,
    OUT login_by_server boolean,
    OUT longest_turn_us bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_dispatchers'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_dispatchers() IS
    'Asks the dispatcher; see the view pg_baton_dispatchers';

CREATE VIEW pg_baton_dispatchers AS
    SELECT pid,
        started,
        threads,
        connections,
        sessions,
        waiting,
        accepted,
        logins,
        logins_failed,
        cancels,
        dispatched,
        handed_over_directly,
        queued,
        backends_started,
        memory_bytes,
        memory_limit_bytes,
        cpu_user_us,
        cpu_system_us,
        login_by_server,
        longest_turn_us
    FROM pg_baton_get_dispatchers();

COMMENT ON VIEW pg_baton_dispatchers IS
    'Dispatchers, one row each';

COMMENT ON COLUMN pg_baton_dispatchers.pid IS
    'Process id';
COMMENT ON COLUMN pg_baton_dispatchers.started IS
    'When it started';
COMMENT ON COLUMN pg_baton_dispatchers.threads IS
    'Its threads that serve sessions';
COMMENT ON COLUMN pg_baton_dispatchers.connections IS
    'Client sockets it knows, those logging in included';
COMMENT ON COLUMN pg_baton_dispatchers.sessions IS
    'Sessions logged in';
COMMENT ON COLUMN pg_baton_dispatchers.waiting IS
    'Sessions waiting for a backend';
COMMENT ON COLUMN pg_baton_dispatchers.accepted IS
    'Connections accepted since it started';
COMMENT ON COLUMN pg_baton_dispatchers.logins IS
    'Logins that succeeded';
COMMENT ON COLUMN pg_baton_dispatchers.logins_failed IS
    'Connections that ended before a login succeeded, cancel requests left out';
COMMENT ON COLUMN pg_baton_dispatchers.cancels IS
    'Cancel requests that matched a session';
COMMENT ON COLUMN pg_baton_dispatchers.dispatched IS
    'Times a session was given to a backend';
COMMENT ON COLUMN pg_baton_dispatchers.handed_over_directly IS
    'Of these: straight to a free backend';
COMMENT ON COLUMN pg_baton_dispatchers.queued IS
    'Of these: through a pool''s ready queue';
COMMENT ON COLUMN pg_baton_dispatchers.backends_started IS
    'Backends opened';
COMMENT ON COLUMN pg_baton_dispatchers.memory_bytes IS
    'Session contexts at rest: arena memory in use';
COMMENT ON COLUMN pg_baton_dispatchers.memory_limit_bytes IS
    'The arena''s size ("pg_baton.session_memory")';
COMMENT ON COLUMN pg_baton_dispatchers.cpu_user_us IS
    'Processor time it has used in user mode, microseconds';
COMMENT ON COLUMN pg_baton_dispatchers.cpu_system_us IS
    'And in the kernel, microseconds';
COMMENT ON COLUMN pg_baton_dispatchers.login_by_server IS
    'Is each client authenticated by a backend ("pg_baton.login", or another library''s hook for authentication)?';
COMMENT ON COLUMN pg_baton_dispatchers.longest_turn_us IS
    'The longest that it has not looked for events, since it started: processor time, microseconds';

REVOKE ALL ON FUNCTION pg_baton_get_dispatchers() FROM PUBLIC;
REVOKE ALL ON pg_baton_dispatchers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_dispatchers() TO pg_monitor;
GRANT SELECT ON pg_baton_dispatchers TO pg_monitor;

CREATE FUNCTION pg_baton_get_failed_checks(
    OUT costs text,
    OUT problem text,
    OUT since timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_failed_checks'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_failed_checks() IS
    'See the view pg_baton_failed_checks';

CREATE VIEW pg_baton_failed_checks AS
    SELECT costs,
        problem,
        since
    FROM pg_baton_get_failed_checks();

COMMENT ON VIEW pg_baton_failed_checks IS
    'What pg_baton has found in this server that is not as it expects; empty if all is well';

COMMENT ON COLUMN pg_baton_failed_checks.costs IS
    'What is lost by it: "pooling" (each session keeps a backend for life), "speed", "process IDs", "functions"';
COMMENT ON COLUMN pg_baton_failed_checks.problem IS
    'The first such check that failed since the server started';
COMMENT ON COLUMN pg_baton_failed_checks.since IS
    'When it failed';

REVOKE ALL ON FUNCTION pg_baton_get_failed_checks() FROM PUBLIC;
REVOKE ALL ON pg_baton_failed_checks FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_failed_checks() TO pg_monitor;
GRANT SELECT ON pg_baton_failed_checks TO pg_monitor;

CREATE FUNCTION pg_baton_version()
RETURNS text
AS 'MODULE_PATHNAME', 'pg_baton_version'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION pg_baton_version() IS
    'The version of the library that this server has loaded';

REVOKE ALL ON FUNCTION pg_baton_version() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_version() TO pg_monitor;
