//! The library, the dispatcher, and what it says of its pools.

use super::ask::Server;
use super::{Findings, Level};
use anyhow::Result;
use std::fs;

/// Mistakes in the files, and what waits for a restart.
pub fn configuration(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "configuration";
    let wrong = server.rows(
        "SELECT json_agg(json_build_object('file', sourcefile, 'line', sourceline, 'name', name, 'error', error)) \
         FROM pg_file_settings WHERE error IS NOT NULL AND NOT EXISTS \
         (SELECT FROM pg_settings s WHERE lower(s.name) = lower(pg_file_settings.name) AND pending_restart)",
        None,
    )?;
    for row in &wrong {
        let place = format!(
            "{} line {}",
            row["file"].as_str().unwrap_or("?"),
            row["line"]
        );
        let name = row["name"].as_str().unwrap_or("");
        let text = format!("{name}: {}", row["error"].as_str().unwrap_or("?"));
        findings.mended(check, Level::Failure, text, place);
    }
    let waiting = server.rows(
        "SELECT json_agg(name) FROM pg_settings WHERE pending_restart \
         AND (name LIKE 'pg\\_baton.%' OR name IN ('max_connections', 'shared_preload_libraries', 'port', \
         'superuser_reserved_connections', 'reserved_connections'))",
        None,
    )?;
    for name in waiting.iter().filter_map(|name| name.as_str()) {
        let text = format!("{name} has been changed, and counts after a restart");
        findings.mended(check, Level::Warning, text, "restart the server");
    }
    if wrong.is_empty() && waiting.is_empty() {
        findings.add(check, Level::Ok, "what the files say is in force");
    }
    Ok(())
}

/// Is the library there at all?
pub fn is_loaded(server: &Server, findings: &mut Findings) -> bool {
    let check = "library";
    if server.has("pg_baton.port") {
        findings.add(check, Level::Ok, "pg_baton is preloaded");
        return true;
    }
    let others = server.text("shared_preload_libraries");
    let value = if others.is_empty() {
        "'pg_baton'".to_owned()
    } else {
        format!("'{others}, pg_baton'")
    };
    findings.mended(
        check,
        Level::Failure,
        "pg_baton is not preloaded: nobody listens on the pool's port",
        server.line("shared_preload_libraries", value) + ", and restart the server",
    );
    false
}

fn link(process: u32, what: &str) -> Option<String> {
    let path = fs::read_link(format!("/proc/{process}/{what}")).ok()?;
    Some(path.to_string_lossy().into_owned())
}

/// Have program or library been replaced since they were started?
fn is_replaced(dispatcher: u32, postmaster: Option<u32>) -> Option<&'static str> {
    if link(dispatcher, "exe").is_some_and(|path| path.ends_with(" (deleted)")) {
        return Some("the dispatcher's program has been replaced since it was started");
    }
    let maps = fs::read_to_string(format!("/proc/{}/maps", postmaster?)).ok()?;
    let mut lines = maps.lines();
    lines
        .any(|line| line.contains("/pg_baton.so") && line.ends_with(" (deleted)"))
        .then_some("pg_baton.so has been replaced since the server was started")
}

