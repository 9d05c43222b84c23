//! The question that `baton why` and the detail view of `baton top` put to the server. Its answer
//! is one object, which sentences.rs puts into words.

use crate::doctor::ask::Server;

/// Seconds since a time, for a column of the views.
fn age(column: &str) -> String {
    format!("round(greatest(extract(epoch FROM clock_timestamp() - {column}), 0), 6)")
}

/// A parameter that has a unit of time, in seconds.
fn seconds(parameter: &str) -> String {
    format!("extract(epoch FROM current_setting('{parameter}', true)::interval)")
}

/// Bytes of a text that may be in the encoding of another database, where functions for texts and
/// conversions fail. textsend() converts nothing if the client's encoding is the database's.
pub fn hex(column: &str, most: u32) -> String {
    format!(
        "encode(substr(CASE getdatabaseencoding() WHEN 'SQL_ASCII' \
         THEN convert_to({column}, 'SQL_ASCII') ELSE textsend({column}) END, 1, {most}), 'hex')"
    )
}

/// One JSON array with one object. Each view is asked once.
pub fn question(server: &Server, pid: i32) -> String {
    let [sessions, backends, pools, pauses, settings] = [
        "pg_baton_sessions",
        "pg_baton_backends",
        "pg_baton_pools",
        "pg_baton_pauses",
        "pg_baton_pool_settings",
    ]
    .map(|view| server.view_name(view));
    let session = format!(
        "SELECT json_build_object('user', user_name, 'database', database, \
         'application', {application}, 'client', host(client_addr), 'mode', mode, 'state', state, \
         'cause', dedicated_cause, 'backend', backend_pid, 'login_age', {login}, 'age', {state}, \
         'transactions', transactions, 'migrations', migrations, 'tls', tls) FROM me",
        application = hex("application_name", 256),
        login = age("login_time"),
        state = age("state_since"),
    );
    let activity = format!(
        "SELECT json_build_object('user', usename, 'database', datname, 'type', backend_type, \
         'state', state, 'wait_type', wait_event_type, 'wait', wait_event, \
         'transaction_age', {transaction}, 'age', {state}, 'query', {query}) \
         FROM a WHERE pid = {pid}",
        transaction = age("xact_start"),
        state = age("state_change"),
        query = hex("query", 400),
    );
    let blockers = format!(
        "SELECT json_agg(json_build_object('pid', p.pid, 'user', a.usename, 'state', a.state, \
         'age', {state}, 'transaction_age', {transaction}, 'waits', a.wait_event_type = 'Lock') ORDER BY p.pid) \
         FROM (SELECT DISTINCT unnest(pg_blocking_pids({pid})) AS pid) p LEFT JOIN a ON a.pid = p.pid",
        state = age("a.state_change"),
        transaction = age("a.xact_start"),
    );
    let blocked = format!(
        "SELECT json_agg(pid ORDER BY pid) FROM a \
         WHERE wait_event_type = 'Lock' AND {pid} = ANY (pg_blocking_pids(pid))"
    );
    let pool = format!(
        "SELECT json_build_object('backends', sum(p.backends), 'starting', sum(p.starting), \
         'idle', sum(p.idle), 'busy', sum(p.busy), 'waiting', sum(p.waiting), \
         'longest_wait', extract(epoch FROM max(p.longest_wait))) FROM {pools} p, me \
         WHERE p.database = me.database AND coalesce(p.user_name = me.user_name, true)"
    );
    // Sessions that keep a backend from others: first those of the same database.
    let holders = format!(
        "SELECT json_agg(json_build_object('pid', pid, 'user', user_name, 'database', database, \
         'state', state, 'age', age, 'backend', backend, 'cause', cause)) FROM \
         (SELECT s.pid, s.user_name, s.database, s.state, {state} AS age, b.pid AS backend, \
         s.dedicated_cause AS cause FROM b JOIN s ON s.pid = b.session_pid CROSS JOIN me \
         WHERE b.state IN ('assigned', 'busy') AND s.pid <> me.pid AND me.state = 'waiting' \
         ORDER BY s.database <> me.database, s.state_since LIMIT 5) holders",
        state = age("s.state_since"),
    );
    let pauses = format!(
        "SELECT json_agg(json_build_object('user', p.role, 'database', p.database, \
         'left', round(greatest(extract(epoch FROM p.ends - clock_timestamp()), 0), 3))) \
         FROM {pauses} p, me WHERE coalesce(p.role = me.user_name, true) \
         AND coalesce(p.database = me.database, true) AND me.mode <> 'native'"
    );
    let served = "SELECT count(*) FROM s, me WHERE s.user_name = me.user_name \
                  AND s.database = me.database AND s.backend_pid IS NOT NULL";
    let process = format!(
        "SELECT json_build_object('state', state, 'database', database, 'session', session_pid, \
         'age', {state}) FROM b WHERE pid = {pid}",
        state = age("state_since"),
    );
    let limit = format!(
        "SELECT setting::bigint FROM {settings} p, me WHERE p.user_name = me.user_name \
         AND p.database = me.database AND p.name = 'pg_baton.pool_max_backends' LIMIT 1"
    );
    let parameters = format!(
        "json_build_object('max_backends', current_setting('pg_baton.max_backends', true)::int, \
         'wait_timeout', {})",
        seconds("pg_baton.session_wait_timeout")
    );
    format!(
        "WITH s AS MATERIALIZED (SELECT * FROM {sessions}), \
         b AS MATERIALIZED (SELECT * FROM {backends}), \
         a AS MATERIALIZED (SELECT * FROM pg_stat_activity), \
         me AS (SELECT * FROM s WHERE pid = {pid}) \
         SELECT json_build_array(json_build_object('pid', {pid}, 'session', ({session}), \
         'activity', ({activity}), 'process', ({process}), 'blockers', ({blockers}), \
         'blocked', ({blocked}), 'pool', ({pool}), 'holders', ({holders}), 'pauses', ({pauses}), \
         'served_of_user', ({served}), 'limit_of_user', ({limit}), 'parameters', {parameters}, \
         'advisory_locks', (SELECT count(*) FROM pg_locks WHERE pid = {pid} \
         AND locktype = 'advisory' AND granted)))"
    )
}
