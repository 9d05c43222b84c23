//! `baton-monitor`: the program that serves pg_baton's metrics and health by HTTP.
//!
//! The extension's launcher starts it if `pg_baton.monitor_port` is set, with open sockets
//! (monitor.c). It asks the dispatcher what views ask, and the launcher about the server. It can
//! do nothing else: [`confine`] gives up what it does not need. docs/metrics.md has the names.

mod ask;
mod columns;
mod confine;
mod health;
mod http;
mod live;
mod metrics;
mod sys;

use anyhow::{bail, Context};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Where the launcher puts the channel; the listeners follow (`baton_program_fork` in child.c).
const CHANNEL: RawFd = 3;
const FIRST_LISTENER: RawFd = 4;
const MOST_LISTENERS: RawFd = 8;

fn run() -> anyhow::Result<()> {
    let count = std::env::args().nth(1).unwrap_or_default();
    if count == "--version" {
        println!("baton-monitor {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    let count: RawFd = count.parse().context("the launcher starts this program")?;
    if !(1..=MOST_LISTENERS).contains(&count) {
        bail!("{count} listeners");
    }
    let channel = sys::inherited(CHANNEL)?;
    let listeners = (FIRST_LISTENER..FIRST_LISTENER + count).map(sys::inherited);
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    confine::confine()?;
    runtime.block_on(async {
        let asker = Arc::new(ask::Asker::new(channel)?);
        http::serve(listeners, asker).await
    })
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton-monitor: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
