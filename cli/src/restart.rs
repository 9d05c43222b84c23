//! `baton restart`: a restart of the server that costs clients no error, as far as that can be had.
//!
//! It says what it costs, lets running transactions end (pg_baton_pause()), and has a command
//! restart the server. Sessions and their requests wait meanwhile (pg_baton.hold_sessions).

use crate::doctor::ask::Server;
use crate::pause;
use anyhow::{bail, Context as _, Result};
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The options of `baton restart`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How to reach the server's own port as a superuser: a connection string or URI for libpq [default: as psql, by PG* variables]
    #[arg(value_name = "CONNINFO")]
    server: Option<String>,
    /// The shell command that restarts the server and returns when it is up [default: pg_ctl restart, of the server's programs, on its data directory]
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// How long to wait for transactions that run; then the sessions are resumed, and nothing is restarted
    #[arg(long, value_name = "INTERVAL", default_value = "30 seconds")]
    timeout: String,
    /// Do not ask, even if sessions end
    #[arg(long)]
    yes: bool,
    /// The psql to ask with [default: the one on the PATH]
    #[arg(long, value_name = "PATH", default_value = "psql")]
    psql: PathBuf,
}

/// A pause that nobody ends is over after this time: the restart is not.
const PAUSE: &str = "5 minutes";
/// How long the pool may take after the command has returned.
const READY_LIMIT: Duration = Duration::from_secs(60);
const READY_LOOK: Duration = Duration::from_millis(200);

/// Returns 0 if the server has been restarted, 1 if it was left alone. `main` returns 2 for any
/// failure.
pub fn main(arguments: &Arguments) -> Result<ExitCode> {
    let server = Server::ask(&arguments.psql, arguments.server.as_deref())?;
    if !server.has("pg_baton.port") {
        bail!("pg_baton is not loaded: add it to shared_preload_libraries and restart the server");
    }
    server.require_extension()?;
    if server.number("pg_baton.hold_sessions") == 0 {
        eprintln!(
            "baton restart: a restart would end all sessions, because pg_baton.hold_sessions is 0: set {}, and reload",
            server.line("pg_baton.hold_sessions", "'5min'")
        );
        return Ok(ExitCode::FAILURE);
    }
    let costs = costs(&server)?;
    if !costs.is_empty() && !arguments.yes && !confirm()? {
        eprintln!("baton restart: nothing has been done: sessions would end (--yes)");
        return Ok(ExitCode::FAILURE);
    }
    let command = match &arguments.command {
        Some(command) => command.clone(),
        None => pg_ctl(&server)?,
    };
    restart(&server, arguments, &command)?;
    Ok(ExitCode::SUCCESS)
}

/// Says which sessions go on and which end. Returns those that end, by cause.
fn costs(server: &Server) -> Result<Vec<String>> {
    let sessions = server.view_name("pg_baton_sessions");
    let rows = server.rows(
        &format!(
            "SELECT coalesce(json_agg(json_build_object('mode', mode, 'cause', dedicated_cause, 'count', count)), '[]') \
             FROM (SELECT mode, dedicated_cause, count(*) FROM {sessions} GROUP BY 1, 2 ORDER BY 3 DESC) AS s"
        ),
        None,
    )?;
    let mut go_on = 0;
    let mut end = Vec::new();
    for row in &rows {
        let count = row["count"].as_u64().unwrap_or(0);
        match (row["mode"].as_str(), row["cause"].as_str()) {
            (Some("shared"), _) => go_on += count,
            (Some("native"), _) => end.push(format!("{count} native")),
            (_, cause) => end.push(format!("{count} dedicated: {}", cause.unwrap_or("unknown"))),
        }
    }
    println!("{go_on} shared sessions go on.");
    if !end.is_empty() {
        println!("These end: {}.", end.join(", "));
    }
    Ok(end)
}

fn confirm() -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(false);
    }
    print!("Go on? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn pg_ctl(server: &Server) -> Result<String> {
    let asked = "SELECT json_agg(setting) FROM pg_config WHERE name = 'BINDIR'";
    let rows = server.rows(asked, None)?;
    let programs = rows.first().and_then(Value::as_str);
    let programs = programs.context("the server does not say where its programs are: --command")?;
    Ok(format!(
        "{} restart --silent --mode fast --pgdata {}",
        quoted(&format!("{programs}/pg_ctl")),
        quoted(&server.text("data_directory"))
    ))
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn restart(server: &Server, arguments: &Arguments, command: &str) -> Result<()> {
    println!(
        "Waits for running transactions, for at most {}.",
        arguments.timeout
    );
    pause::begin(server, pause::ALL, &arguments.timeout, PAUSE)
        .context("nothing has been restarted")?;
    println!("{command}");
    let began = Instant::now();
    // Output of a server that it starts would keep a pipe open.
    let ran = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .status();
    if !ran.as_ref().is_ok_and(std::process::ExitStatus::success) {
        let what = match pause::end(server, pause::ALL) {
            Ok(_) => "sessions are resumed",
            Err(_) => "the server does not answer",
        };
        match ran {
            Ok(status) => bail!("the command has failed ({status}); {what}"),
            Err(error) => bail!("the command could not be run: {error}; {what}"),
        }
    }
    wait_for_pool(arguments, began)
}

/// The server answers, and a dispatcher has adopted the sessions.
fn wait_for_pool(arguments: &Arguments, began: Instant) -> Result<()> {
    let until = Instant::now() + READY_LIMIT;
    loop {
        match adopted(arguments) {
            Ok(Some(sessions)) => {
                println!(
                    "The server is back after {:.1} s, with {sessions} sessions.",
                    began.elapsed().as_secs_f64()
                );
                return Ok(());
            }
            Ok(None) | Err(_) if Instant::now() < until => std::thread::sleep(READY_LOOK),
            Ok(None) => bail!("the pool is not back: the server's log says why"),
            Err(error) => return Err(error.context("the server is not back")),
        }
    }
}

/// How many sessions the pool has; None while no dispatcher is ready.
fn adopted(arguments: &Arguments) -> Result<Option<u64>> {
    let server = Server::ask(&arguments.psql, arguments.server.as_deref())?;
    server.require_extension()?;
    let dispatchers = server.view("pg_baton_dispatchers")?;
    Ok(dispatchers
        .first()
        .and_then(|dispatcher| dispatcher["sessions"].as_u64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_the_shell() {
        assert_eq!(quoted("/srv/my data"), "'/srv/my data'");
        let out = Command::new("/bin/sh")
            .arg("-c")
            .arg(format!("printf %s {}", quoted("it's $HOME")))
            .output()
            .expect("a shell");
        assert_eq!(out.stdout, b"it's $HOME");
    }
}
