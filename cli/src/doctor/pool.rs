//! The configuration, the library, and what the dispatcher says of its pools.

use super::ask::Server;
use super::{Findings, Level};
use anyhow::Result;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

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

/// What pg_baton has not found in this server as it expects it.
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

/// Each pool with sessions: could a backend of it be replaced, and what is known of why
/// not. The rest (a password, a line of pg_hba.conf, a CONNECTION LIMIT) no catalog tells.
const POOLS: &str = "SELECT json_agg(json_build_object('user', p.user_name, 'database', p.database, \
     'options', p.options, 'can', p.can_open_backends, 'why', \
     CASE WHEN r.oid IS NULL THEN 'the role has gone or has another name' \
     WHEN NOT r.rolcanlogin THEN 'the role is NOLOGIN' \
     WHEN r.rolvaliduntil < now() THEN 'the role''s password has expired' \
     WHEN d.oid IS NULL THEN 'the database has gone or has another name' \
     WHEN NOT d.datallowconn THEN 'the database takes no connections' \
     WHEN NOT has_database_privilege(r.oid, d.oid, 'CONNECT') THEN 'the role has no CONNECT privilege' \
     END)) FROM {pools} p LEFT JOIN pg_roles r ON r.rolname = p.user_name \
     LEFT JOIN pg_database d ON d.datname = p.database WHERE p.sessions > 0";
const OTHER_CAUSE: &str =
    "a password, a line of pg_hba.conf or a CONNECTION LIMIT is not what it was as they came in";

/// What is not known the dispatcher finds out when it is asked, for some pools at a time.
const MOST_LOOKS: usize = 40;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Pools by their names; what was said of each.
type Known = BTreeMap<(String, String, String), (Option<bool>, String)>;

/// Blocks, until all is known or long enough.
fn look_at_pools(server: &Server) -> Result<Known> {
    let sql = POOLS.replace("{pools}", &server.view_name("pg_baton_pools"));
    let mut known = Known::new();
    for look in 0..MOST_LOOKS {
        if look > 0 {
            sleep(BETWEEN_LOOKS);
        }
        let rows = server.rows(&sql, None)?;
        let mut seen = Known::new();
        for row in &rows {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let name = (text("user"), text("database"), text("options"));
            // A no is good for a moment only, and is none again when others are known.
            let before = known.get(&name).and_then(|(can, _)| *can);
            let can = row["can"].as_bool().or(before);
            // There are two of a name while an outdated one is left: the worse counts.
            let other = seen.get(&name).map_or(Some(true), |(can, _)| *can);
            let can = match (can, other) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            };
            seen.insert(name, (can, text("why")));
        }
        known = seen;
        if known.values().all(|(can, _)| can.is_some()) {
            break;
        }
    }
    Ok(known)
}

/// Pools whose next backend could not log in; and who waits.
pub fn pools(server: &Server, findings: &mut Findings) -> Result<()> {
    let check = "pools";
    let known = look_at_pools(server)?;
    let cannot = known.iter().filter(|(_, (can, _))| *can == Some(false));
    let mut is_well = true;
    for ((user, database, _), (_, why)) in cannot {
        is_well = false;
        let why = if why.is_empty() { OTHER_CAUSE } else { why };
        findings.mended(
            check,
            Level::Failure,
            format!("a backend that ends may not be replaced for the sessions of {user} in {database}: {why}"),
            "give that back (ALTER ROLE, GRANT, pg_hba.conf), or have them log in anew",
        );
    }
    let unknown = known.values().filter(|(can, _)| can.is_none()).count();
    if unknown > 0 {
        is_well = false;
        let text =
            format!("of {unknown} pools it is not known whether another backend could log in");
        findings.add(check, Level::Unknown, text);
    }
    let pools = server.view_name("pg_baton_pools");
    let waiting = format!(
        "SELECT json_agg(json_build_object('user', user_name, 'database', database, 'waiting', waiting, \
         'longest', extract(epoch FROM longest_wait)::int)) FROM {pools} WHERE longest_wait > '5 s'"
    );
    let waiting = server.rows(&waiting, None)?;
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
    if is_well && waiting.is_empty() {
        findings.add(
            check,
            Level::Ok,
            "all can have more backends, and nobody waits for long",
        );
    }
    Ok(())
}
