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
    OUT context_bytes bigint,
    OUT tls boolean)
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
        context_bytes,
        tls
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
COMMENT ON COLUMN pg_baton_sessions.tls IS
    'Whether the client has come by TLS';

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
    OUT longest_wait interval,
    OUT wait_p50 interval,
    OUT wait_p95 interval,
    OUT wait_p99 interval,
    OUT transaction_p50 interval,
    OUT transaction_p95 interval,
    OUT transaction_p99 interval,
    OUT login_p50 interval,
    OUT login_p95 interval,
    OUT login_p99 interval,
    OUT grown jsonb,
    OUT shrunk jsonb)
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
        longest_wait,
        wait_p50,
        wait_p95,
        wait_p99,
        transaction_p50,
        transaction_p95,
        transaction_p99,
        login_p50,
        login_p95,
        login_p99,
        grown,
        shrunk
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
COMMENT ON COLUMN pg_baton_pools.wait_p50 IS
    'How long a session waited for a backend in the last minute at most, in 50 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.wait_p95 IS
    'How long a session waited for a backend in the last minute at most, in 95 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.wait_p99 IS
    'How long a session waited for a backend in the last minute at most, in 99 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.transaction_p50 IS
    'How long a transaction took in the last minute at most, in 50 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.transaction_p95 IS
    'How long a transaction took in the last minute at most, in 95 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.transaction_p99 IS
    'How long a transaction took in the last minute at most, in 99 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.login_p50 IS
    'How long a login took in the last minute at most, in 50 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.login_p95 IS
    'How long a login took in the last minute at most, in 95 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.login_p99 IS
    'How long a login took in the last minute at most, in 99 of 100 cases; NULL if there were none';
COMMENT ON COLUMN pg_baton_pools.grown IS
    'Backends that it has gained, by reason';
COMMENT ON COLUMN pg_baton_pools.shrunk IS
    'Backends that it has lost, by reason';
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
    OUT logins_abandoned bigint,
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
        logins_abandoned,
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
    'Logins that were refused with an error';
COMMENT ON COLUMN pg_baton_dispatchers.logins_abandoned IS
    'Connections that ended before a login was decided, as those of port checks, cancel requests left out';
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

