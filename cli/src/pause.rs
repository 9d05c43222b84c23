//! `baton pause` and `baton resume`: hold transactions back for a time, by the SQL functions of
//! the extension. psql asks, as in `baton doctor`.

use crate::doctor::ask::{literal, Server};
use anyhow::Result;
use std::path::PathBuf;

/// How to reach the server, and which sessions are meant.
#[derive(clap::Args)]
pub struct Scope {
    /// How to reach a database that has the extension: a connection string or URI for libpq; the server's own port is never paused [default: as psql, by PG* variables]
    #[arg(value_name = "CONNINFO")]
    server: Option<String>,
    /// Sessions of this database [default: of any]
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    /// Sessions of this role [default: of any]
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    /// The psql to ask with [default: the one on the PATH]
    #[arg(long, value_name = "PATH", default_value = "psql")]
    psql: PathBuf,
}

/// The options of `baton pause`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    scope: Scope,
    /// How long to wait for transactions that run; then the sessions are resumed, and the exit status is 1
    #[arg(long, value_name = "INTERVAL", default_value = "30 seconds")]
    timeout: String,
    /// When the pause ends by itself
    #[arg(long = "for", value_name = "INTERVAL", default_value = "5 minutes")]
    limit: String,
}

impl Scope {
    fn server(&self) -> Result<Server> {
        Server::with_views(&self.psql, self.server.as_deref())
    }

    /// The arguments of the functions.
    fn arguments(&self) -> String {
        let one = |name: &Option<String>| name.as_deref().map_or("NULL".into(), literal);
        format!("{}, {}", one(&self.database), one(&self.role))
    }

    /// For people.
    fn text(&self) -> String {
        match (&self.database, &self.role) {
            (None, None) => "all sessions".into(),
            (Some(database), None) => format!("sessions of database {database:?}"),
            (None, Some(role)) => format!("sessions of role {role:?}"),
            (Some(database), Some(role)) => {
                format!("sessions of role {role:?} in database {database:?}")
            }
        }
    }
}

/// Fails with the server's message if transactions do not end in time.
pub fn pause(arguments: &Arguments) -> Result<()> {
    let Arguments {
        scope,
        timeout,
        limit,
    } = arguments;
    begin(&scope.server()?, &scope.arguments(), timeout, limit)?;
    println!("{} are paused for {limit}", scope.text());
    Ok(())
}

/// All sessions, as arguments of the functions.
pub const ALL: &str = "NULL, NULL";

/// `scope`: arguments of the function. Fails with the server's message.
pub fn begin(server: &Server, scope: &str, timeout: &str, limit: &str) -> Result<()> {
    let function = server.view_name("pg_baton_pause");
    let (timeout, limit) = (literal(timeout), literal(limit));
    let sql = format!("SELECT json_build_array({function}({scope}, {timeout}, {limit})::text)");
    server.rows(&sql, None).map(drop)
}

/// How many pauses have ended.
pub fn end(server: &Server, scope: &str) -> Result<Option<u64>> {
    let function = server.view_name("pg_baton_resume");
    let sql = format!("SELECT json_build_array({function}({scope}))");
    let ended = server.rows(&sql, None)?;
    Ok(ended.first().and_then(serde_json::Value::as_u64))
}

pub fn resume(scope: &Scope) -> Result<()> {
    match end(&scope.server()?, &scope.arguments())? {
        Some(0) => println!("no pause of {} was there", scope.text()),
        _ => println!("{} are resumed", scope.text()),
    }
    Ok(())
}
