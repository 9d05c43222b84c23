//! Code that keeps a session's state in its process, where pg_baton cannot see it:
//! preloaded libraries, and those that functions of a database are in.

use super::ask::Server;
use super::{Findings, Level};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

const CHECK: &str = "libraries";

/// PostgreSQL's own and others' that were looked at: they keep nothing of a session
/// that matters to the next, or pg_baton knows what they keep.
const HARMLESS: &[&str] = &[
    "amcheck",
    "auto_explain",
    "autoinc",
    "bloom",
    "bool_plperl",
    "btree_gin",
    "btree_gist",
    "citext",
    "cube",
    "dict_int",
    "dict_xsyn",
    "earthdistance",
    "euc_tw_and_big5",
    "file_fdw",
    "fuzzystrmatch",
    "hstore",
    "insert_username",
    "intagg",
    "_int",
    "lo",
    "ltree",
    "moddatetime",
    "pageinspect",
    "passwordcheck",
    "pg_baton",
    "pg_buffercache",
    "pg_freespacemap",
    "pg_logicalinspect",
    "pg_overexplain",
    "pg_prewarm",
    "pg_stat_statements",
    "pg_surgery",
    "pg_trgm",
    "pg_visibility",
    "pg_walinspect",
    "pgcrypto",
    "pgoutput",
    "pgrowlocks",
    "pgstattuple",
    "pgxml",
    "plpgsql",
    "postgres_fdw",
    "refint",
    "seg",
    "sslinfo",
    "tablefunc",
    "tcn",
    "test_decoding",
    "tsm_system_rows",
    "tsm_system_time",
    "unaccent",
    "uuid-ossp",
    "xml2",
    "libpqwalreceiver",
    "dict_snowball",
    "latin2_and_win1250",
];

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
    ("libpljava", "java"),
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
    // plv8-3.2.2
    match name.split_once('-') {
        Some((name, version)) if version.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => name,
    }
}

fn list(text: &str) -> impl Iterator<Item = String> + '_ {
    let names = text
        .split(',')
        .map(|name| name.trim().trim_matches('"').to_owned());
    names.filter(|name| !name.is_empty())
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
        } else if keeper.is_some() || HARMLESS.contains(&name) || listed.contains(name) {
            quiet.push(name);
        } else {
            let value = listed
                .iter()
                .map(String::as_str)
                .chain([name])
                .collect::<Vec<_>>()
                .join(", ");
            findings.mended(
                CHECK,
                Level::Warning,
                format!("{name} ({places}): nobody here knows whether it keeps a session's state in its process; if so"),
                server.line("pg_baton.dedicated_objects", format!("'{value}'")),
            );
        }
    }
    quiet.dedup();
    if !quiet.is_empty() {
        findings.add(
            CHECK,
            Level::Ok,
            format!("known, and no harm or listed: {}", quiet.join(", ")),
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
        ] {
            assert_eq!(base(library), name);
        }
        let names: Vec<_> = list(" a, \"b\" ,,c").collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
