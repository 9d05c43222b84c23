//! Code that keeps a session's state in its process, where pg_baton cannot see it:
//! preloaded libraries, and those that functions of a database are in.

use super::ask::Server;
use super::{Findings, Level};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

const CHECK: &str = "libraries";

/// What the extension knows, too (extension/src/pooled_backend/dedicated/taint_library.c).
const KNOWN: &str = include_str!("../../../shared/known_libraries.inc");

/// Does it keep nothing of a session that matters to the next, or is known what?
fn is_known(name: &str) -> bool {
    KNOWN.lines().any(|line| {
        line.strip_prefix('"')
            .and_then(|line| line.strip_suffix("\","))
            == Some(name)
    })
}

/// Whose state dedicates a session: by what name they stand in the list.
const KEEPERS: &[(&str, &str)] = &[
    ("dblink", "dblink"),
    ("isn", "isn_weak"),
    ("orafce", "orafce"),
    ("pg_variables", "pg_variables"),
    ("pllua", "pllua"),
    ("plperl", "plperl"),
    ("plpython3", "plpython3u"),
    ("plr", "plr"),
    ("pltcl", "pltcl"),
    ("plv8", "plv8"),
    ("libpljava-so", "java"),
];

/// Hooks into what a client's login is: called for backends, not for clients.
const OF_LOGINS: &[&str] = &[
    "auth_delay",
    "credcheck",
    "login_hook",
    "pgauditlogtofile",
    "pg_auth_mon",
    "sepgsql",
];

/// The file's name, without folder, suffix and version.
fn base(library: &str) -> &str {
    let file = library.rsplit('/').next().unwrap_or(library);
    let name = file.strip_suffix(".so").unwrap_or(file);
    // plv8-3.2.2, postgis-3
    match name.rsplit_once('-') {
        Some((name, version))
            if version.starts_with(|c: char| c.is_ascii_digit())
                && version.chars().all(|c| c.is_ascii_digit() || c == '.') =>
        {
            name
        }
        _ => name,
    }
}

fn list(text: &str) -> impl Iterator<Item = String> + '_ {
    let names = text
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned());
    names.filter(|name| !name.is_empty())
}

/// Is one preloaded whose hook the server calls for each client it authenticates?
pub fn hook_into_logins(server: &Server) -> bool {
    list(&server.text("shared_preload_libraries"))
        .any(|library| OF_LOGINS.contains(&base(&library)))
}

pub fn look(server: &Server, findings: &mut Findings) -> Result<()> {
    // Library: where it is from.
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for parameter in [
        "shared_preload_libraries",
        "session_preload_libraries",
        "local_preload_libraries",
    ] {
        for library in list(&server.text(parameter)) {
            found
                .entry(library)
                .or_default()
                .insert(parameter.to_owned());
        }
    }
    let databases = server.rows(
        "SELECT json_agg(datname ORDER BY datname) FROM pg_database WHERE datallowconn",
        None,
    )?;
    for database in databases.iter().filter_map(|name| name.as_str()) {
        // Those that initdb makes are the server's own.
        let sql = "SELECT json_agg(DISTINCT probin) FROM pg_proc WHERE prolang = 13 AND probin IS NOT NULL \
             AND oid >= 16384";
        match server.rows(sql, Some(database)) {
            Ok(libraries) => {
                for library in libraries.iter().filter_map(|name| name.as_str()) {
                    let places = found.entry(library.to_owned()).or_default();
                    places.insert(format!("database {database}"));
                }
            }
            Err(error) => findings.add(
                CHECK,
                Level::Unknown,
                format!("database {database} cannot be looked at: {error:#}"),
            ),
        }
    }
    let listed: BTreeSet<String> = list(&server.text("pg_baton.dedicated_objects")).collect();
    let stateless: BTreeSet<String> = list(&server.text("pg_baton.stateless_libraries"))
        .map(|library| base(&library).to_owned())
        .collect();
    let mut quiet = Vec::new();
    for (library, places) in &found {
        let name = base(library);
        let places = places.iter().cloned().collect::<Vec<_>>().join(", ");
        let keeper = KEEPERS.iter().find(|(keeper, _)| *keeper == name);
        if OF_LOGINS.contains(&name) && server.text("pg_baton.login") == "dispatcher" {
            findings.mended(
                CHECK,
                Level::Warning,
                format!(
                    "{name} ({places}) hooks into logins: what it forbids, delays or notes it does not for clients \
                     that the dispatcher lets in"
                ),
                server.line("pg_baton.login", "auto"),
            );
        } else if OF_LOGINS.contains(&name) {
            let text =
                format!("{name} ({places}) hooks into logins: each is a backend's, a fork each");
            findings.add(CHECK, Level::Ok, text);
        } else if let Some((_, entry)) = keeper.filter(|(_, entry)| !listed.contains(*entry)) {
            let value = listed
                .iter()
                .map(String::as_str)
                .chain([*entry])
                .collect::<Vec<_>>()
                .join(", ");
            findings.mended(
                CHECK,
                Level::Failure,
                format!("{name} ({places}) keeps a session's state in its process, and is not listed: others see it"),
                server.line("pg_baton.dedicated_objects", format!("'{value}'")),
            );
        } else if keeper.is_some() || is_known(name) || stateless.contains(name) {
            quiet.push(name);
        } else {
            let value = stateless
                .iter()
                .map(String::as_str)
                .chain([name])
                .collect::<Vec<_>>()
                .join(", ");
            findings.mended(
                CHECK,
                Level::Warning,
                format!(
                    "{name} ({places}): nobody here knows whether it keeps a session's state in its process, so whoever \
                     calls its functions keeps a backend; if it keeps none"
                ),
                server.line("pg_baton.stateless_libraries", format!("'{value}'")),
            );
        }
    }
    quiet.dedup();
    if !quiet.is_empty() {
        findings.add(
            CHECK,
            Level::Ok,
            format!("known, or listed: {}", quiet.join(", ")),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_file_s_name() {
        for (library, name) in [
            ("$libdir/pgcrypto", "pgcrypto"),
            ("/usr/lib/x/plv8-3.2.2.so", "plv8"),
            ("uuid-ossp", "uuid-ossp"),
            ("$libdir/plugins/a.so", "a"),
            ("$libdir/postgis-3", "postgis"),
            ("timescaledb-tsl-2.17.2", "timescaledb-tsl"),
            ("libpljava-so-1.6.8.so", "libpljava-so"),
        ] {
            assert_eq!(base(library), name);
        }
        assert!(is_known("plpgsql") && is_known("uuid-ossp") && is_known("wal2json"));
        assert!(!is_known("hypopg") && !is_known("") && !is_known("sepgsql"));
        let names: Vec<_> = list(" a, \"b\" ,,c").collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
