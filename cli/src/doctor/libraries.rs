//! Code that keeps a session's state in its process, where pg_baton cannot see it: preloaded
//! libraries, and the libraries of a database's functions and languages.

use super::ask::{literal, Server};
use super::dispatcher::Dispatcher;
use super::{Findings, Level};
use anyhow::Result;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const CHECK: &str = "libraries";

/// The list of known libraries, which the extension uses, too
/// (extension/src/pooled_backend/dedicated/taint_rules.c).
const KNOWN: &str = include_str!("../../../shared/known_libraries.inc");

/// Does the library keep nothing of a session that matters to the next, or is its state known?
fn is_known(name: &str) -> bool {
    KNOWN.lines().any(|line| {
        line.strip_prefix('"')
            .and_then(|line| line.strip_suffix("\","))
            == Some(name)
    })
}

/// Libraries whose state dedicates a session. The second name is the entry that lists all of
/// the library, where it has no languages: each language is listed by its own name.
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

/// Libraries that hook into the authentication of clients (ClientAuthentication_hook), by name.
/// The dispatcher itself only knows whether there is such a hook.
const OF_LOGINS: &[&str] = &["auth_delay", "credcheck", "pgauditlogtofile", "pg_auth_mon"];

/// Takes the client's label from its socket, in that hook: a pooled session has no label.
const LABELS_CLIENTS: &str = "sepgsql";
/// Runs when a process starts (session_preload_libraries), not when a client logs in.
const ONCE_A_BACKEND: &str = "login_hook";

/// The file's name without folder, suffix and version.
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

