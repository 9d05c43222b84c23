//! `baton why`: where a session is, why it is there, and what the pool would do next.

mod causes;
pub mod facts;
pub mod sentences;

use crate::doctor::ask::Server;
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `baton why`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The session's process ID, as pg_stat_activity, pg_baton_sessions and the log have it
    #[arg(value_name = "PID")]
    pid: i32,
    /// How to reach a database that has the extension: a connection string or URI for libpq; best the server's own port [default: as psql, by PG* variables]
    #[arg(value_name = "CONNINFO")]
    server: Option<String>,
    /// The psql to ask with [default: the one on the PATH]
    #[arg(long, value_name = "PATH", default_value = "psql")]
    psql: PathBuf,
}

/// Returns 0 if there was something to say, 1 if no process has this ID. `main` returns 2 if the
/// server could not be asked.
pub fn main(arguments: &Arguments) -> Result<ExitCode> {
    let server = Server::with_views(&arguments.psql, arguments.server.as_deref())?;
    let rows = server.rows(&facts::question(&server, arguments.pid), None)?;
    let facts = rows.first().context("the server has answered nothing")?;
    match sentences::sentences(facts) {
        Some(said) => {
            for one in said {
                println!("{one}");
            }
            Ok(ExitCode::SUCCESS)
        }
        None => {
            eprintln!(
                "baton why: no session and no process of the server has the ID {}: it may have ended",
                arguments.pid
            );
            Ok(ExitCode::FAILURE)
        }
    }
}
