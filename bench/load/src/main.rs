//! `baton-load`: a closed-loop load generator for very many sessions.
//!
//! pgbench polls all of its sockets for each answer, so from some hundred clients on it
//! measures itself. This program waits in epoll: an idle session costs nothing. Its transaction
//! is pgbench's select-only, in the simple, extended or prepared form, unless options make it
//! more like an application's: several statements, many prepared statements in a session,
//! settings. It logs in only by trust.
//!
//! Each thread owns its sessions for life; threads share nothing except the moments at which
//! measuring starts and ends. The report is one line of JSON on standard output.

mod canned;
mod drive;
mod histogram;
mod random;
mod script;
mod span;
mod system;
mod wire;

use anyhow::{bail, Result};
use clap::{Parser, ValueEnum};
use drive::{Driver, Outcome};
use histogram::Histogram;
use script::{Script, StockKind};
use span::Span;
use std::io::{BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs transactions on many sessions at once.
#[derive(Parser, Clone)]
#[command(version, about)]
pub struct Arguments {
    /// Address of the server or pool
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port of the server or pool
    #[arg(long, default_value_t = 5432)]
    port: u16,
    /// User to log in as; only trust authentication is supported
    #[arg(long, default_value = "demo")]
    user: String,
    /// Database with pgbench's tables
    #[arg(long, default_value = "demo")]
    database: String,
    /// Number of sessions
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    clients: u32,
    /// Number of sessions that work; the others stay idle (default: all)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    working: Option<u32>,
    /// Log in as this many users in turn, whose names are the user's, _ and a number from 1 on
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    users: u32,
    /// Mean pause in milliseconds between two transactions of a session; pauses vary from half
    /// to one and a half times the mean
    #[arg(long, default_value_t = 0.0)]
    think: f64,
    /// Use a new session for each transaction: its time begins with the login
    #[arg(long)]
    reconnect: bool,
    /// Log all sessions in at once, with one transaction each: times are those from the start
    /// to the answer
    #[arg(long, conflicts_with_all = ["reconnect", "think", "working", "marks", "idle"])]
    storm: bool,
    /// The statement of a transaction, in place of pgbench's
    #[arg(long, conflicts_with_all = ["stock", "own", "statements", "mixed", "protocol", "temporary_table"])]
    text: Option<String>,
    /// Begin without waiting until all sessions have had an answer, however long some may wait
    #[arg(long)]
    partial: bool,
    /// Seconds within which all sessions have to be logged in
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=3600))]
    login_limit: u64,
    /// Threads over which the sessions are spread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// How a transaction is sent
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,
    /// Length of the measurement in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Length of the warm-up in seconds; longer if a session has had no answer yet
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Scale of pgbench's tables
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    scale: u32,
    /// Number of different statements in the stock
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    stock: u32,
    /// Statements of the stock that each session uses, its own random choice
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    own: u32,
    /// Statements in a transaction, each a round trip; with more than one, BEGIN and COMMIT
    /// enclose them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    statements: u32,
    /// Add joins, updates and inserts to the stock
    #[arg(long)]
    mixed: bool,
    /// Use calls of the functions of bench/functions.sql as the stock
    #[arg(long, conflicts_with_all = ["mixed", "temporary_table", "text"])]
    functions: bool,
    /// Make each transaction create, fill and read a temporary table with on commit drop
    #[arg(long, conflicts_with_all = ["stock", "own", "statements", "mixed", "protocol"])]
    temporary_table: bool,
    /// Let each session set app.tenant_id, statement_timeout and timezone to values of its own
    /// at login
    #[arg(long)]
    settings: bool,
    /// When a session prepares its statements
    #[arg(long, value_enum, default_value_t = Prepare::Login)]
    prepare: Prepare,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print a line when measuring begins and when it ends; then keep the sessions open until a
    /// line comes on standard input
    #[arg(long)]
    marks: bool,
    /// Log all sessions in, report that, and hold them until standard input ends
    #[arg(long)]
    idle: bool,
    /// Be a server of canned answers on this address and port until standard input ends: shows
    /// what a client alone can do
    #[arg(long, conflicts_with = "idle")]
    canned: bool,
}

