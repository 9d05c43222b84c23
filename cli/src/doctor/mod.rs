//! `baton doctor`: inspects a live server and reports, in one line each, what works, what would
//! not, and which line of which file mends it.
//!
//! All questions are asked by psql on the server's own port, as a superuser. What only the
//! server's machine knows (open files, memory, replaced programs) the server reads in its own
//! /proc: this program may run on another machine, whose processes have the same numbers.
//! Nothing is changed.
//!
//! |---|---|
//! | `ask` | psql, and where a parameter is set |
//! | `capacity` | connections, background workers, open files, memory |
//! | `dispatcher` | is it up, and of which build |
//! | `pool` | configuration, library, self-checks, pools |
//! | `hba` | each line of pg_hba.conf |
//! | `libraries` | code that keeps a session's state in its process |
//! | `certificates` | TLS |

pub mod ask;
mod capacity;
mod certificates;
pub mod dispatcher;
mod hba;
mod libraries;
mod pool;

use anyhow::{Context, Result};
use ask::Server;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `baton doctor`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How to reach the server's own port as a superuser: a connection string or URI for libpq [default: as psql, by PG* variables]
    #[arg(value_name = "CONNINFO")]
    server: Option<String>,
    /// One JSON object instead of lines
    #[arg(long)]
    json: bool,
    /// The psql to ask with [default: the one on the PATH]
    #[arg(long, value_name = "PATH", default_value = "psql")]
    psql: PathBuf,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Ok,
    /// It works, but not as expected, or not for long.
    Warning,
    /// Something does not work.
    Failure,
    /// It could not be checked.
    Unknown,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Failure => "failure",
            Level::Unknown => "unknown",
        }
    }
}

/// One line of the report.
pub struct Finding {
    check: &'static str,
    level: Level,
    text: String,
    /// What mends it, with file and line where there is one.
    mend: Option<String>,
}

/// All findings, in the order in which they were made.
#[derive(Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, level: Level, text: impl Into<String>) {
        self.put(check, level, text.into(), None);
    }

    fn mended(
        &mut self,
        check: &'static str,
        level: Level,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.put(check, level, text.into(), Some(mend.into()));
    }

    fn put(&mut self, check: &'static str, level: Level, text: String, mend: Option<String>) {
        self.0.push(Finding {
            check,
            level,
            text,
            mend,
        });
    }

    fn has_failure(&self) -> bool {
        self.0.iter().any(|one| one.level == Level::Failure)
    }

    fn as_json(&self) -> String {
        let findings: Vec<_> = (self.0.iter())
            .map(|one| {
                json!({"check": one.check, "level": one.level.word(), "text": one.text, "mend": one.mend})
            })
            .collect();
        json!({"works": !self.has_failure(), "findings": findings}).to_string()
    }

    fn as_lines(&self) -> String {
        let mut lines = String::new();
        for one in &self.0 {
            let mend = one.mend.as_ref();
            let mend = mend.map_or_else(String::new, |mend| format!(" -> {mend}"));
            let (level, check) = (one.level.word(), one.check);
            // A name may contain line breaks; a finding must stay one line.
            let text = one.text.replace(['\n', '\r'], " ");
            let mend = mend.replace(['\n', '\r'], " ");
            lines.push_str(&format!("{level:<8} {check}: {text}{mend}\n"));
        }
        lines
    }
}

/// Returns 0 if everything works, 1 if something does not. `main` returns 2 if the server could
/// not be asked.
pub fn main(arguments: &Arguments) -> Result<ExitCode> {
    let server = Server::ask(&arguments.psql, arguments.server.as_deref())?;
    let mut findings = Findings::default();
    look(&server, &mut findings)?;
    let text = if arguments.json {
        findings.as_json() + "\n"
    } else {
        findings.as_lines()
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(ExitCode::from(u8::from(findings.has_failure())))
}

fn look(server: &Server, findings: &mut Findings) -> Result<()> {
    pool::configuration(server, findings)?;
    if !pool::is_loaded(server, findings) {
        return Ok(());
    }
    let dispatcher = dispatcher::look(server, findings)?;
    capacity::connections(server, findings);
    capacity::workers(server, findings)?;
    capacity::open_files(server, dispatcher.pid(), findings);
    capacity::memory(server, findings);
    hba::lines(server, &dispatcher, findings)?;
    libraries::look(server, &dispatcher, findings)?;
    certificates::look(server, dispatcher.is_up, findings)?;
    if dispatcher.row.is_some() {
        pool::failed_checks(server, findings)?;
        pool::pools(server, findings)?;
    }
    Ok(())
}