/// Whether it is up and of this build; its process.
pub fn dispatcher(server: &Server, findings: &mut Findings) -> Result<Option<u32>> {
    let check = "dispatcher";
    let extension = server.rows(
        "SELECT json_agg(json_build_array(installed_version, default_version)) FROM pg_available_extensions \
         WHERE name = 'pg_baton'",
        None,
    )?;
    let versions = extension
        .first()
        .map(|row| (row[0].as_str(), row[1].as_str()));
    let Some((Some(installed), Some(newest))) = versions else {
        findings.mended(
            check,
            Level::Unknown,
            "this database has no views to ask it by",
            "CREATE EXTENSION pg_baton in it, or name one that has it",
        );
        return Ok(None);
    };
    if installed != newest {
        let text = format!("the extension in this database is of version {installed}");
        findings.mended(
            check,
            Level::Warning,
            text,
            format!("ALTER EXTENSION pg_baton UPDATE TO '{newest}'"),
        );
    }
    let asked = server.rows("SELECT json_agg(d) FROM pg_baton_dispatchers d", None);
    let row = match asked {
        Ok(rows) => rows.into_iter().next(),
        Err(error) => {
            let program = server.text("pg_baton.dispatcher_program");
            findings.mended(
                check,
                Level::Failure,
                format!("it is not up: {error:#}"),
                format!(
                    "the server's log says why; {}",
                    server.line("pg_baton.dispatcher_program", format!("'{program}'"))
                ),
            );
            return Ok(None);
        }
    };
    let Some(row) = row else {
        findings.add(check, Level::Failure, "it says nothing of itself");
        return Ok(None);
    };
    let pid = row["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let is_here = pid.filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("baton-dispatch")
    });
    let postmaster = server.rows(
        "SELECT json_agg(line) FROM (SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int AS line) a",
        None,
    )?;
    let postmaster = postmaster.first().and_then(serde_json::Value::as_u64);
    let postmaster = postmaster.and_then(|pid| u32::try_from(pid).ok());
    match is_here.and_then(|pid| is_replaced(pid, postmaster)) {
        Some(why) => findings.mended(
            check,
            Level::Warning,
            why,
            "restart the server: both are of one build",
        ),
        None => {
            let (sessions, port) = (&row["sessions"], server.number("pg_baton.port"));
            findings.add(
                check,
                Level::Ok,
                format!("it is up on port {port}, with {sessions} sessions"),
            );
        }
    }
    failed_checks(server, findings)?;
    Ok(is_here.or(pid))
}

/// What pg_baton has not found in this server as it expects it.
fn failed_checks(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "self-checks";
    let rows = server.rows("SELECT json_agg(f) FROM pg_baton_failed_checks f", None)?;
    for row in &rows {
        let (costs, problem) = (row["costs"].as_str(), row["problem"].as_str());
        let text = format!(
            "{} is lost: {}",
            costs.unwrap_or("?"),
            problem.unwrap_or("?")
        );
        findings.mended(
            check,
            Level::Failure,
            text,
            "a build of pg_baton for this minor release, and a restart",
        );
    }
    if rows.is_empty() {
        findings.add(check, Level::Ok, "the server is as pg_baton expects it");
    }
    Ok(())
}

const WHO_CANNOT: &str = "SELECT json_agg(json_build_object('user', p.user_name, 'database', p.database, 'why', why)) \
     FROM pg_baton_pools p LEFT JOIN pg_roles r ON r.rolname = p.user_name \
     LEFT JOIN pg_database d ON d.datname = p.database, \
     LATERAL (SELECT CASE WHEN r.oid IS NULL THEN 'the role has gone or has another name' \
     WHEN NOT r.rolcanlogin THEN 'the role is NOLOGIN' \
     WHEN r.rolvaliduntil < now() THEN 'the role''s password has expired' \
     WHEN d.oid IS NULL THEN 'the database has gone or has another name' \
     WHEN NOT d.datallowconn THEN 'the database takes no connections' \
     WHEN NOT has_database_privilege(r.oid, d.oid, 'CONNECT') THEN 'the role has no CONNECT privilege' \
     END AS why) w WHERE p.sessions > 0 AND why IS NOT NULL";

/// Pools whose next backend could not log in; and who waits.
pub fn pools(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "pools";
    let found = server.rows(WHO_CANNOT, None)?;
    for row in &found {
        let name = |field: &str| row[field].as_str().unwrap_or("?").to_owned();
        findings.mended(
            check,
            Level::Failure,
            format!(
                "no more backends can log in for the sessions of {} in {}: {}",
                name("user"),
                name("database"),
                name("why")
            ),
            "ALTER ROLE or GRANT that back, or let them disconnect",
        );
    }
    let waiting = server.rows(
        "SELECT json_agg(json_build_object('user', user_name, 'database', database, 'waiting', waiting, \
         'longest', extract(epoch FROM longest_wait)::int)) FROM pg_baton_pools WHERE longest_wait > '5 s'",
        None,
    )?;
    for row in &waiting {
        let name = |field: &str| row[field].as_str().unwrap_or("?").to_owned();
        findings.mended(
            check,
            Level::Warning,
            format!(
                "{} sessions of {} in {} wait for a backend, one for {} seconds",
                row["waiting"],
                name("user"),
                name("database"),
                row["longest"]
            ),
            server.line("pg_baton.max_backends", "more")
                + ", or end what holds them (pg_baton_sessions)",
        );
    }
    if found.is_empty() && waiting.is_empty() {
        findings.add(
            check,
            Level::Ok,
            "all can have more backends, and nobody waits for long",
        );
    }
    Ok(())
}
