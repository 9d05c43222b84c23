//! What the page shows: a row of numbers each second, the tables below the charts, and events.
//!
//! The dispatcher is asked each second while a page is open, and every ten seconds for the history
//! of a day. All of this is made of the same answers as `/metrics`, and of the sessions that are not idle.

use crate::ask::{Asker, Numbers, Row};
use crate::columns::{at_work, dispatchers, pauses, pools, sessions, statistics, times};
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde_json::{json, Value};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, Notify};
use tokio::time::{timeout, Instant};

const WITH_PAGES: Duration = Duration::from_secs(1);
const WITHOUT_PAGES: Duration = Duration::from_secs(10);
/// History has a row for each of these...
const STEP_S: u64 = 10;
/// ...and of rows older than `FINE_S` one for each of these.
const COARSE_STEP_S: u64 = 60;
const FINE_S: u64 = 3600;
const HISTORY_S: u64 = 24 * 3600;
const MOST_EVENTS: usize = 200;
const MOST_PAGES: usize = 16;
/// A page that has not taken so many messages is closed. It comes again by itself.
const MOST_UNSENT: usize = 16;
const LONGEST_TABLE: usize = 10;

/// The columns of a row, after its time in seconds since 1970. Rates are per second, times are in seconds.
pub const COLUMNS: [&str; 14] = [
    "transactions",
    "logins",
    "refused",
    "wait_p50",
    "wait_p99",
    "busy",
    "dedicated",
    "starting",
    "free",
    "active",
    "in_transaction",
    "waiting",
    "idle",
    "longest_wait",
];

const SECOND_US: f64 = 1e6;

type Name = (Option<String>, Option<String>);

fn name(row: &Row, user: usize, database: usize) -> Name {
    let owned = |column| row.text(column).map(str::to_owned);
    (owned(user), owned(database))
}

fn shown((user, database): &Name) -> String {
    match (user, database) {
        (Some(user), Some(database)) => format!("{user} in {database}"),
        _ => "other users".to_owned(),
    }
}

/// Counts by reason.
type Reasons = BTreeMap<String, u64>;

fn add(sum: &mut Reasons, counts: Reasons) {
    for (why, count) in counts {
        *sum.entry(why).or_default() += count;
    }
}

/// How many more there are, by reason.
fn more(before: Option<&Reasons>, now: &Reasons) -> Vec<(String, u64)> {
    let grown = |(why, count): (&String, &u64)| {
        let earlier = before.and_then(|before| before.get(why)).copied();
        let more = count.checked_sub(earlier.unwrap_or(0))?;
        (more > 0).then(|| (why.clone(), more))
    };
    now.iter().filter_map(grown).collect()
}

/// What is counted of a user in a database.
#[derive(Clone, Default)]
struct Counts {
    transactions: u64,
    time_us: u64,
    logins: u64,
    refused: u64,
    refused_by_state: Reasons,
    evictions: u64,
    hand_overs: u64,
    hand_over_time_us: u64,
}

/// The counts of a moment, from which rates and events are made.
#[derive(Clone, Default)]
struct Mark {
    /// None: the dispatcher has not answered.
    at: Option<Instant>,
    dispatcher_starts: Option<u32>,
    pauses: usize,
    /// Several of the dispatcher's rows may have the same names.
    of: BTreeMap<Name, Counts>,
    /// Backends that the pools of a database have gained and lost.
    gained: BTreeMap<Option<String>, Reasons>,
    lost: BTreeMap<Option<String>, Reasons>,
    /// Numbers of sessions, by cause for those that keep a backend.
    causes: BTreeMap<(Name, String), u64>,
}

