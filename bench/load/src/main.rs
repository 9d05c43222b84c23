//! `baton-load`: a closed-loop load generator for very many sessions.
//!
//! pgbench polls all of its sockets for each answer, so that from some hundred
//! clients on it measures itself.  This one waits in epoll: an idle session
//! costs it nothing.  It knows one transaction, pgbench's select-only, in the
//! simple, extended or prepared form, and one way to log in, trust.
//!
//! Each thread owns its sessions for life; threads share nothing but the
//! moments at which measuring starts and ends.  The report is one line of JSON
//! on standard output.

mod canned;
mod drive;
mod histogram;
mod session;
mod system;

use anyhow::{bail, Result};
use clap::{Parser, ValueEnum};
use drive::{Driver, Outcome};
use histogram::Histogram;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs pgbench's select-only transaction on many sessions at once.
#[derive(Parser, Clone)]
#[command(version, about)]
pub struct Arguments {
    /// Address of the server or pool
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Its port
    #[arg(long, default_value_t = 5432)]
    port: u16,
    /// User to log in as; nothing but trust is known
    #[arg(long, default_value = "demo")]
    user: String,
    /// Database with pgbench's tables
    #[arg(long, default_value = "demo")]
    database: String,
    /// Sessions
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    clients: u32,
    /// Threads to spread them over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// How a transaction is sent
    #[arg(long, value_enum, default_value_t = Protocol::Simple)]
    protocol: Protocol,
    /// Seconds measured
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before, not measured; longer if a session has had no answer yet
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Scale of pgbench's tables
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    scale: u32,
    /// Log all sessions in, say so, and hold them until standard input ends
    #[arg(long)]
    idle: bool,
    /// Be a server of canned answers on this address and port until standard
    /// input ends: what a client alone can do
    #[arg(long, conflicts_with = "idle")]
    canned: bool,
}

/// pgbench's --protocol.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Protocol {
    /// One Query message
    Simple,
    /// Parse, Bind, Describe, Execute, Sync
    Extended,
    /// Parse once; then Bind, Describe, Execute, Sync
    Prepared,
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
    if !(arguments.seconds > 0.0 && arguments.warmup >= 0.0) {
        bail!("the seconds must be more than none");
    }
    let address = SocketAddr::new(arguments.host, arguments.port);
    if arguments.canned {
        return answer(address);
    }
    let barrier = Barrier::new(arguments.threads as usize + 1);
    let failed = AtomicBool::new(false);
    let start = Instant::now();
    let mut connected_after = Duration::ZERO;
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..arguments.threads)
            .map(|thread| {
                let share = share_of(arguments.clients, arguments.threads, thread);
                let (barrier, failed) = (&barrier, &failed);
                scope.spawn(move || one_thread(arguments, address, thread, share, barrier, failed))
            })
            .collect();
        barrier.wait();
        connected_after = start.elapsed();
        if arguments.idle && !failed.load(Ordering::Relaxed) {
            hold(arguments.clients);
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
    if !arguments.idle {
        println!("{}", report(arguments, &all, connected_after));
    }
    Ok(())
}

/// Logs in, waits for the others, works (or holds), leaves.  Always meets both
/// barriers, or the others would wait for ever.
fn one_thread(
    arguments: &Arguments,
    address: SocketAddr,
    thread: u32,
    share: u32,
    barrier: &Barrier,
    failed: &AtomicBool,
) -> Result<Outcome> {
    let connected = Driver::connect(arguments, address, thread, share);
    failed.fetch_or(connected.is_err(), Ordering::Relaxed);
    barrier.wait();
    if arguments.idle {
        barrier.wait();
        let mut driver = connected?;
        driver.finish();
        return Ok(Outcome::default());
    }
    barrier.wait();
    let mut driver = connected?;
    let outcome = driver.work(
        Duration::from_secs_f64(arguments.warmup),
        Duration::from_secs_f64(arguments.seconds),
    );
    driver.finish();
    outcome
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

/// Says that the sessions stand; returns (blocks) when standard input ends.
fn hold(clients: u32) {
    println!("{{\"holding\": {clients}}}");
    let _ = std::io::stdout().flush();
    wait_for_end_of_input();
}

fn share_of(clients: u32, threads: u32, thread: u32) -> u32 {
    clients / threads + u32::from(thread < clients % threads)
}

fn report(arguments: &Arguments, all: &Outcome, connected_after: Duration) -> String {
    let latency = |share: f64| Histogram::milliseconds(all.latency.quantile(share));
    format!(
        "{{\"clients\": {}, \"transactions\": {}, \"tps\": {:.1}, \"errors\": {}, \
         \"connect_seconds\": {:.3}, \"latency_ms\": {{\"mean\": {:.3}, \"p50\": {:.3}, \
         \"p95\": {:.3}, \"p99\": {:.3}, \"max\": {:.3}}}, \"least_served\": {}}}",
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
