//! `/metrics`: the dispatcher's rows as OpenMetrics. docs/metrics.md describes every name.
//!
//! Roles and databases are labels, so their number is bounded: those that come first have series
//! of their own for as long as the monitor runs, and all others are added up. So no counter ever
//! decreases because a role has become more or less busy.

use crate::ask::{Numbers, Row, Server};
use crate::columns::{backends, dispatchers, pauses, pools, sessions, statistics, times};
use hyper::body::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Roles in databases that have series of their own, and databases.
const MOST_ROLES: usize = 100;
const MOST_DATABASES: usize = 50;
/// The labels of all others.
const OTHER: &str = "other";

/// Seconds between 1970 and 2000.
const POSTGRES_EPOCH: f64 = 946_684_800.0;
const US: f64 = 1e-6;

/// The bound of the first bucket of a histogram, in seconds; each is twice the one before.
const FIRST_BOUND: f64 = 32e-6;

// ---- Families ------------------------------------------------------------------

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Number(f64),
    /// A sum, and bounds with their counts.
    Times(f64, Vec<(f64, u64)>),
    Info,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    samples: BTreeMap<Labels, Value>,
}

/// All that is shown, in the order of its definition.
#[derive(Debug, Default)]
struct Families(Vec<Family>);

impl Families {
    fn family(
        &mut self,
        kind: MetricType,
        name: &'static str,
        unit: Option<Unit>,
        help: &'static str,
    ) -> &mut Family {
        self.0.push(Family {
            name,
            help,
            unit,
            kind,
            samples: BTreeMap::new(),
        });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn counter(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(MetricType::Counter, name, None, help)
    }

    fn gauge(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(MetricType::Gauge, name, None, help)
    }

    fn seconds(&mut self, kind: MetricType, name: &'static str, help: &'static str) -> &mut Family {
        self.family(kind, name, Some(Unit::Seconds), help)
    }

    fn bytes(&mut self, kind: MetricType, name: &'static str, help: &'static str) -> &mut Family {
        self.family(kind, name, Some(Unit::Bytes), help)
    }
}

impl Family {
    /// Adds a number to the sample with these labels.
    fn add(&mut self, labels: &[(&'static str, &str)], number: f64) {
        let labels = labels
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        let sample = self.samples.entry(labels.collect());
        if let Value::Number(there) = sample.or_insert(Value::Number(0.0)) {
            *there += number;
        }
    }

    /// The only sample; without one if it is unknown.
    fn set(&mut self, number: Option<f64>) {
        if let Some(number) = number {
            self.add(&[], number);
        }
    }

    /// Adds the counts of all buckets.
    fn add_times(&mut self, database: &str, counts: &str, sum: f64) {
        let labels = vec![("database", database.to_owned())];
        let sample = self.samples.entry(labels);
        let Value::Times(there, buckets) = sample.or_insert(Value::Times(0.0, Vec::new())) else {
            return;
        };
        *there += sum;
        let counts: Vec<u64> = counts.split(' ').filter_map(|it| it.parse().ok()).collect();
        if buckets.is_empty() {
            let last = counts.len().saturating_sub(1);
            *buckets = (0..counts.len())
                .map(|at| match at == last {
                    true => (f64::INFINITY, 0),
                    false => (FIRST_BOUND * f64::from(1u32 << at.min(31)), 0),
                })
                .collect();
        }
        for ((_, there), count) in buckets.iter_mut().zip(counts) {
            *there += count;
        }
    }
}

impl Value {
    fn encode(&self, kind: MetricType, metric: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Value::Number(number) if matches!(kind, MetricType::Counter) => {
                metric.encode_counter(number, None::<&Exemplar<NoLabelSet, f64>>)
            }
            Value::Number(number) => metric.encode_gauge(number),
            Value::Times(sum, buckets) => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
            Value::Info => Ok(()),
        }
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in self.0.iter().filter(|it| !it.samples.is_empty()) {
            let mut metric = encoder.encode_descriptor(
                family.name,
                family.help,
                family.unit.as_ref(),
                family.kind,
            )?;
            for (labels, value) in &family.samples {
                match value {
                    Value::Info => metric.encode_info(labels)?,
                    _ if labels.is_empty() => value.encode(family.kind, &mut metric)?,
                    _ => value.encode(family.kind, &mut metric.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

// ---- Roles and databases ---------------------------------------------------------

/// The names in these columns, unless they are all others.
fn names_of(row: &Row, database: usize, role: usize) -> Option<(&str, &str)> {
    Some((row.text(database)?, row.text(role)?))
}

/// Those that have series of their own.
#[derive(Default)]
struct Shown {
    roles: BTreeSet<(String, String)>,
    databases: BTreeSet<String>,
}

impl Shown {
    /// Of those that are new, the ones with most transactions come first.
    fn admit(&mut self, numbers: &Numbers) {
        let mut rows: Vec<&Row> = numbers.statistics.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.number(statistics::TRANSACTIONS)));
        let counted = rows
            .into_iter()
            .map(|row| names_of(row, statistics::DATABASE, statistics::ROLE));
        // Native sessions are not counted there.
        let present = numbers.sessions.iter();
        let present = present.map(|row| names_of(row, sessions::DATABASE, sessions::ROLE));
        for (database, role) in counted.chain(present).flatten() {
            // Theirs are the labels of all others.
            if database == OTHER {
                continue;
            }
            if self.roles.len() < MOST_ROLES {
                self.roles.insert((database.to_owned(), role.to_owned()));
            }
            if self.databases.len() < MOST_DATABASES {
                self.databases.insert(database.to_owned());
            }
        }
    }

    fn database<'a>(&self, database: Option<&'a str>) -> &'a str {
        database
            .filter(|it| self.databases.contains(*it))
            .unwrap_or(OTHER)
    }

    fn role<'a>(&self, database: Option<&'a str>, role: Option<&'a str>) -> [&'a str; 2] {
        match (database, role) {
            (Some(database), Some(role))
                if (self.roles).contains(&(database.to_owned(), role.to_owned())) =>
            {
                [database, role]
            }
            _ => [OTHER, OTHER],
        }
    }
}

// ---- What is shown ----------------------------------------------------------------

const COUNTER: MetricType = MetricType::Counter;
const GAUGE: MetricType = MetricType::Gauge;

/// A counter of each role in a database, of this column.
struct OfRole(&'static str, Option<Unit>, usize, f64, &'static str);

fn of_roles() -> [OfRole; 14] {
    use statistics::*;
    let seconds = || Some(Unit::Seconds);
    [
        OfRole(
            "pg_baton_transactions",
            None,
            TRANSACTIONS,
            1.0,
            "Transactions that have ended",
        ),
        OfRole(
            "pg_baton_requests",
            None,
            REQUESTS,
            1.0,
            "Requests that were answered with ReadyForQuery",
        ),
        OfRole(
            "pg_baton_statements",
            None,
            STATEMENTS,
            1.0,
            "Statements that have run to their end",
        ),
        OfRole(
            "pg_baton_errors",
            None,
            ERRORS,
            1.0,
            "Errors that were sent to clients of sessions",
        ),
        OfRole(
            "pg_baton_sent",
            Some(Unit::Bytes),
            SENT,
            1.0,
            "Bytes that backends have sent to clients, before encryption",
        ),
        OfRole(
            "pg_baton_transaction_time",
            seconds(),
            TRANSACTION_TIME,
            US,
            "Time in transactions",
        ),
        OfRole(
            "pg_baton_request_time",
            seconds(),
            REQUEST_TIME,
            US,
            "Time in which backends have worked on requests",
        ),
        OfRole(
            "pg_baton_waits",
            None,
            WAITS,
            1.0,
            "Waits of sessions for a backend that have ended",
        ),
        OfRole(
            "pg_baton_wait_time",
            seconds(),
            WAIT_TIME,
            US,
            "Time of these waits",
        ),
        OfRole(
            "pg_baton_hand_over_time",
            seconds(),
            HAND_OVER_TIME,
            US,
            "Time of hand-overs, with the time in the ready queue",
        ),
        OfRole(
            "pg_baton_logins",
            None,
            LOGINS,
            1.0,
            "Logins that have succeeded",
        ),
        OfRole(
            "pg_baton_tls_logins",
            None,
            TLS_LOGINS,
            1.0,
            "Logins by TLS that have succeeded",
        ),
        OfRole(
            "pg_baton_cancels",
            None,
            CANCELS,
            1.0,
            "Cancel requests that have matched a session",
        ),
        OfRole(
            "pg_baton_evictions",
            None,
            EVICTIONS,
            1.0,
            "Dedicated sessions that were told to end because others waited",
        ),
    ]
}

fn roles(all: &mut Families, numbers: &Numbers, shown: &Shown) {
    let labels = |row: &Row| -> [String; 2] {
        let database = row.text(statistics::DATABASE);
        let role = row.text(statistics::ROLE);
        shown.role(database, role).map(str::to_owned)
    };
    let rows = || numbers.statistics.iter().map(|row| (row, labels(row)));
    for OfRole(name, unit, column, factor, help) in of_roles() {
        let family = all.family(COUNTER, name, unit, help);
        for (row, [database, role]) in rows() {
            let number = row.number(column).unwrap_or(0) as f64;
            family.add(&[("database", &database), ("role", &role)], number * factor);
        }
    }
    let family = all.counter(
        "pg_baton_hand_overs",
        "Sessions that were given to a backend, directly or by the ready queue",
    );
    for (row, [database, role]) in rows() {
        for (way, column) in [
            ("direct", statistics::DIRECT),
            ("queue", statistics::QUEUED),
        ] {
            let number = row.number(column).unwrap_or(0) as f64;
            let labels = [("database", &*database), ("role", &*role), ("way", way)];
            family.add(&labels, number);
        }
    }
    for (name, label, column, help) in [
        (
            "pg_baton_errors_by_class",
            "class",
            statistics::ERRORS_BY_CLASS,
            "Errors that were sent to clients of sessions, by the class of the SQLSTATE",
        ),
        (
            "pg_baton_logins_refused",
            "sqlstate",
            statistics::REFUSED_BY_STATE,
            "Logins that were refused with an error, by SQLSTATE",
        ),
    ] {
        let family = all.counter(name, help);
        for row in &numbers.statistics {
            for (class, number) in row.counts(column) {
                family.add(&[(label, &class)], number as f64);
            }
        }
    }
    let since = numbers.statistics.first();
    let since = since.and_then(|row| row.text(statistics::SINCE)?.parse::<f64>().ok());
    all.seconds(
        GAUGE,
        "pg_baton_stats_reset_timestamp",
        "When the counts of roles began",
    )
    .set(since.map(|us| us * US + POSTGRES_EPOCH));
}

fn sessions_and_backends(all: &mut Families, numbers: &Numbers, shown: &Shown) {
    for (name, label, column, help) in [
        (
            "pg_baton_sessions",
            "state",
            sessions::STATE,
            "Sessions by state",
        ),
        (
            "pg_baton_dedicated_sessions",
            "cause",
            sessions::CAUSE,
            "Sessions that keep their backend, by cause",
        ),
    ] {
        let family = all.gauge(name, help);
        for row in &numbers.sessions {
            let [database, role] =
                shown.role(row.text(sessions::DATABASE), row.text(sessions::ROLE));
            let number = row.number(sessions::COUNT).unwrap_or(0) as f64;
            if let Some(value) = row.text(column) {
                family.add(
                    &[("database", database), ("role", role), (label, value)],
                    number,
                );
            }
        }
    }
    for (name, label, column, help) in [
        (
            "pg_baton_backends",
            "state",
            backends::STATE,
            "Backends by state",
        ),
        (
            "pg_baton_dedicated_backends",
            "cause",
            backends::CAUSE,
            "Backends that a dedicated session holds, by cause",
        ),
    ] {
        let family = all.gauge(name, help);
        for row in &numbers.backends {
            let database = shown.database(row.text(backends::DATABASE));
            if let Some(value) = row.text(column) {
                family.add(&[("database", database), (label, value)], 1.0);
            }
        }
    }
    let mut longest: BTreeMap<&str, f64> = BTreeMap::new();
    let family = all.gauge(
        "pg_baton_waiting_sessions",
        "Sessions that wait for a backend",
    );
    for row in &numbers.pools {
        let database = shown.database(row.text(pools::DATABASE));
        let waiting = row.number(pools::WAITING).unwrap_or(0) as f64;
        family.add(&[("database", database)], waiting);
        let wait = row.number(pools::LONGEST_WAIT).unwrap_or(0) as f64 * US;
        let there = longest.entry(database).or_default();
        *there = there.max(wait);
    }
    let family = all.seconds(
        GAUGE,
        "pg_baton_longest_wait",
        "For how long the first waiting session has waited; 0 if none waits",
    );
    for (database, wait) in longest {
        family.add(&[("database", database)], wait);
    }
}

fn databases(all: &mut Families, numbers: &Numbers, shown: &Shown) {
    for (name, column, help) in [
        (
            "pg_baton_wait_duration",
            times::WAITS,
            "From a session's request to the moment at which it has a backend, of each hand-over",
        ),
        (
            "pg_baton_transaction_duration",
            times::TRANSACTIONS,
            "From a transaction's first message to its last answer",
        ),
        (
            "pg_baton_login_duration",
            times::LOGINS,
            "From a connection to the admission of its session",
        ),
    ] {
        let family = all.seconds(MetricType::Histogram, name, help);
        for row in &numbers.times {
            let database = shown.database(row.text(times::DATABASE));
            let sum = row.number(column + 1).unwrap_or(0) as f64 * US;
            family.add_times(database, row.text(column).unwrap_or_default(), sum);
        }
    }
    for (name, column, help) in [
        (
            "pg_baton_backends_gained",
            times::GROWN,
            "Backends that pools have gained, by reason",
        ),
        (
            "pg_baton_backends_lost",
            times::SHRUNK,
            "Backends that pools have lost, by reason",
        ),
    ] {
        let family = all.counter(name, help);
        for row in &numbers.times {
            let database = shown.database(row.text(times::DATABASE));
            for (reason, number) in row.counts(column) {
                family.add(
                    &[("database", database), ("reason", &reason)],
                    number as f64,
                );
            }
        }
    }
}

fn dispatcher(all: &mut Families, numbers: &Numbers) {
    let row = numbers.dispatchers.first();
    let number = |column: usize| row.and_then(|row| row.number(column)).map(|it| it as f64);
    let signed = |column: usize| row.and_then(|row| row.text(column)?.parse::<f64>().ok());
    all.seconds(
        GAUGE,
        "pg_baton_dispatcher_start_timestamp",
        "When the dispatcher started",
    )
    .set(signed(dispatchers::STARTED).map(|us| us * US + POSTGRES_EPOCH));
    all.gauge(
        "pg_baton_dispatcher_threads",
        "Threads of the dispatcher that serve sessions",
    )
    .set(number(dispatchers::THREADS));
    all.gauge(
        "pg_baton_connections",
        "Client sockets, with those of clients that are logging in",
    )
    .set(number(dispatchers::CONNECTIONS));
    all.counter("pg_baton_connections_accepted", "Connections accepted")
        .set(number(dispatchers::ACCEPTED));
    all.counter(
        "pg_baton_logins_failed",
        "Logins that were refused with an error, whatever role they named",
    )
    .set(number(dispatchers::LOGINS_FAILED));
    all.counter(
        "pg_baton_logins_abandoned",
        "Connections that have ended before a login was decided",
    )
    .set(number(dispatchers::ABANDONED));
    all.counter("pg_baton_backends_started", "Backends opened")
        .set(number(dispatchers::BACKENDS_STARTED));
    all.bytes(
        GAUGE,
        "pg_baton_context_memory",
        "Memory of the stored contexts of sessions",
    )
    .set(number(dispatchers::MEMORY));
    all.bytes(
        GAUGE,
        "pg_baton_context_memory_limit",
        "The most memory of stored contexts (pg_baton.session_memory)",
    )
    .set(number(dispatchers::MEMORY_LIMIT));
    let family = all.seconds(
        COUNTER,
        "pg_baton_dispatcher_cpu",
        "Processor time of the dispatcher",
    );
    for (mode, column) in [
        ("user", dispatchers::CPU_USER),
        ("system", dispatchers::CPU_SYSTEM),
    ] {
        if let Some(us) = number(column) {
            family.add(&[("mode", mode)], us * US);
        }
    }
    all.seconds(
        GAUGE,
        "pg_baton_dispatcher_longest_turn",
        "The longest processor time for which the dispatcher has not looked for events",
    )
    .set(number(dispatchers::LONGEST_TURN).map(|us| us * US));
    let by_server = row.and_then(|row| row.text(dispatchers::LOGIN_BY_SERVER));
    all.gauge(
        "pg_baton_login_by_server",
        "1 if backends authenticate clients in place of the dispatcher",
    )
    .set(by_server.map(|it| f64::from(u8::from(it == "t"))));
    if numbers.is_up {
        all.gauge("pg_baton_pauses", "Pauses that stand or begin")
            .set(Some(numbers.pauses.len() as f64));
        let waiting = numbers.pauses.iter();
        let waiting = waiting.filter_map(|row| row.number(pauses::WAITING));
        all.gauge("pg_baton_paused_sessions", "Sessions that wait in pauses")
            .set(Some(waiting.sum::<u64>() as f64));
    }
}

fn server(all: &mut Families, server: &Server) {
    let family = all.family(
        MetricType::Info,
        "pg_baton_build",
        None,
        "What is installed and runs",
    );
    let labels = [
        ("version", &server.version),
        ("dispatcher_version", &server.dispatcher_version),
        ("dispatcher_build", &server.dispatcher_build),
        ("server_version", &server.server_version),
    ];
    let labels = labels.map(|(name, value)| (name, value.clone()));
    family.samples.insert(labels.to_vec(), Value::Info);
    all.gauge("pg_baton_in_recovery", "1 on a standby")
        .set(Some(f64::from(u8::from(server.in_recovery))));
    all.counter(
        "pg_baton_dispatcher_restarts",
        "Dispatchers started since the server started, without the first",
    )
    .set(Some(f64::from(server.dispatcher_starts.saturating_sub(1))));
    let known = |number: u64| (number != 0).then_some(number as f64);
    all.gauge(
        "pg_baton_dispatcher_open_descriptors",
        "Open file descriptors of the dispatcher",
    )
    .set(known(server.descriptors));
    all.gauge(
        "pg_baton_dispatcher_max_descriptors",
        "The most descriptors that it may open",
    )
    .set(known(server.descriptors_most));
    all.bytes(
        GAUGE,
        "pg_baton_dispatcher_resident_memory",
        "Resident memory of the dispatcher",
    )
    .set(known(server.resident_bytes));
}

/// Makes the text of each scrape.
pub struct Metrics {
    shown: Mutex<Shown>,
}

impl Metrics {
    pub fn new() -> Metrics {
        Metrics {
            shown: Mutex::default(),
        }
    }

    pub fn text(&self, numbers: &Numbers) -> Bytes {
        let mut all = Families::default();
        all.gauge("pg_baton_up", "1 if the dispatcher has answered")
            .set(Some(f64::from(u8::from(numbers.is_up))));
        all.seconds(
            GAUGE,
            "pg_baton_scrape_duration",
            "How long the dispatcher and the launcher took to answer",
        )
        .set(Some(numbers.took.as_secs_f64()));
        if let Some(about) = &numbers.server {
            server(&mut all, about);
        }
        dispatcher(&mut all, numbers);
        if let Ok(mut shown) = self.shown.lock() {
            shown.admit(numbers);
            roles(&mut all, numbers, &shown);
            sessions_and_backends(&mut all, numbers, &shown);
            databases(&mut all, numbers, &shown);
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(all));
        let mut text = String::new();
        // Writing into a String does not fail.
        let _ = encode(&mut text, &registry);
        Bytes::from(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics_row(role: &str, database: &str, transactions: u64) -> Row {
        let mut columns = vec!["0".to_owned(); 22];
        columns[statistics::ROLE] = role.to_owned();
        columns[statistics::DATABASE] = database.to_owned();
        columns[statistics::TRANSACTIONS] = transactions.to_string();
        columns[statistics::REFUSED_BY_STATE] = r#"{"28P01": 3, "53300": 4}"#.to_owned();
        Row::of(&columns.iter().map(String::as_str).collect::<Vec<&str>>())
    }

    fn text(metrics: &Metrics, rows: Vec<Row>) -> String {
        let numbers = Numbers {
            is_up: true,
            statistics: rows,
            ..Numbers::default()
        };
        String::from_utf8(metrics.text(&numbers).to_vec()).unwrap()
    }

    #[test]
    fn no_counter_decreases_when_other_roles_get_busy() {
        let metrics = Metrics::new();
        let mut first: Vec<Row> = (0..MOST_ROLES as u64)
            .map(|number| statistics_row(&format!("r{number}"), "d", number))
            .collect();
        let before = text(&metrics, first.clone());
        assert!(before.contains(r#"pg_baton_transactions_total{database="d",role="r7"} 7"#));
        assert!(!before.contains(r#"role="other""#));
        first.push(statistics_row("late", "d", 1_000_000));
        first.push(statistics_row("later", "d", 1_000_000));
        let after = text(&metrics, first);
        assert!(after.contains(r#"pg_baton_transactions_total{database="d",role="r0"} 0"#));
        let others = r#"pg_baton_transactions_total{database="other",role="other"} 2000000"#;
        assert!(after.contains(others), "{after}");
        assert!(!after.contains("late"));
        assert!(after.contains(r#"pg_baton_logins_refused_total{sqlstate="28P01"} 306"#));
    }

    #[test]
    fn a_role_can_not_write_a_sample() {
        let role = "a\"} 1\n# EOF\\";
        let text = text(&Metrics::new(), vec![statistics_row(role, "d", 5)]);
        let expected = r##"pg_baton_transactions_total{database="d",role="a\"} 1\n# EOF\\"} 5"##;
        assert!(text.contains(expected), "{text}");
        assert_eq!(text.matches("\n# EOF").count(), 1);
    }

    #[test]
    fn histograms_are_cumulative() {
        let counts: Vec<String> = (0..26).map(|_| "2".to_owned()).collect();
        let columns = [
            "d",
            &counts.join(" "),
            "3000000",
            "",
            "0",
            "",
            "0",
            "{}",
            "{}",
        ];
        let numbers = Numbers {
            is_up: true,
            statistics: vec![statistics_row("r", "d", 1)],
            times: vec![Row::of(&columns)],
            ..Numbers::default()
        };
        let text = Metrics::new().text(&numbers);
        let text = String::from_utf8(text.to_vec()).unwrap();
        let name = "pg_baton_wait_duration_seconds";
        for line in [
            format!(r#"{name}_sum{{database="d"}} 3.0"#),
            format!(r#"{name}_count{{database="d"}} 52"#),
            format!(r#"{name}_bucket{{le="+Inf",database="d"}} 52"#),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
    }
}
