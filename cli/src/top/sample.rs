//! What a frame of `baton top` shows: the question, its answer, and rates between two answers.
//!
//! Sorting, filtering and limiting are the server's work, so a frame costs the same transfer for
//! ten sessions and for ten thousand.

use crate::doctor::ask::{literal, Server};
use crate::why::facts::hex;
use serde_json::Value;

/// What the table is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Sessions that wait, then those idle in a transaction, then active ones, then dedicated ones; the longest first
    Urgency,
    /// How long the session has been in its state, the longest first
    Since,
    /// The session's process ID
    Pid,
    /// Database and role
    Database,
    /// Role and database
    Role,
    /// The cause for which the session keeps its backend
    Cause,
    /// Completed transactions, most first
    Transactions,
    /// Memory of the session's context, most first
    Memory,
}

impl Order {
    pub const ALL: [Order; 8] = [
        Order::Urgency,
        Order::Since,
        Order::Pid,
        Order::Database,
        Order::Role,
        Order::Cause,
        Order::Transactions,
        Order::Memory,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Order::Urgency => "urgency",
            Order::Since => "since",
            Order::Pid => "pid",
            Order::Database => "database",
            Order::Role => "role",
            Order::Cause => "cause",
            Order::Transactions => "transactions",
            Order::Memory => "memory",
        }
    }

    /// Of columns of pg_baton_sessions. The process ID makes the order total.
    fn sql(self, is_reversed: bool) -> String {
        let (first, is_descending, next) = match self {
            Order::Urgency => (
                "CASE state WHEN 'waiting' THEN 1 WHEN 'idle in transaction' THEN 2 \
                 WHEN 'active' THEN 3 WHEN 'login' THEN 4 ELSE CASE mode WHEN 'shared' THEN 6 ELSE 5 END END",
                false,
                "state_since",
            ),
            Order::Since => ("state_since", false, "login_time"),
            Order::Pid => ("pid", false, "pid"),
            Order::Database => ("database", false, "user_name"),
            Order::Role => ("user_name", false, "database"),
            Order::Cause => ("dedicated_cause", false, "state_since"),
            Order::Transactions => ("transactions", true, "state_since"),
            Order::Memory => ("context_bytes", true, "state_since"),
        };
        let direction = if is_descending != is_reversed {
            "DESC"
        } else {
            "ASC"
        };
        format!("{first} {direction} NULLS LAST, {next} NULLS LAST, pid")
    }
}

/// Which sessions are shown, and in which order.
#[derive(Clone, Debug)]
pub struct View {
    pub order: Order,
    pub is_reversed: bool,
    pub database: Option<String>,
    pub role: Option<String>,
    /// A part of the cause.
    pub cause: Option<String>,
    /// The most sessions.
    pub limit: u32,
}

impl View {
    fn filter(&self) -> String {
        let mut conditions = vec!["pid <> pg_backend_pid()".to_owned()];
        let is = |column: &str, name: &Option<String>| {
            (name.as_deref()).map(|name| format!("{column}::text = {}", literal(name)))
        };
        conditions.extend(is("database", &self.database));
        conditions.extend(is("user_name", &self.role));
        let cause = self.cause.as_deref().map(literal);
        conditions.extend(cause.map(|cause| format!("strpos(dedicated_cause, {cause}) > 0")));
        conditions.join(" AND ")
    }