/// The values of pgbench's --protocol.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Protocol {
    /// One Query message
    Simple,
    /// Parse, Bind, Describe, Execute, Sync
    Extended,
    /// Parse once; then Bind, Describe, Execute, Sync
    Prepared,
}

/// When statements are prepared.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Prepare {
    /// All statements, before the first transaction
    Login,
    /// Each statement with its first use, in the same batch
    Use,
}

impl Arguments {
    /// The script of its sessions.
    pub fn script(&self) -> Script {
        Script {
            protocol: self.protocol,
            prepare: self.prepare,
            scale: self.scale,
            stock: self.stock,
            own: self.own,
            statements: self.statements,
            stock_kind: match (self.functions, self.mixed) {
                (true, _) => StockKind::Functions,
                (false, true) => StockKind::Mixed,
                (false, false) => StockKind::Reads,
            },
            temporary: self.temporary_table,
            settings: self.settings,
            text: self.text.clone(),
        }
    }

    /// The user's name for logins.
    pub fn user_name(&self, user: u32) -> String {
        match self.users {
            0 => self.user.clone(),
            _ => format!("{}_{}", self.user, user + 1),
        }
    }

    /// How many of a thread's sessions work.
    pub fn working_of(&self, thread: u32, share: u32) -> u32 {
        let working = self.working.unwrap_or(self.clients).min(self.clients);
        share_of(working, self.threads, thread).min(share)
    }
}

fn main() -> std::process::ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton-load: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if !(arguments.seconds > 0.0 && arguments.warmup >= 0.0 && arguments.think >= 0.0) {
        bail!("the seconds must be more than none");
    }
    if arguments.reconnect
        && arguments.prepare == Prepare::Login
        && arguments.protocol == Protocol::Prepared
    {
        bail!("who reconnects prepares with the first use");
    }
    if arguments.own > arguments.stock {
        bail!("a session cannot have more statements than there are");
    }
    let address = SocketAddr::new(arguments.host, arguments.port);
    if arguments.canned {
        return answer(address);
    }
    if arguments.storm {
        return storm(arguments, address);
    }
    let (warmup, seconds) = (
        Duration::from_secs_f64(arguments.warmup),
        Duration::from_secs_f64(arguments.seconds),
    );
    let barrier = Barrier::new(arguments.threads as usize + 1);
    let span = Span::new(arguments.threads);
    let start = Instant::now();
    let mut connected_after = Duration::ZERO;
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..arguments.threads)
            .map(|thread| {
                let share = share_of(arguments.clients, arguments.threads, thread);
                let (barrier, span) = (&barrier, &span);
                scope.spawn(move || one_thread(arguments, address, thread, share, barrier, span))
            })
            .collect();
        barrier.wait();
        connected_after = start.elapsed();
        if arguments.idle && !span.has_failed() {
            hold(arguments.clients);
        } else if span.begin(warmup, seconds) {
            mark(arguments, "measuring");
            span.wait_for_end();
            mark(arguments, "measured");
            if arguments.marks {
                wait_for_line();
            }
        }
        barrier.wait();
        let joined = handles.into_iter().map(|handle| handle.join());
        joined
            .map(|result| result.unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let mut all = Outcome::default();
    for outcome in outcomes {
        all.add(outcome?);
    }
    if span.has_failed() {
        bail!("some sessions were not served");
    }
    if let Some(error) = &all.first_error {
        eprintln!("baton-load: first error: {error}");
    }
    if !arguments.idle {
        println!("{}", report(arguments, &all, connected_after));
    }
    Ok(())
}