impl Mark {
    fn of(numbers: &Numbers) -> Mark {
        let mut mark = Mark {
            at: numbers.is_up.then(Instant::now),
            dispatcher_starts: numbers.server.as_ref().map(|it| it.dispatcher_starts),
            pauses: numbers.pauses.len(),
            ..Mark::default()
        };
        for row in &numbers.statistics {
            let number = |column| row.number(column).unwrap_or(0);
            let names = name(row, statistics::ROLE, statistics::DATABASE);
            let counts = mark.of.entry(names).or_default();
            counts.transactions += number(statistics::TRANSACTIONS);
            counts.time_us += number(statistics::TRANSACTION_TIME);
            counts.logins += number(statistics::LOGINS);
            counts.refused += number(statistics::REFUSED);
            counts.evictions += number(statistics::EVICTIONS);
            counts.hand_overs += number(statistics::DIRECT) + number(statistics::QUEUED);
            counts.hand_over_time_us += number(statistics::HAND_OVER_TIME);
            let refused = row.counts(statistics::REFUSED_BY_STATE);
            add(&mut counts.refused_by_state, refused);
        }
        for row in &numbers.times {
            let database = row.text(times::DATABASE).map(str::to_owned);
            let gained = mark.gained.entry(database.clone()).or_default();
            add(gained, row.counts(times::GROWN));
            let lost = mark.lost.entry(database).or_default();
            add(lost, row.counts(times::SHRUNK));
        }
        for row in &numbers.sessions {
            if let Some(cause) = row.text(sessions::CAUSE) {
                let names = name(row, sessions::ROLE, sessions::DATABASE);
                let count = mark.causes.entry((names, cause.to_owned())).or_default();
                *count += row.number(sessions::COUNT).unwrap_or(0);
            }
        }
        mark
    }

    fn seconds_since(&self, before: &Mark) -> Option<f64> {
        let seconds = self.at?.duration_since(before.at?).as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }

    /// How many a second since then; None if the counts have begun anew.
    fn rate(&self, before: &Mark, count: fn(&Counts) -> u64) -> Option<f64> {
        let sum = |mark: &Mark| mark.of.values().map(count).sum::<u64>();
        let more = sum(self).checked_sub(sum(before))?;
        Some(more as f64 / self.seconds_since(before)?)
    }
}

/// The numbers of a row that are not rates.
#[derive(Default)]
struct Gauges {
    wait_us: Option<(u64, u64)>,
    busy: u64,
    dedicated: u64,
    starting: u64,
    free: u64,
    longest_wait_us: u64,
    by_state: BTreeMap<String, u64>,
}

impl Gauges {
    fn of(numbers: &Numbers) -> Gauges {
        let mut gauges = Gauges::default();
        for row in &numbers.pools {
            let number = |column| row.number(column).unwrap_or(0);
            gauges.busy += number(pools::BUSY);
            gauges.dedicated += number(pools::DEDICATED);
            gauges.starting += number(pools::STARTING);
            gauges.free += number(pools::IDLE);
            gauges.longest_wait_us = gauges.longest_wait_us.max(number(pools::LONGEST_WAIT));
            // The pool whose sessions wait longest.
            let waits = (row.number(pools::WAIT_P99)).zip(row.number(pools::WAIT_P50));
            gauges.wait_us = gauges.wait_us.max(waits);
        }
        for row in &numbers.sessions {
            let state = row.text(sessions::STATE).unwrap_or("").to_owned();
            *gauges.by_state.entry(state).or_default() += row.number(sessions::COUNT).unwrap_or(0);
        }
        gauges
    }

    fn sessions(&self, state: &str) -> u64 {
        self.by_state.get(state).copied().unwrap_or(0)
    }
}

/// A row: the time, then [`COLUMNS`].
fn row(time_s: u64, numbers: &Numbers, before: &Mark, now: &Mark) -> Value {
    if !numbers.is_up {
        let mut row = vec![json!(time_s)];
        row.resize(1 + COLUMNS.len(), Value::Null);
        return Value::Array(row);
    }
    let gauges = Gauges::of(numbers);
    let seconds = |us: u64| us as f64 / SECOND_US;
    json!([
        time_s,
        now.rate(before, |counts| counts.transactions),
        now.rate(before, |counts| counts.logins),
        now.rate(before, |counts| counts.refused),
        gauges.wait_us.map(|(_, half)| seconds(half)),
        gauges.wait_us.map(|(most, _)| seconds(most)),
        gauges.busy,
        gauges.dedicated,
        gauges.starting,
        gauges.free,
        gauges.sessions("active"),
        gauges.sessions("idle in transaction"),
        gauges.sessions("waiting"),
        gauges.sessions("idle") + gauges.sessions("login"),
        seconds(gauges.longest_wait_us),
    ])
}

// ---- The tables ------------------------------------------------------------------

fn state(numbers: &Numbers) -> (Option<&'static str>, String) {
    let server = numbers.server.as_ref();
    if server.is_some_and(|server| server.is_stopping) {
        return (Some("The server is shutting down"), String::new());
    }
    if !numbers.is_up {
        return (Some("The dispatcher does not answer"), String::new());
    }
    let held: u64 = numbers
        .pauses
        .iter()
        .filter_map(|row| row.number(pauses::WAITING))
        .sum();
    match numbers.pauses.len() {
        0 => (None, "accepting logins".to_owned()),
        _ => (None, format!("paused: {held} sessions wait for its end")),
    }
}