    /// The filters, for people.
    pub fn filters(&self) -> String {
        let one = |what: &str, value: &Option<String>| {
            (value.as_deref()).map(|value| format!("{what} = {}", crate::text::name(value)))
        };
        let all = [
            one("database", &self.database),
            one("role", &self.role),
            one("cause", &self.cause),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// One JSON array with one object, in one line. Each view is asked once.
pub fn question(server: &Server, view: &View) -> String {
    let [sessions, backends, pools, dispatchers, stats, pauses, build] = [
        "pg_baton_sessions",
        "pg_baton_backends",
        "pg_baton_pools",
        "pg_baton_dispatchers",
        "pg_baton_stats",
        "pg_baton_pauses",
        "pg_baton_build",
    ]
    .map(|view| server.view_name(view));
    let filter = view.filter();
    let order = view.order.sql(view.is_reversed);
    let limit = view.limit;
    let shown = format!("SELECT row_number() OVER (ORDER BY {order}) AS place, s.* FROM s WHERE {filter} ORDER BY place LIMIT {limit}");
    // A session that waits has no process that waits; a paused one waits for no backend.
    let waits_for = "CASE WHEN s.state = 'waiting' THEN CASE WHEN EXISTS (SELECT FROM p \
         WHERE coalesce(p.database = s.database, true) AND coalesce(p.role = s.user_name, true)) \
         THEN 'end of pause' ELSE 'backend' END \
         WHEN s.state = 'idle in transaction' THEN 'client' \
         WHEN a.wait_event_type = 'Lock' THEN coalesce((SELECT string_agg(DISTINCT b::text, ' ') \
         FROM unnest(pg_blocking_pids(s.pid)) b), 'lock') \
         WHEN a.state = 'active' AND a.wait_event_type <> 'Client' THEN a.wait_event END";
    let rows = format!(
        "SELECT json_agg(json_build_array(s.pid, s.database, s.user_name, {application}, \
         coalesce(s.state, a.state), \
         extract(epoch FROM clock_timestamp() - coalesce(s.state_since, a.state_change, s.login_time)), \
         s.mode, s.dedicated_cause, {waits_for}, {query}, extract(epoch FROM s.login_time)::text) ORDER BY s.place) \
         FROM ({shown}) s LEFT JOIN a ON a.pid = s.pid",
        application = hex("s.application_name", 64),
        query = hex("a.query", 400),
    );
    let totals = format!(
        "SELECT json_build_object('sessions', count(*), 'matching', count(*) FILTER (WHERE {filter}), \
         'waiting', count(*) FILTER (WHERE state = 'waiting'), \
         'active', count(*) FILTER (WHERE state = 'active'), \
         'in_transaction', count(*) FILTER (WHERE state = 'idle in transaction'), \
         'dedicated', count(*) FILTER (WHERE mode = 'dedicated'), \
         'native', count(*) FILTER (WHERE mode = 'native')) FROM s"
    );
    let pool = format!(
        "SELECT json_build_object('longest_wait', extract(epoch FROM max(longest_wait))) FROM {pools}"
    );
    let worst = format!(
        "SELECT json_build_array(database, extract(epoch FROM wait_p50), extract(epoch FROM wait_p99)) \
         FROM {pools} WHERE wait_p99 IS NOT NULL ORDER BY wait_p99 DESC LIMIT 1"
    );
    let backends = format!(
        "SELECT json_build_object('all', count(*), \
         'busy', count(*) FILTER (WHERE state IN ('assigned', 'busy') AND dedicated_cause IS NULL), \
         'idle', count(*) FILTER (WHERE state IN ('idle', 'lingering') AND dedicated_cause IS NULL), \
         'dedicated', count(*) FILTER (WHERE dedicated_cause IS NOT NULL AND state <> 'retiring'), \
         'starting', count(*) FILTER (WHERE state = 'starting')) FROM {backends}"
    );
    let counts = format!(
        "SELECT json_build_object('since', extract(epoch FROM max(stats_reset))::text, \
         'transactions', sum(transactions), 'requests', sum(requests), 'errors', sum(errors), \
         'logins', sum(logins), 'refused', sum(logins_refused), \
         'hand_overs', sum(handed_over_directly + queued), \
         'hand_over_time_us', sum(hand_over_time_us)) FROM {stats}"
    );
    let dispatcher = format!(
        "SELECT json_build_object('pid', pid, \
         'up', extract(epoch FROM clock_timestamp() - started)) FROM {dispatchers} LIMIT 1"
    );
    let build = format!(
        "SELECT json_build_object('version', coalesce(program_version, library_version), \
         'build', program_build, 'restarts', restarts, 'differs', installed_differs) FROM {build}"
    );
    format!(
        "WITH s AS MATERIALIZED (SELECT * FROM {sessions}), \
         p AS MATERIALIZED (SELECT * FROM {pauses}), \
         a AS MATERIALIZED (SELECT pid, state, state_change, wait_event_type, wait_event, query FROM pg_stat_activity) \
         SELECT json_build_array(json_build_object(\
         'clock', extract(epoch FROM clock_timestamp()), \
         'time', to_char(clock_timestamp(), 'HH24:MI:SS'), \
         'rows', ({rows}), 'totals', ({totals}), 'pool', ({pool}), 'worst', ({worst}), \
         'backends', ({backends}), 'counts', ({counts}), 'dispatcher', ({dispatcher}), \
         'build', ({build}), 'pauses', (SELECT count(*) FROM p)))"
    )
}

/// Whether a signal has reached the session: true or false, null if it has ended meanwhile.
pub fn signal(server: &Server, function: &str, row: &Row) -> String {
    format!(
        "SELECT json_build_array((SELECT {function}(pid) FROM {} \
         WHERE pid = {} AND extract(epoch FROM login_time) = {}::numeric))",
        server.view_name("pg_baton_sessions"),
        row.pid,
        literal(&row.login)
    )
}

/// One session of the table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub pid: i32,
    pub database: String,
    pub role: String,
    pub application: String,
    pub state: String,
    pub age: f64,
    pub mode: String,
    pub cause: String,
    pub waits_for: String,
    pub query: String,
    /// The time of its login, as the server writes it: no later session has both.
    pub login: String,
}

impl Row {
    fn read(row: &Value) -> Row {
        let text = |at: usize| crate::text::plain(row[at].as_str().unwrap_or_default());
        let hex = |at: usize| {
            crate::text::plain(&crate::text::from_hex(row[at].as_str().unwrap_or_default()))
        };
        Row {
            pid: row[0].as_i64().unwrap_or_default() as i32,
            database: text(1),
            role: text(2),
            application: hex(3),
            state: text(4),
            age: row[5].as_f64().unwrap_or_default().max(0.0),
            mode: text(6),
            cause: text(7),
            waits_for: text(8),
            query: hex(9),
            login: text(10),
        }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Sample {
    facts: Value,
    pub rows: Vec<Row>,
}

impl Sample {
    pub fn read(facts: Value) -> Sample {
        let rows = facts["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let rows = rows.iter().map(Row::read).collect();
        Sample { facts, rows }
    }

    /// "totals.sessions" and the like; None for NULL.
    pub fn number(&self, path: &str) -> Option<f64> {
        path.split('.')
            .fold(&self.facts, |value, key| &value[key])
            .as_f64()
    }

    pub fn whole(&self, path: &str) -> i64 {
        self.number(path).unwrap_or_default() as i64
    }

    pub fn text(&self, path: &str) -> String {
        let found = path.split('.').fold(&self.facts, |value, key| &value[key]);
        crate::text::plain(found.as_str().unwrap_or_default())
    }

    /// The pool with the longest waits of the last minute: its database, p50 and p99.
    pub fn worst_pool(&self) -> Option<(String, f64, f64)> {
        let worst = &self.facts["worst"];
        let time = |at: usize| worst[at].as_f64();
        Some((crate::text::plain(worst[0].as_str()?), time(1)?, time(2)?))
    }

    pub fn installed_differs(&self) -> bool {
        self.facts["build"]["differs"] == Value::Bool(true)
    }
}

/// What happened in a second, between two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    pub transactions: f64,
    pub requests: f64,
    pub errors: f64,
    pub logins: f64,
    pub refused: f64,
    /// Mean time of a hand-over, in seconds; None if there was none.
    pub hand_over: Option<f64>,
}

impl Rates {
    /// None if the counts began anew meanwhile.
    pub fn between(before: &Sample, after: &Sample) -> Option<Rates> {
        let seconds = after.number("clock")? - before.number("clock")?;
        let same = before.text("counts.since") == after.text("counts.since");
        if seconds <= 0.0 || !same {
            return None;
        }
        let grown = |name: &str| {
            let path = format!("counts.{name}");
            let by = after.number(&path).unwrap_or(0.0) - before.number(&path).unwrap_or(0.0);
            (by >= 0.0).then_some(by)
        };
        let hand_overs = grown("hand_overs")?;
        let time = grown("hand_over_time_us")? / 1e6;
        Some(Rates {
            transactions: grown("transactions")? / seconds,
            requests: grown("requests")? / seconds,
            errors: grown("errors")? / seconds,
            logins: grown("logins")? / seconds,
            refused: grown("refused")? / seconds,
            hand_over: (hand_overs > 0.0).then(|| time / hand_overs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(clock: f64, transactions: u64, since: &str) -> Sample {
        Sample::read(json!({"clock": clock, "counts": {
            "since": since, "transactions": transactions, "requests": 0, "errors": 0, "logins": 0,
            "refused": 0, "hand_overs": transactions, "hand_over_time_us": transactions * 20}}))
    }

    #[test]
    fn rates_are_per_second_and_end_with_the_counts() {
        let before = sample(100.0, 1000, "1");
        let rates = Rates::between(&before, &sample(102.0, 1500, "1")).unwrap();
        assert_eq!(rates.transactions, 250.0);
        assert!((rates.hand_over.unwrap() - 20e-6).abs() < 1e-9);
        assert_eq!(Rates::between(&before, &sample(102.0, 1500, "2")), None);
        assert_eq!(Rates::between(&before, &sample(102.0, 900, "1")), None);
        assert_eq!(Rates::between(&before, &before), None);
        let quiet = Rates::between(&before, &sample(102.0, 1000, "1")).unwrap();
        assert_eq!(quiet.hand_over, None);
    }

    #[test]
    fn filters_are_constants_of_the_query() {
        let view = View {
            order: Order::Memory,
            is_reversed: false,
            database: Some("it's".into()),
            role: None,
            cause: Some("listen".into()),
            limit: 5,
        };
        let filter = view.filter();
        assert!(filter.contains("database::text = E'it''s'"), "{filter}");
        assert!(filter.contains("strpos(dedicated_cause, E'listen') > 0"));
        assert!(!filter.contains("user_name"));
        assert!(view.order.sql(false).starts_with("context_bytes DESC"));
        assert!(view.order.sql(true).starts_with("context_bytes ASC"));
        assert_eq!(view.filters(), "database = \"it's\", cause = listen");
    }

    #[test]
    fn rows_have_no_characters_that_command_the_terminal() {
        let rows = json!({"rows": [[5, "d\u{1b}", "r", "1b41", "idle", 1.5, "shared", null, null, "53454c0a1b5b324a", "7"]]});
        let row = Sample::read(rows).rows.remove(0);
        assert_eq!(
            (row.database.as_str(), row.application.as_str()),
            ("d", "A")
        );
        assert_eq!(row.query, "SEL [2J");
    }
}
