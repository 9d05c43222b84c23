//! `baton demo`: a private PostgreSQL server with the pool before it.
//!
//! The steps: find the server's programs; check whether the extension is installed there;
//! create a cluster in a scratch directory; start it; wait until both ports serve a query;
//! print `ready`; unless `--no-load` is given, load pgbench's data and compare the two ports;
//! then wait for a signal.
//!
//! Invariant: whatever happens after the directory was created (an error, a signal, a panic),
//! `Cluster`'s `Drop` stops the server and removes the directory.
//!
//! Results and `ready` go to standard output, progress to standard error.

mod cluster;
mod comparison;
mod ports;
mod programs;
mod settings;
pub mod system;

use anyhow::{Context, Result};
use cluster::Cluster;
use programs::Programs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// User and database of the demonstration.
const NAME: &str = "demo";
/// The ports where the search for a free one starts.
const DEFAULT_PG_PORT: u16 = 5433;
const DEFAULT_POOL_PORT: u16 = 6543;
/// PostgreSQL's default port.
const SERVER_PORT: u16 = 5432;

/// The options of `baton demo`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Directory for the cluster: a new one, removed at the end, or an empty one, empty again at the end [default: a new one in the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The server's own port [default: the first free one from 5433 on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pg_port: Option<u16>,
    /// The pool's port [default: the first free one from 6543 on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The pool listens where clients expect the server, and the server only at its Unix
    /// socket: on port 5432, or the first free one after it (with --port on that one, or not at
    /// all)
    #[arg(long)]
    same_port: bool,
    /// Backends of the pool
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    backends: u32,
    /// A server parameter, as in postgresql.conf; may be given many times. Libraries of shared_preload_libraries come after pg_baton
    #[arg(long, value_name = "NAME=VALUE", value_parser = settings::parse)]
    set: Vec<(String, String)>,
    /// Neither load data nor compare: start only the server and the pool
    #[arg(long)]
    no_load: bool,
    /// The pg_config of the server to use [default: $PG_CONFIG, else that of the newest server with pg_baton]
    #[arg(long, value_name = "PATH")]
    pg_config: Option<PathBuf>,
}

/// Runs the demonstration; returns after a signal has ended it and everything has been removed.
pub fn main(arguments: Arguments) -> Result<()> {
    system::catch_signals();
    match run(&arguments) {
        // A requested end, at whatever step, is no failure.
        Err(error) if error.is::<system::Interrupted>() => Ok(()),
        other => other,
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let from_environment = std::env::var_os("PG_CONFIG").map(PathBuf::from);
    let pg_config = arguments.pg_config.clone().or(from_environment);
    let programs = Programs::find(pg_config.as_deref())?;
    let account = system::server_account()?;
    let pg_port = ports::choose(
        "--pg-port",
        arguments.pg_port,
        DEFAULT_PG_PORT,
        None,
        account.as_ref(),
    )?;
    let pool_port = ports::choose(
        "--port",
        arguments.port,
        if arguments.same_port {
            SERVER_PORT
        } else {
            DEFAULT_POOL_PORT
        },
        Some(pg_port),
        account.as_ref(),
    )?;

    let mut cluster = Cluster::create(&programs, account, arguments.dir.as_deref(), pg_port)?;
    let host = settings::host(&settings::addresses(arguments), cluster.directory())?;
    cluster.ask_at(host);
    cluster.initialise()?;
    cluster.write_parameters(&settings::all(
        arguments,
        pg_port,
        pool_port,
        cluster.directory(),
    ))?;
    cluster.start()?;
    cluster.make_database(NAME)?;
    cluster
        .wait_for_port(pool_port, NAME)
        .context("the server runs, but the pool does not serve queries")?;
    say("ready")?;

    if !arguments.no_load {
        let ports = comparison::Ports {
            direct: pg_port,
            pool: pool_port,
        };
        let table = comparison::run(&cluster, &programs, &ports, arguments.backends)?;
        say(&table)?;
    }
    let pool_host = if arguments.same_port {
        settings::LOOPBACK
    } else {
        cluster.host()
    };
    say(&format!(
        "pool:   {}\ndirect: {}",
        settings::address(pool_host, pool_port),
        settings::address(cluster.host(), pg_port)
    ))?;
    progress("press Ctrl-C to stop the server and remove it");

    cluster.wait_for_signal()?;
    progress("stopping");
    cluster.finish()
}

/// Writes one line (or table) to standard output, at once.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

fn progress(text: &str) {
    // Standard error may be closed; that must not end the demonstration.
    let _ = writeln!(std::io::stderr(), "baton demo: {text}");
}

/// How often a waiting step checks for a signal and for the server's end.
const POLL: Duration = Duration::from_millis(20);