fn sessions_in(sessions: &[Row], states: &[&str]) -> Vec<Value> {
    let age_us = |row: &&Row| row.number(at_work::STATE_AGE).unwrap_or(0);
    let wanted = |row: &&Row| states.contains(&row.text(at_work::STATE).unwrap_or(""));
    let mut rows: Vec<&Row> = sessions.iter().filter(wanted).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(age_us(row)));
    rows.truncate(LONGEST_TABLE);
    let shown = |row: &&Row| {
        json!({
            "pid": row.text(at_work::PID), "user": row.text(at_work::ROLE), "database": row.text(at_work::DATABASE),
            "application": row.text(at_work::APPLICATION), "state": row.text(at_work::STATE),
            "cause": row.text(at_work::CAUSE), "seconds": age_us(row) as f64 / SECOND_US,
        })
    };
    rows.iter().map(shown).collect()
}

/// Which sessions have the backends that others wait for.
fn holders(numbers: &Numbers) -> String {
    let waited_for = |row: &&Row| row.number(pools::WAITING).unwrap_or(0) > 0;
    let one = |row: &Row| {
        let number = |column| row.number(column).unwrap_or(0);
        format!(
            "{}: {} wait for {} backends at work and {} dedicated.",
            row.text(pools::DATABASE).unwrap_or(""),
            number(pools::WAITING),
            number(pools::BUSY),
            number(pools::DEDICATED)
        )
    };
    let all: Vec<String> = numbers.pools.iter().filter(waited_for).map(one).collect();
    all.join(" ")
}

fn users(numbers: &Numbers, before: &Mark, now: &Mark) -> Vec<Value> {
    let Some(seconds) = now.seconds_since(before) else {
        return Vec::new();
    };
    let mut sessions: BTreeMap<Name, u64> = BTreeMap::new();
    for row in &numbers.sessions {
        let count = row.number(sessions::COUNT).unwrap_or(0);
        *sessions
            .entry(name(row, sessions::ROLE, sessions::DATABASE))
            .or_default() += count;
    }
    let grown = |(name, counts): (&Name, &Counts)| {
        let earlier = before.of.get(name);
        let (transactions, time_us) = earlier.map_or((0, 0), |it| (it.transactions, it.time_us));
        let transactions = counts.transactions.checked_sub(transactions)?;
        let time_us = counts.time_us.checked_sub(time_us)?;
        (transactions > 0 || time_us > 0).then(|| (time_us, transactions, name.clone()))
    };
    let mut users: Vec<(u64, u64, Name)> = now.of.iter().filter_map(grown).collect();
    let all_us = users.iter().map(|user| user.0).sum::<u64>().max(1);
    users.sort_by(|a, b| b.cmp(a));
    users.truncate(LONGEST_TABLE);
    let shown = |(time_us, transactions, name): &(u64, u64, Name)| {
        json!({
            "user": name.0, "database": name.1, "transactions": *transactions as f64 / seconds,
            "share": *time_us as f64 / all_us as f64, "sessions": sessions.get(name).copied().unwrap_or(0),
        })
    };
    users.iter().map(shown).collect()
}

/// How near the dispatcher is to its limits, and how long hand-overs take.
fn dispatcher(numbers: &Numbers, before: &Mark, now: &Mark) -> Value {
    let nothing = Row::default();
    let row = numbers.dispatchers.first().unwrap_or(&nothing);
    let number = |column| row.number(column);
    let server = numbers.server.as_ref();
    let known = |count: Option<u64>| count.filter(|count| *count > 0);
    let time = now.rate(before, |counts| counts.hand_over_time_us);
    let hand_over_us = time.zip(now.rate(before, |counts| counts.hand_overs));
    let hand_over_us = hand_over_us.and_then(|(us, count)| (count > 0.0).then(|| us / count));
    json!({
        "memory": number(dispatchers::MEMORY), "memory_limit": number(dispatchers::MEMORY_LIMIT),
        "descriptors": known(server.map(|server| server.descriptors)),
        "descriptors_limit": known(server.map(|server| server.descriptors_most)),
        "longest_turn": number(dispatchers::LONGEST_TURN).map(|us| us as f64 / SECOND_US),
        "hand_over": hand_over_us.map(|us| us / SECOND_US),
    })
}

