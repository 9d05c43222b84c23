//! The configuration, the library, and what the dispatcher reports of its pools.

use super::ask::Server;
use super::{Findings, Level};
use anyhow::Result;

/// Reports errors in the configuration files, and parameters that wait for a restart.
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

/// Is the library loaded at all?
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

/// Reports the self-checks in which pg_baton has not found what it expects in this server.
pub fn failed_checks(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "self-checks";
    let rows = server.view("pg_baton_failed_checks")?;
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

/// Reports the pools in which sessions wait.
pub fn pools(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "pools";
    let pools = server.view_name("pg_baton_pools");
    let waiting = format!(
        "SELECT json_agg(json_build_object('database', database, 'waiting', waiting, \
         'longest', extract(epoch FROM longest_wait)::int)) FROM {pools} WHERE longest_wait > '5 s'"
    );
    let waiting = server.rows(&waiting, None)?;
    for row in &waiting {
        let name = |field: &str| row[field].as_str().unwrap_or("?").to_owned();
        findings.mended(
            check,
            Level::Warning,
            format!(
                "{} sessions in {} wait for a backend, one for {} seconds",
                row["waiting"],
                name("database"),
                row["longest"]
            ),
            server.line("pg_baton.max_backends", "more")
                + ", or end what holds them (pg_baton_sessions)",
        );
    }
    if waiting.is_empty() {
        findings.add(check, Level::Ok, "nobody waits for long");
    }
    Ok(())
}
