//! `baton demo`: a private PostgreSQL server with the pool before it.
//!
//! The order of things: find the server's programs, look whether the extension
//! is installed there, make a cluster in a scratch directory, start it, wait
//! until both ports serve a query, say `ready`; then, unless `--no-load`, load
//! pgbench's data and compare the two ports; then stay until a signal comes.
//!
//! Invariant: whatever happens after the directory was made (an error, a
//! signal, a panic), `Cluster`'s `Drop` stops the server and removes it.
//!
//! Results and `ready` go to standard output, progress to standard error.

mod cluster;
mod comparison;
mod programs;
mod system;

use anyhow::{bail, Context, Result};
use cluster::Cluster;
use programs::Programs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// User and database of the demonstration.
const NAME: &str = "demo";
/// Where the search for a free port starts, and how far it goes.
const DEFAULT_PG_PORT: u16 = 5433;
const DEFAULT_POOL_PORT: u16 = 6543;
const PORTS_TRIED: u16 = 100;

/// What `baton demo` may be told.
#[derive(clap::Args)]
pub struct Arguments {
    /// Directory for the cluster: new or empty, removed at the end [default: a new one in the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The server's own port [default: the first free one from 5433 on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pg_port: Option<u16>,
    /// The pool's port [default: the first free one from 6543 on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Backends of the pool
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    backends: u32,
    /// A server parameter, as in postgresql.conf; may be given many times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,
    /// Neither load data nor compare: just the server and the pool
    #[arg(long)]
    no_load: bool,
    /// The pg_config of the server to use [default: $PG_CONFIG, else that of the newest server with pg_baton]
    #[arg(long, value_name = "PATH")]
    pg_config: Option<PathBuf>,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("\"{text}\" is not of the form NAME=VALUE"))?;
    let name = name.trim();
    let known_characters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(known_characters) {
        return Err(format!("\"{name}\" cannot be the name of a parameter"));
    }
    if value.contains(['\n', '\r', '\0']) {
        return Err(format!("the value of \"{name}\" has a line break in it"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the demonstration; returns when a signal has ended it and all is
/// removed.
pub fn main(arguments: Arguments) -> Result<()> {
    system::catch_signals();
    match run(&arguments) {
        // Asked to end, at whatever step: that is no failure.
        Err(error) if error.is::<system::Interrupted>() => Ok(()),
        other => other,
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let from_environment = std::env::var_os("PG_CONFIG").map(PathBuf::from);
    let pg_config = arguments.pg_config.clone().or(from_environment);
    let programs = Programs::find(pg_config.as_deref())?;
    let pg_port = choose_port("--pg-port", arguments.pg_port, DEFAULT_PG_PORT, None)?;
    let pool_port = choose_port("--port", arguments.port, DEFAULT_POOL_PORT, Some(pg_port))?;

    let mut cluster = Cluster::create(&programs, arguments.dir.as_deref(), pg_port)?;
    cluster.write_parameters(&parameters(
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
    say(&format!(
        "pool:   postgresql://{NAME}@127.0.0.1:{pool_port}/{NAME}\n\
         direct: postgresql://{NAME}@127.0.0.1:{pg_port}/{NAME}"
    ))?;
    progress("press Ctrl-C to stop the server and remove it");

    cluster.wait_for_signal()?;
    progress("stopping");
    cluster.finish()
}

/// What the demonstration wants of the server; the user's own settings last,
/// since the last line of a parameter counts.
fn parameters(
    arguments: &Arguments,
    pg_port: u16,
    pool_port: u16,
    directory: &Path,
) -> Vec<(String, String)> {
    // The direct half of the comparison needs a backend for each client.
    let max_connections = comparison::CLIENTS + arguments.backends + 20;
    let fixed: [(&str, String); 10] = [
        ("listen_addresses", loopback_addresses().to_owned()),
        ("port", pg_port.to_string()),
        ("unix_socket_directories", directory.display().to_string()),
        ("max_connections", max_connections.to_string()),
        ("shared_buffers", "256MB".to_owned()),
        // The cluster does not outlive this program.
        ("fsync", "off".to_owned()),
        ("log_line_prefix", "%m [%p] %q%u@%d ".to_owned()),
        ("shared_preload_libraries", "pg_baton".to_owned()),
        ("pg_baton.port", pool_port.to_string()),
        ("pg_baton.max_backends", arguments.backends.to_string()),
    ];
    let own = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    own.chain(arguments.set.iter().cloned()).collect()
}

fn loopback_addresses() -> &'static str {
    if TcpListener::bind("[::1]:0").is_ok() {
        "127.0.0.1,::1"
    } else {
        "127.0.0.1"
    }
}

/// The port asked for, if it is free; else the first free one.
fn choose_port(option: &str, asked: Option<u16>, default: u16, other: Option<u16>) -> Result<u16> {
    let is_free = |port: u16| Some(port) != other && TcpListener::bind(("127.0.0.1", port)).is_ok();
    match asked {
        Some(port) if is_free(port) => Ok(port),
        Some(port) => bail!("port {port} is taken, choose another with {option}"),
        None => (default..default + PORTS_TRIED)
            .find(|&port| is_free(port))
            .with_context(|| format!("no free port from {default} on, choose one with {option}")),
    }
}

/// One line (or table) for whoever reads standard output, at once.
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

/// How often anything that waits looks for a signal and for the server's end.
const POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::parse_setting;

    #[test]
    fn a_setting_keeps_everything_after_the_first_equals_sign() {
        let setting = parse_setting("my.options=-c a=b").expect("is well formed");
        assert_eq!(setting, ("my.options".to_owned(), "-c a=b".to_owned()));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for text in ["", "port", "=1", "a b=1", "a\nb=1", "a=1\nport=2"] {
            assert!(parse_setting(text).is_err(), "{text:?} was accepted");
        }
    }
}