/// What a restart of the server would cost.
fn restart(numbers: &Numbers) -> Vec<Value> {
    let sum = |wanted: &dyn Fn(&Row) -> bool| -> u64 {
        let rows = numbers.sessions.iter().filter(|row| wanted(row));
        rows.filter_map(|row| row.number(sessions::COUNT)).sum()
    };
    let is_at_work = |row: &Row| {
        ["active", "idle in transaction"].contains(&row.text(sessions::STATE).unwrap_or(""))
    };
    let lines = [
        ("Sessions that end", sum(&|_| true)),
        ("Transactions that are rolled back", sum(&is_at_work)),
    ];
    match lines[0].1 {
        0 => Vec::new(),
        _ => lines
            .iter()
            .map(|(what, count)| json!([what, count]))
            .collect(),
    }
}

fn details(numbers: &Numbers, sessions: &[Row], before: &Mark, now: &Mark) -> Value {
    let (problem, state) = state(numbers);
    let server = numbers.server.as_ref();
    let server = server.map(|server| {
        let role = if server.in_recovery {
            "standby"
        } else {
            "primary"
        };
        format!("PostgreSQL {}, {role}", server.server_version)
    });
    let mut by_cause: BTreeMap<&String, u64> = BTreeMap::new();
    for ((_, cause), count) in &now.causes {
        *by_cause.entry(cause).or_default() += count;
    }
    let mut by_cause: Vec<(&String, u64)> = by_cause.into_iter().collect();
    by_cause.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    json!({
        "server": server.unwrap_or_default(), "problem": problem, "state": state,
        "waits": sessions_in(sessions, &["waiting"]), "holders": holders(numbers),
        "transactions": sessions_in(sessions, &["active", "idle in transaction"]),
        "users": users(numbers, before, now), "causes": by_cause, "restart": restart(numbers),
        "dispatcher": dispatcher(numbers, before, now),
    })
}

// ---- Events ----------------------------------------------------------------------

fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// What has happened between two moments.
fn events(before: &Mark, now: &Mark) -> Vec<String> {
    let mut events = Vec::new();
    let starts = before.dispatcher_starts.zip(now.dispatcher_starts);
    let is_another = starts.is_some_and(|(earlier, later)| earlier != later);
    if is_another {
        events.push("Another dispatcher has started.".to_owned());
    }
    match (before.at, now.at) {
        (Some(_), None) => events.push("The dispatcher does not answer.".to_owned()),
        (None, Some(_)) => events.push("The dispatcher answers.".to_owned()),
        _ => {}
    }
    if is_another || before.at.is_none() || now.at.is_none() {
        return events;
    }
    match (before.pauses, now.pauses) {
        (0, 1..) => events.push("A pause has begun.".to_owned()),
        (1.., 0) => events.push("The pause is over.".to_owned()),
        _ => {}
    }
    for (word, before, now) in [
        ("gained", &before.gained, &now.gained),
        ("lost", &before.lost, &now.lost),
    ] {
        for (database, reasons) in now {
            let name = database.as_deref().unwrap_or("other databases");
            for (why, count) in more(before.get(database), reasons) {
                let backends = counted(count, "backend");
                events.push(format!("{name} has {word} {backends}: {why}."));
            }
        }
    }
    for (name, counts) in &now.of {
        let (earlier, user) = (before.of.get(name), shown(name));
        let refused = earlier.map(|it| &it.refused_by_state);
        for (state, count) in more(refused, &counts.refused_by_state) {
            let logins = counted(count, "login");
            events.push(format!("{logins} of {user} refused ({state})."));
        }
        let evictions = earlier.map_or(0, |it| it.evictions);
        if let count @ 1.. = counts.evictions.saturating_sub(evictions) {
            let sessions = counted(count, "dedicated session");
            events.push(format!(
                "{sessions} of {user} ended, because others waited."
            ));
        }
    }
    for (key, count) in &now.causes {
        if let count @ 1.. = count.saturating_sub(before.causes.get(key).copied().unwrap_or(0)) {
            let (user, cause) = (shown(&key.0), &key.1);
            let verb = if count == 1 {
                "keeps its"
            } else {
                "keep their"
            };
            let sessions = counted(count, "session");
            events.push(format!("{sessions} of {user} {verb} backend: {cause}."));
        }
    }
    events
}

// ---- A day -----------------------------------------------------------------------

/// Rows by time: one for each `STEP_S`, and of those older than `FINE_S` one for each `COARSE_STEP_S`.
#[derive(Default)]
struct History(VecDeque<(u64, Value)>);

