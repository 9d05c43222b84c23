//! `baton upgrade`: replaces the dispatcher by the program that is installed.
//!
//! The server does it (pg_baton_restart_dispatcher()); this program says before what it costs,
//! and afterwards what runs.

use crate::doctor::ask::Server;
use crate::doctor::dispatcher::name_of;
use anyhow::{bail, Context as _, Result};
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `baton upgrade`.
#[derive(clap::Args)]
pub struct Arguments {
    /// How to reach the server's own port as a superuser: a connection string or URI for libpq [default: as psql, by PG* variables]
    #[arg(value_name = "CONNINFO")]
    server: Option<String>,
    /// The psql to ask with [default: the one on the PATH]
    #[arg(long, value_name = "PATH", default_value = "psql")]
    psql: PathBuf,
}

/// What the replacement costs.
const COST: &str =
    "No session ends. Clients that are logging in and consoles are disconnected (57P01), pauses end, and new clients \
     wait for some tenths of a second.";

/// Why nothing was replaced, though the server could be asked.
struct Refusal(String);

/// Returns 0 if the installed program runs, 1 if it does not. `main` returns 2 if the server
/// could not be asked.
pub fn main(arguments: &Arguments) -> Result<ExitCode> {
    let server = Server::ask(&arguments.psql, arguments.server.as_deref())?;
    if !server.has("pg_baton.port") {
        bail!("pg_baton is not loaded: add it to shared_preload_libraries and restart the server");
    }
    server.require_extension()?;
    match upgrade(&server)? {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Refusal(why)) => {
            eprintln!("baton upgrade: {why}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn upgrade(server: &Server) -> Result<Result<(), Refusal>> {
    let build = ask_build(server)?;
    if let Some(why) = refusal(&build) {
        return Ok(Err(Refusal(why)));
    }
    let (old, new) = (name_of(&build, "program"), name_of(&build, "installed"));
    if build["installed_differs"] == Value::Bool(false) {
        println!("The installed program runs already: {old}.");
        println!(
            "SELECT pg_baton_restart_dispatcher() starts it anew, for parameters that need that."
        );
        return Ok(Ok(()));
    }
    println!(
        "Replaces {old}, process {}, by {new}.",
        build["dispatcher_pid"]
    );
    println!("{COST}");
    let function = server.view_name("pg_baton_restart_dispatcher");
    server.rows(&format!("SELECT json_agg({function}())"), None)?;
    let build = ask_build(server)?;
    let now = name_of(&build, "program");
    if build["installed_differs"] == Value::Bool(true) {
        return Ok(Err(Refusal(format!(
            "{now} has been started, process {}: the server's log says why it is not the installed program",
            build["dispatcher_pid"]
        ))));
    }
    println!("Process {} runs {now}.", build["dispatcher_pid"]);
    Ok(Ok(()))
}

fn ask_build(server: &Server) -> Result<Value> {
    let rows = server.view("pg_baton_build")?;
    rows.into_iter()
        .next()
        .context("the view pg_baton_build is empty")
}

/// Why the installed program cannot or need not be started by the running server.
fn refusal(build: &Value) -> Option<String> {
    let text = |name: &str| build[name].as_str();
    let Some(program) = text("installed_program") else {
        return Some("no program is installed where pg_baton.dispatcher_program says".to_owned());
    };
    if let (Some(installed), Some(library)) = (text("installed_layout"), text("library_layout")) {
        if installed != library {
            return Some(format!(
                "{program} is of another layout ({installed}) than the library that the server runs ({library}): \
                 restart the server, which then uses library and program of one build"
            ));
        }
    }
    if !build["dispatcher_pid"].is_number() {
        return Some("no dispatcher runs; the launcher starts one by itself, and the server's log says what keeps it".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_program_of_the_library_s_layout_is_started() {
        let build = |installed: Value| json!({"installed_program": "/p", "installed_layout": installed, "library_layout": "0x1", "dispatcher_pid": 7});
        assert!(refusal(&build(json!("0x1"))).is_none());
        // A script that starts the dispatcher.
        assert!(refusal(&build(Value::Null)).is_none());
        assert!(refusal(&build(json!("0x2"))).is_some_and(|why| why.contains("another layout")));
        let nothing = json!({"installed_program": null, "library_layout": "0x1"});
        assert!(refusal(&nothing).is_some());
    }
}