/// The names of an SQL list: lower-case unless quoted.
fn identifiers(text: &str) -> BTreeSet<String> {
    let names = text.split(',').map(str::trim);
    let names = names.map(|name| match name.strip_prefix('"') {
        Some(quoted) => quoted.trim_end_matches('"').to_owned(),
        None => name.to_lowercase(),
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The names with some more, as the value of a parameter.
fn with(names: &BTreeSet<String>, more: &[&str]) -> String {
    let names = names.iter().map(String::as_str);
    let all: Vec<_> = names.chain(more.iter().copied()).collect();
    format!("'{}'", all.join(", "))
}

/// Does the server perform each client's login? The dispatcher has the answer from the
/// launcher, which sees whether there is a hook. If the dispatcher cannot be asked, the names
/// of the libraries decide.
pub fn logins_are_the_server_s(server: &Server, dispatcher: &Dispatcher) -> bool {
    if let Some(is_so) = dispatcher.login_by_server() {
        return is_so;
    }
    match server.text("pg_baton.login").as_str() {
        "server" => true,
        "auto" => list(&server.text("shared_preload_libraries"))
            .any(|library| OF_LOGINS.contains(&base(&library)) || base(&library) == LABELS_CLIENTS),
        _ => false,
    }
}

/// Why a library is there.
#[derive(Default)]
struct Library {
    /// Where the library is named.
    places: BTreeSet<String>,
    /// Are there objects of the library (of extensions, or functions outside of any) that are
    /// not listed? False if there are none.
    has_unlisted: bool,
    /// Functions that are listed one by one.
    functions: BTreeSet<String>,
    /// The library's languages, listed or not.
    languages: BTreeSet<String>,
}

type Libraries = BTreeMap<String, Library>;

/// The C functions of a database by library and extension, and languages by the library of
/// their handler. Those that initdb makes are the server's own.
const OF_DATABASE: &str = "SELECT json_agg(a) FROM (\
     SELECT p.probin AS library, e.extname AS extension, NULL AS language, \
     array_agg(DISTINCT p.proname) FILTER (WHERE p.proname = ANY (ARRAY[{listed}]::text[])) AS functions \
     FROM pg_proc p \
     LEFT JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e' \
     LEFT JOIN pg_extension e ON e.oid = d.refobjid \
     WHERE p.prolang = 13 AND p.probin IS NOT NULL AND p.oid >= 16384 AND NOT EXISTS \
     (SELECT FROM pg_language l WHERE p.oid IN (l.lanplcallfoid, l.laninline, l.lanvalidator)) \
     GROUP BY p.probin, e.extname \
     UNION ALL \
     SELECT p.probin, NULL, l.lanname, NULL FROM pg_language l JOIN pg_proc p ON p.oid = l.lanplcallfoid \
     WHERE p.prolang = 13 AND p.probin IS NOT NULL AND p.oid >= 16384) a";

/// Settings of roles and databases, not those for all.
const OF_ROLES: &str = "SELECT json_agg(json_build_object('setting', c, 'role', r.rolname, 'database', d.datname)) \
     FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c LEFT JOIN pg_roles r ON r.oid = s.setrole \
     LEFT JOIN pg_database d ON d.oid = s.setdatabase WHERE c ~* '^(session|local)_preload_libraries='";

fn preloaded(server: &Server) -> Result<Libraries> {
    let mut found = Libraries::new();
    let mut add = |value: &str, place: &str| {
        for library in list(value) {
            let places = &mut found.entry(library).or_default().places;
            places.insert(place.to_owned());
        }
    };
    for parameter in [
        "shared_preload_libraries",
        "session_preload_libraries",
        "local_preload_libraries",
    ] {
        add(&server.text(parameter), parameter);
    }
    for row in &server.rows(OF_ROLES, None)? {
        let setting = row["setting"].as_str().unwrap_or_default();
        let Some((parameter, value)) = setting.split_once('=') else {
            continue;
        };
        let mut place = format!("{parameter} of");
        if let Some(role) = row["role"].as_str() {
            place += &format!(" role {role}");
        }
        if let Some(database) = row["database"].as_str() {
            let joint = if row["role"].is_null() { " " } else { " in " };
            place += &format!("{joint}database {database}");
        }
        if row["role"].is_null() && row["database"].is_null() {
            place += " all roles";
        }
        add(value, &place);
    }
    Ok(found)
}

fn add_of_database(row: &Value, place: &str, listed: &BTreeSet<String>, found: &mut Libraries) {
    let Some(library) = row["library"].as_str() else {
        return;
    };
    let library = found.entry(library.to_owned()).or_default();
    library.places.insert(place.to_owned());
    if let Some(language) = row["language"].as_str() {
        library.languages.insert(language.to_owned());
        return;
    }
    let extension = row["extension"].as_str();
    library.has_unlisted |= !extension.is_some_and(|name| listed.contains(name));
    let functions = row["functions"].as_array().map_or(&[][..], Vec::as_slice);
    let functions = functions.iter().filter_map(Value::as_str);
    library.functions.extend(functions.map(str::to_owned));
}

fn all(server: &Server, listed: &BTreeSet<String>, findings: &mut Findings) -> Result<Libraries> {
    let mut found = preloaded(server)?;
    let constants: Vec<_> = listed.iter().map(|name| literal(name)).collect();
    let sql = OF_DATABASE.replace("{listed}", &constants.join(", "));
    let databases = server.rows(
        "SELECT json_agg(datname ORDER BY datname) FROM pg_database WHERE datallowconn",
        None,
    )?;
    for database in databases.iter().filter_map(Value::as_str) {
        match server.rows(&sql, Some(database)) {
            Ok(rows) => {
                let place = format!("database {database}");
                for row in &rows {
                    add_of_database(row, &place, listed, &mut found);
                }
            }
            Err(error) => findings.add(
                CHECK,
                Level::Unknown,
                format!("database {database} cannot be looked at: {error:#}"),
            ),
        }
    }
    Ok(found)
}

pub fn look(server: &Server, dispatcher: &Dispatcher, findings: &mut Findings) -> Result<()> {
    let listed = identifiers(&server.text("pg_baton.dedicated_objects"));
    let stateless: BTreeSet<String> = list(&server.text("pg_baton.stateless_libraries"))
        .map(|library| base(&library).to_owned())
        .collect();
    let mut quiet = Vec::new();
    let libraries = all(server, &listed, findings)?;
    for (file, library) in &libraries {
        let name = base(file);
        let places = library.places.iter().cloned().collect::<Vec<_>>();
        let what = format!("{name} ({})", places.join(", "));
        if hooks_into_logins(server, dispatcher, name, &what, findings) {
            continue;
        }
        let keeper = KEEPERS.iter().find(|(keeper, _)| *keeper == name);
        if let Some((_, entry)) = keeper {
            if !look_at_keeper(server, library, entry, &what, &listed, findings) {
                quiet.push(name);
            }
        } else if is_known(name) || stateless.contains(name) {
            quiet.push(name);
        } else {
            findings.mended(
                CHECK,
                Level::Warning,
                format!(
                    "{what}: nobody here knows whether it keeps a session's state in its process, so whoever \
                     calls its functions keeps a backend; if it keeps none"
                ),
                server.line("pg_baton.stateless_libraries", with(&stateless, &[name])),
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

/// True if the library hooks into logins, and its effect has been reported.
fn hooks_into_logins(
    server: &Server,
    dispatcher: &Dispatcher,
    name: &str,
    what: &str,
    findings: &mut Findings,
) -> bool {
    if name == LABELS_CLIENTS {
        let text = format!(
            "{what} labels a client by its socket as a backend lets it in, and sessions that share backends have \
             no label of their own"
        );
        let mend = format!(
            "{}, or pg_baton.native_dbuser_names for those who need one",
            server.line("pg_baton.enabled", "off")
        );
        findings.mended(CHECK, Level::Failure, text, mend);
        return true;
    }
    if name == ONCE_A_BACKEND {
        let mut mend = format!(
            "for those who need it {}",
            server.line("pg_baton.native_dbuser_names", "'DATABASE/USER'")
        );
        if server.major >= 17 {
            mend += ", or a login event trigger in its place";
        }
        let text = format!("{what} runs once a backend as that starts, and not for each client");
        findings.mended(CHECK, Level::Warning, text, mend);
        return true;
    }
    if !OF_LOGINS.contains(&name) {
        return false;
    }
    if server.text("pg_baton.login") == "dispatcher" {
        let text = format!(
            "{what} hooks into logins: what it forbids, delays or notes it does not for clients that the dispatcher \
             lets in"
        );
        let mend = server.line("pg_baton.login", "auto");
        findings.mended(CHECK, Level::Warning, text, mend);
        return true;
    }
    let hooks = logins_are_the_server_s(server, dispatcher);
    if hooks {
        let text = format!("{what} hooks into logins: each is a backend's, a fork each");
        findings.add(CHECK, Level::Ok, text);
    }
    hooks
}

/// True if something is not listed, and that has been reported.
fn look_at_keeper(
    server: &Server,
    library: &Library,
    entry: &str,
    what: &str,
    listed: &BTreeSet<String>,
    findings: &mut Findings,
) -> bool {
    let parameter = "pg_baton.dedicated_objects";
    let languages: Vec<&str> = (library.languages.iter())
        .filter(|name| !listed.contains(*name))
        .map(String::as_str)
        .collect();
    if !languages.is_empty() {
        let text = format!(
            "{what} keeps a session's state in its process, and its language {} is not listed: others see it",
            languages.join(", ")
        );
        let mend = server.line(parameter, with(listed, &languages));
        findings.mended(CHECK, Level::Failure, text, mend);
        return true;
    }
    // Functions of a language's own library keep the state that the language keeps.
    if !library.languages.is_empty() || !library.has_unlisted || listed.contains(entry) {
        return false;
    }
    if !library.functions.is_empty() {
        let functions = library.functions.iter().cloned().collect::<Vec<_>>();
        let text = format!(
            "{what} keeps a session's state in its process, and of its functions only {} are listed: if others keep \
             some",
            functions.join(", ")
        );
        let mend = server.line(parameter, with(listed, &[entry]));
        findings.mended(CHECK, Level::Warning, text, mend);
        return true;
    }
    findings.mended(
        CHECK,
        Level::Failure,
        format!("{what} keeps a session's state in its process, and is not listed: others see it"),
        server.line(parameter, with(listed, &[entry])),
    );
    true
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
        let names: Vec<_> = identifiers("A, \"Bc\",,").into_iter().collect();
        assert_eq!(names, ["Bc", "a"]);
    }
}