impl History {
    fn wants(&self, time_s: u64) -> bool {
        self.0
            .back()
            .is_none_or(|(last, _)| time_s >= last + STEP_S)
    }

    fn add(&mut self, time_s: u64, row: Value) {
        self.0.push_back((time_s, row));
        let mut last = None;
        self.0.retain(|(at, _)| {
            let is_fine = at + FINE_S >= time_s;
            let stays = at + HISTORY_S >= time_s
                && (is_fine || last.is_none_or(|last| *at >= last + COARSE_STEP_S));
            if stays {
                last = Some(*at);
            }
            stays
        });
    }
}

// ---- Pages -----------------------------------------------------------------------

/// The body of an answer: whole, or what a page gets as it happens.
pub enum Answer {
    Whole(Full<Bytes>),
    Live(mpsc::Receiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Answer::Whole(body) => Pin::new(body).poll_frame(context),
            Answer::Live(messages) => messages
                .poll_recv(context)
                .map(|it| it.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole(body) => body.is_end_stream(),
            Answer::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(body) => body.size_hint(),
            Answer::Live(_) => SizeHint::default(),
        }
    }
}

/// A server-sent event.
fn message(kind: &str, data: &Value) -> String {
    format!("event: {kind}\ndata: {data}\n\n")
}

#[derive(Default)]
struct State {
    history: History,
    events: VecDeque<Value>,
    pages: Vec<mpsc::Sender<Bytes>>,
}

/// What all pages share.
#[derive(Default)]
pub struct Live {
    state: Mutex<State>,
    /// A page has come.
    page: Notify,
}

impl Live {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a page begins with: the rows of a day, and the last events.
    pub fn history(&self) -> Bytes {
        let state = self.state();
        let rows: Vec<&Value> = state.history.0.iter().map(|(_, row)| row).collect();
        Bytes::from(json!({"columns": COLUMNS, "rows": rows, "events": state.events}).to_string())
    }

    /// Another page; None if there are too many.
    pub fn open(&self) -> Option<Answer> {
        let pages = &mut self.state().pages;
        pages.retain(|page| !page.is_closed());
        if pages.len() >= MOST_PAGES {
            return None;
        }
        let (sender, receiver) = mpsc::channel(MOST_UNSENT);
        pages.push(sender);
        self.page.notify_one();
        Some(Answer::Live(receiver))
    }

    fn has_pages(&self) -> bool {
        let pages = &mut self.state().pages;
        pages.retain(|page| !page.is_closed());
        !pages.is_empty()
    }

    fn send(&self, text: String) {
        let bytes = Bytes::from(text);
        (self.state().pages).retain(|page| page.try_send(bytes.clone()).is_ok());
    }

    fn keep(&self, events: &[Value]) {
        let kept = &mut self.state().events;
        kept.extend(events.iter().cloned());
        let surplus = kept.len().saturating_sub(MOST_EVENTS);
        kept.drain(..surplus);
    }