CREATE FUNCTION pg_baton_get_pauses(
    OUT database_oid bigint,
    OUT role_oid bigint,
    OUT since timestamp with time zone,
    OUT ends timestamp with time zone,
    OUT waiting integer,
    OUT in_the_way integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_pauses'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_pauses() IS
    'See the view pg_baton_pauses';

CREATE VIEW pg_baton_pauses AS
    SELECT d.datname AS database,
        r.rolname AS role,
        p.since,
        p.ends,
        p.waiting,
        p.in_the_way
    FROM pg_baton_get_pauses() AS p
        LEFT JOIN pg_catalog.pg_database AS d ON d.oid = p.database_oid::oid
        LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = p.role_oid::oid;

COMMENT ON VIEW pg_baton_pauses IS
    'Pauses: sessions that get no backend for a time';

COMMENT ON COLUMN pg_baton_pauses.database IS
    'The database whose sessions are paused; NULL: any';
COMMENT ON COLUMN pg_baton_pauses.role IS
    'The role whose sessions are paused; NULL: any';
COMMENT ON COLUMN pg_baton_pauses.since IS
    'When the pause began';
COMMENT ON COLUMN pg_baton_pauses.ends IS
    'When it ends by itself';
COMMENT ON COLUMN pg_baton_pauses.waiting IS
    'Sessions that wait for its end; requests of dedicated sessions do not count';
COMMENT ON COLUMN pg_baton_pauses.in_the_way IS
    'Sessions whose transactions are not over yet; NULL: not counted yet';

REVOKE ALL ON FUNCTION pg_baton_get_pauses() FROM PUBLIC;
REVOKE ALL ON pg_baton_pauses FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_pauses() TO pg_monitor;
GRANT SELECT ON pg_baton_pauses TO pg_monitor;

CREATE FUNCTION pg_baton_pause(
    database name DEFAULT NULL,
    role name DEFAULT NULL,
    timeout interval DEFAULT '30 seconds',
    "for" interval DEFAULT '5 minutes')
RETURNS void
AS 'MODULE_PATHNAME', 'pg_baton_pause'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION pg_baton_pause(name, name, interval, interval) IS
    'Lets running transactions end and holds the next ones back; gives up after "timeout", and ends by itself after "for"';

CREATE FUNCTION pg_baton_resume(
    database name DEFAULT NULL,
    role name DEFAULT NULL)
RETURNS integer
AS 'MODULE_PATHNAME', 'pg_baton_resume'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION pg_baton_resume(name, name) IS
    'Ends pauses: those of this database and this role, NULL is any; returns their number';

REVOKE ALL ON FUNCTION pg_baton_pause(name, name, interval, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_baton_resume(name, name) FROM PUBLIC;

CREATE FUNCTION pg_baton_get_stats(
    OUT role_oid oid,
    OUT database_oid oid,
    OUT transactions bigint,
    OUT requests bigint,
    OUT statements bigint,
    OUT errors bigint,
    OUT errors_by_class jsonb,
    OUT bytes_sent bigint,
    OUT transaction_time_us bigint,
    OUT request_time_us bigint,
    OUT waits bigint,
    OUT wait_time_us bigint,
    OUT handed_over_directly bigint,
    OUT queued bigint,
    OUT hand_over_time_us bigint,
    OUT logins bigint,
    OUT logins_tls bigint,
    OUT logins_refused bigint,
    OUT logins_refused_by_state jsonb,
    OUT cancels bigint,
    OUT evictions bigint,
    OUT stats_reset timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_stats'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_stats() IS
    'Asks the dispatcher; see the view pg_baton_stats';

-- What is left of dropped roles and databases is not shown.
CREATE VIEW pg_baton_stats AS
    SELECT r.rolname AS user_name,
        d.datname AS database,
        s.transactions,
        s.requests,
        s.statements,
        s.errors,
        s.errors_by_class,
        s.bytes_sent,
        s.transaction_time_us,
        s.request_time_us,
        s.waits,
        s.wait_time_us,
        s.handed_over_directly,
        s.queued,
        s.hand_over_time_us,
        s.logins,
        s.logins_tls,
        s.logins_refused,
        s.logins_refused_by_state,
        s.cancels,
        s.evictions,
        s.stats_reset
    FROM pg_baton_get_stats() s
        LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.role_oid
        LEFT JOIN pg_catalog.pg_database d ON d.oid = s.database_oid
    WHERE s.role_oid IS NULL OR (r.oid IS NOT NULL AND d.oid IS NOT NULL);

COMMENT ON VIEW pg_baton_stats IS
    'What has been counted of each user in each database, one row each';

COMMENT ON COLUMN pg_baton_stats.user_name IS
    'The user; NULL: all that have no row of their own';
COMMENT ON COLUMN pg_baton_stats.database IS
    'The database; NULL like user_name';
COMMENT ON COLUMN pg_baton_stats.transactions IS
    'Transactions that were completed';
COMMENT ON COLUMN pg_baton_stats.requests IS
    'Requests that were answered: a simple query, or a batch up to its Sync';
COMMENT ON COLUMN pg_baton_stats.statements IS
    'Statements that ran to their end, or to the end of the rows that were asked for';
COMMENT ON COLUMN pg_baton_stats.errors IS
    'Errors that were sent to clients';
COMMENT ON COLUMN pg_baton_stats.errors_by_class IS
    'Of these: by class of SQLSTATE';
COMMENT ON COLUMN pg_baton_stats.bytes_sent IS
    'Bytes of the messages that were sent to clients after the login';
COMMENT ON COLUMN pg_baton_stats.transaction_time_us IS
    'Time in transactions, microseconds';
COMMENT ON COLUMN pg_baton_stats.request_time_us IS
    'Time in which requests were worked on, microseconds';
COMMENT ON COLUMN pg_baton_stats.waits IS
    'Times a session had to wait for a backend';
COMMENT ON COLUMN pg_baton_stats.wait_time_us IS
    'Time that they have waited, microseconds';
COMMENT ON COLUMN pg_baton_stats.handed_over_directly IS
    'Times a session was given straight to a backend';
COMMENT ON COLUMN pg_baton_stats.queued IS
    'Times a session came to a backend through the ready queue';
COMMENT ON COLUMN pg_baton_stats.hand_over_time_us IS
    'Time of both, from the dispatcher to the backend, microseconds';
COMMENT ON COLUMN pg_baton_stats.logins IS
    'Logins that succeeded';
COMMENT ON COLUMN pg_baton_stats.logins_tls IS
    'Of these: by TLS';
COMMENT ON COLUMN pg_baton_stats.logins_refused IS
    'Logins that were refused with an error';
COMMENT ON COLUMN pg_baton_stats.logins_refused_by_state IS
    'Of these: by SQLSTATE';
COMMENT ON COLUMN pg_baton_stats.cancels IS
    'Cancel requests for its sessions';
COMMENT ON COLUMN pg_baton_stats.evictions IS
    'Times a dedicated session was told to end because others waited';
COMMENT ON COLUMN pg_baton_stats.stats_reset IS
    'When the counts began';

REVOKE ALL ON FUNCTION pg_baton_get_stats() FROM PUBLIC;
REVOKE ALL ON pg_baton_stats FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_stats() TO pg_monitor;
GRANT SELECT ON pg_baton_stats TO pg_monitor;

CREATE FUNCTION pg_baton_stats_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'pg_baton_stats_reset'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_stats_reset() IS
    'Has the counts of pg_baton_stats begin anew';

REVOKE ALL ON FUNCTION pg_baton_stats_reset() FROM PUBLIC;

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

CREATE FUNCTION pg_baton_get_build(
    OUT library_version text,
    OUT library_layout text,
    OUT library_since timestamp with time zone,
    OUT dispatcher_pid integer,
    OUT program_version text,
    OUT program_layout text,
    OUT program_build text,
    OUT program_since timestamp with time zone,
    OUT installed_program text,
    OUT installed_version text,
    OUT installed_layout text,
    OUT installed_build text,
    OUT installed_differs boolean,
    OUT restarts bigint,
    OUT last_end text,
    OUT last_end_time timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_baton_get_build'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION pg_baton_get_build() IS
    'See the view pg_baton_build';

CREATE VIEW pg_baton_build AS
    SELECT library_version,
        library_layout,
        library_since,
        dispatcher_pid,
        program_version,
        program_layout,
        program_build,
        program_since,
        installed_program,
        installed_version,
        installed_layout,
        installed_build,
        installed_differs,
        restarts,
        last_end,
        last_end_time
    FROM pg_baton_get_build();

COMMENT ON VIEW pg_baton_build IS
    'Which builds of library and dispatcher run, and which program is installed';

COMMENT ON COLUMN pg_baton_build.library_version IS
    'Version of the library that the server runs';
COMMENT ON COLUMN pg_baton_build.library_layout IS
    'Version of the layout by which it shares memory with the dispatcher';
COMMENT ON COLUMN pg_baton_build.library_since IS
    'When the server started, and loaded it';
COMMENT ON COLUMN pg_baton_build.dispatcher_pid IS
    'The dispatcher''s process ID; NULL if there is none';
COMMENT ON COLUMN pg_baton_build.program_version IS
    'Version of the program that runs as the dispatcher; NULL if the file does not tell';
COMMENT ON COLUMN pg_baton_build.program_layout IS
    'Its layout version';
COMMENT ON COLUMN pg_baton_build.program_build IS
    'Its build ID, as "file" prints it';
COMMENT ON COLUMN pg_baton_build.program_since IS
    'When it was started';
COMMENT ON COLUMN pg_baton_build.installed_program IS
    'The program that is installed; NULL if there is none';
COMMENT ON COLUMN pg_baton_build.installed_version IS
    'Its version; NULL if the file does not tell';
COMMENT ON COLUMN pg_baton_build.installed_layout IS
    'Its layout version';
COMMENT ON COLUMN pg_baton_build.installed_build IS
    'Its build ID';
COMMENT ON COLUMN pg_baton_build.installed_differs IS
    'Whether it is another program than the one that runs';
COMMENT ON COLUMN pg_baton_build.restarts IS
    'How often a dispatcher has been started since the server started, but for the first';
COMMENT ON COLUMN pg_baton_build.last_end IS
    'Why the last one ended that has: its exit status or signal, "asked for", "made no progress", or "unknown"';
COMMENT ON COLUMN pg_baton_build.last_end_time IS
    'When it ended';

REVOKE ALL ON FUNCTION pg_baton_get_build() FROM PUBLIC;
REVOKE ALL ON pg_baton_build FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_get_build() TO pg_monitor;
GRANT SELECT ON pg_baton_build TO pg_monitor;

CREATE FUNCTION pg_baton_restart_dispatcher()
RETURNS integer
AS 'MODULE_PATHNAME', 'pg_baton_restart_dispatcher'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;

COMMENT ON FUNCTION pg_baton_restart_dispatcher() IS
    'Ends the dispatcher, has the launcher start the installed program, and returns its process ID; sessions that are not on a backend end';

REVOKE ALL ON FUNCTION pg_baton_restart_dispatcher() FROM PUBLIC;

CREATE FUNCTION pg_baton_version()
RETURNS text
AS 'MODULE_PATHNAME', 'pg_baton_version'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION pg_baton_version() IS
    'The version of the library that this server has loaded';

REVOKE ALL ON FUNCTION pg_baton_version() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_baton_version() TO pg_monitor;