/// Logs all threads' sessions in at once. Blocks until all were served.
fn storm(arguments: &Arguments, address: SocketAddr) -> Result<()> {
    let start = Instant::now();
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..arguments.threads)
            .map(|thread| {
                let share = share_of(arguments.clients, arguments.threads, thread);
                scope.spawn(move || Driver::storm(arguments, address, thread, share, start))
            })
            .collect();
        let joined = handles.into_iter().map(|handle| handle.join());
        joined
            .map(|result| result.unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let took = start.elapsed();
    let mut all = Outcome::default();
    for outcome in outcomes {
        all.add(outcome?);
    }
    if let Some(error) = &all.first_error {
        eprintln!("baton-load: first error: {error}");
    }
    println!("{}", report(arguments, &all, took));
    Ok(())
}

/// Logs in, waits for the other threads, works (or holds), and leaves. It always reaches both
/// barriers; otherwise the other threads would wait for ever.
fn one_thread(
    arguments: &Arguments,
    address: SocketAddr,
    thread: u32,
    share: u32,
    barrier: &Barrier,
    span: &Span,
) -> Result<Outcome> {
    let connected = Driver::connect(arguments, address, thread, share);
    if connected.is_err() {
        span.fail();
    }
    barrier.wait();
    let ended = connected.map(|mut driver| {
        let outcome = if arguments.idle || span.has_failed() {
            Ok(Outcome::default())
        } else {
            driver.work(span)
        };
        (driver, outcome)
    });
    if matches!(&ended, Ok((_, Err(_)))) {
        span.fail();
    }
    barrier.wait();
    let (mut driver, outcome) = ended?;
    driver.finish();
    outcome
}

/// Prints what begins on standard output, if `--marks` is given.
fn mark(arguments: &Arguments, what: &str) {
    if arguments.marks {
        println!("{what}");
        let _ = std::io::stdout().flush();
    }
}

fn wait_for_line() {
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
}

/// Answers clients until standard input ends.
fn answer(address: SocketAddr) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| canned::serve(address, &stop));
        wait_for_end_of_input();
        stop.store(true, Ordering::Relaxed);
        let ended = server.join();
        ended.unwrap_or_else(|_| bail!("the server panicked"))
    })
}

fn wait_for_end_of_input() {
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
}

/// Reports that the sessions are open; returns when standard input ends. Blocks.
fn hold(clients: u32) {
    println!("{{\"holding\": {clients}}}");
    let _ = std::io::stdout().flush();
    wait_for_end_of_input();
}

fn share_of(clients: u32, threads: u32, thread: u32) -> u32 {
    clients / threads + u32::from(thread < clients % threads)
}

fn report(arguments: &Arguments, all: &Outcome, connected_after: Duration) -> String {
    let mut users = all.by_user.clone();
    users.resize(arguments.users.max(1) as usize, 0);
    users.sort_unstable();
    let tps_of_user = |place: usize| users[place] as f64 / arguments.seconds;
    let latency = |share: f64| Histogram::milliseconds(all.latency.quantile(share));
    format!(
        "{{\"clients\": {}, \"transactions\": {}, \"tps\": {:.1}, \"errors\": {}, \
         \"connect_seconds\": {:.3}, \"latency_ms\": {{\"mean\": {:.3}, \"p50\": {:.3}, \
         \"p95\": {:.3}, \"p99\": {:.3}, \"max\": {:.3}}}, \"least_served\": {}, \
         \"users_tps\": {{\"least\": {:.1}, \"median\": {:.1}, \"most\": {:.1}}}}}",
        arguments.clients,
        all.latency.count(),
        all.latency.count() as f64 / arguments.seconds,
        all.errors,
        connected_after.as_secs_f64(),
        Histogram::milliseconds(all.latency.mean()),
        latency(0.50),
        latency(0.95),
        latency(0.99),
        latency(1.0),
        all.least_served,
        tps_of_user(0),
        tps_of_user(users.len() / 2),
        tps_of_user(users.len() - 1),
    )
}

#[cfg(test)]
mod tests {
    use super::share_of;

    #[test]
    fn threads_share_all_clients() {
        for (clients, threads) in [(1, 1), (10, 3), (7, 8), (10_000, 2)] {
            let sum: u32 = (0..threads)
                .map(|thread| share_of(clients, threads, thread))
                .sum();
            assert_eq!(sum, clients);
        }
    }
}