    /// Asks, for good.
    pub async fn run(&self, asker: Arc<Asker>) {
        let mut before: Option<Arc<Numbers>> = None;
        let mut second = Mark::default();
        // The older one is ten to twenty seconds old.
        let mut marks = [Mark::default(), Mark::default()];
        loop {
            let has_pages = self.has_pages();
            let pause = if has_pages { WITH_PAGES } else { WITHOUT_PAGES };
            let _ = timeout(pause, self.page.notified()).await;
            let has_pages = self.has_pages();
            let numbers = asker.numbers().await;
            if before
                .as_ref()
                .is_some_and(|before| Arc::ptr_eq(before, &numbers))
            {
                continue;
            }
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let time_s = now.as_secs();
            let mark = Mark::of(&numbers);
            let mut text = message("row", &row(time_s, &numbers, &second, &mark));
            let happened: Vec<Value> = (before.iter().flat_map(|_| events(&second, &mark)))
                .map(|text| json!({"t": time_s, "text": text}))
                .collect();
            if !happened.is_empty() {
                self.keep(&happened);
                text += &message("events", &Value::Array(happened));
            }
            if has_pages {
                let sessions = asker.sessions_at_work().await;
                let details = details(&numbers, &sessions, &marks[0], &mark);
                text += &message("details", &details);
            }
            self.send(text);
            if self.state().history.wants(time_s) {
                let row = row(time_s, &numbers, &marks[1], &mark);
                self.state().history.add(time_s, row);
                marks.rotate_left(1);
                marks[1] = mark.clone();
            }
            second = mark;
            before = Some(numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Server;

    fn statistics(user: &str, transactions: &str, refused: &str) -> Row {
        let mut columns = ["0"; statistics::COUNT];
        (columns[0], columns[1]) = (user, "shop");
        columns[statistics::TRANSACTIONS] = transactions;
        columns[statistics::REFUSED_BY_STATE] = refused;
        Row::of(&columns)
    }

    fn numbers(statistics: Vec<Row>, sessions: Vec<Row>) -> Numbers {
        let server = Server {
            dispatcher_starts: 1,
            ..Server::default()
        };
        Numbers {
            server: Some(server),
            is_up: true,
            statistics,
            sessions,
            ..Numbers::default()
        }
    }

    #[test]
    fn history_is_fine_for_an_hour_and_ends_after_a_day() {
        let mut history = History::default();
        let end = 2 * HISTORY_S;
        for time_s in 0..end {
            if history.wants(time_s) {
                history.add(time_s, Value::Null);
            }
        }
        let times: Vec<u64> = history.0.iter().map(|(at, _)| *at).collect();
        assert!(times[0] >= end - HISTORY_S - STEP_S);
        let hour = times.partition_point(|at| at + FINE_S < end - STEP_S);
        assert!(times[..hour]
            .windows(2)
            .all(|pair| pair[1] - pair[0] == COARSE_STEP_S));
        assert!(times[hour..]
            .windows(2)
            .all(|pair| pair[1] - pair[0] == STEP_S));
        assert!(times.len() as u64 <= FINE_S / STEP_S + HISTORY_S / COARSE_STEP_S + 1);
    }

    #[test]
    fn counts_that_begin_anew_give_no_rate() {
        let earlier = Mark::of(&numbers(vec![statistics("app", "100", "{}")], vec![]));
        std::thread::sleep(Duration::from_millis(2));
        let later = Mark::of(&numbers(vec![statistics("app", "150", "{}")], vec![]));
        let transactions = |counts: &Counts| counts.transactions;
        let rate = later.rate(&earlier, transactions).unwrap();
        let sum = rate * later.seconds_since(&earlier).unwrap();
        assert!((sum - 50.0).abs() < 1e-6);
        assert_eq!(earlier.rate(&later, transactions), None);
        assert_eq!(later.rate(&Mark::default(), transactions), None);
    }

    #[test]
    fn events_are_what_differs_between_two_answers() {
        let session = |count| Row::of(&["app", "shop", "idle", "temporary object", count]);
        let before = numbers(
            vec![statistics("app", "1", r#"{"28P01": 1}"#)],
            vec![session("1")],
        );
        let now = numbers(
            vec![statistics("app", "1", r#"{"28P01": 3, "53300": 1}"#)],
            vec![session("2")],
        );
        assert_eq!(
            events(&Mark::of(&before), &Mark::of(&now)),
            [
                "2 logins of app in shop refused (28P01).",
                "1 login of app in shop refused (53300).",
                "1 session of app in shop keeps its backend: temporary object.",
            ]
        );
        let (before, now) = (Mark::of(&before), Mark::of(&now));
        assert!(events(&now, &now).is_empty() && events(&now, &before).is_empty());
        let mut gone = numbers(vec![], vec![]);
        gone.is_up = false;
        assert_eq!(
            events(&now, &Mark::of(&gone)),
            ["The dispatcher does not answer."]
        );
    }

    #[test]
    fn rows_of_the_same_names_count_together() {
        let one = |transactions, refused| statistics("other", transactions, refused);
        let before = numbers(vec![one("5", "{}"), one("7", r#"{"28000": 4}"#)], vec![]);
        let refused = r#"{"28000": 1}"#;
        let now = numbers(vec![one("6", refused), one("7", r#"{"28000": 4}"#)], vec![]);
        let (before, now) = (Mark::of(&before), Mark::of(&now));
        let expected = ["1 login of other in shop refused (28000)."];
        assert_eq!(events(&before, &now), expected);
        assert_eq!(now.of.values().map(|it| it.transactions).sum::<u64>(), 13);
    }

    #[test]
    fn a_page_that_takes_nothing_is_closed_and_so_is_one_too_many() {
        let live = Live::default();
        let pages: Vec<_> = (0..MOST_PAGES).map(|_| live.open().unwrap()).collect();
        assert!(live.open().is_none());
        for _ in 0..=MOST_UNSENT {
            live.send("text".to_owned());
        }
        assert!(!live.has_pages());
        drop(pages);
        assert!(live.open().is_some());
    }
}
