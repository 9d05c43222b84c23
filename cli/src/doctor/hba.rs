//! Each line of pg_hba.conf, and how a client of the pool's port that matches it is served.

use super::ask::Server;
use super::dispatcher::Dispatcher;
use super::{libraries, Findings, Level};
use anyhow::Result;
use serde_json::Value;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

/// A name server that takes longer than this delays logins.
const NAME_LIMIT: Duration = Duration::from_secs(2);

const RULES_OF_16: &str =
    "SELECT json_agg(h ORDER BY rule_number NULLS FIRST, line_number) FROM pg_hba_file_rules h";
const RULES_OF_15: &str = "SELECT json_agg(h ORDER BY line_number) FROM pg_hba_file_rules h";

/// How the pool's port carries out the method of a line.
enum Served {
    /// By the dispatcher.
    Dispatcher,
    /// By a backend, with the server's own code.
    Backend,
    /// By a backend that belongs to the session for life, as no session is pooled.
    Native,
    /// The method is not available on the pool's port.
    Never,
}

/// What all lines have in common.
struct Pool {
    logins_are_the_server_s: bool,
    /// If no session shares backends: the setting that causes it, and the value that it would
    /// need.
    all_native: Option<(&'static str, &'static str)>,
}

fn pool(server: &Server, dispatcher: &Dispatcher) -> Pool {
    let names = server.text("pg_baton.native_dbuser_names");
    let all_native = if server.is_on("db_user_namespace") {
        Some(("db_user_namespace", "off"))
    } else if server.has("pg_baton.enabled") && !server.is_on("pg_baton.enabled") {
        Some(("pg_baton.enabled", "on"))
    } else if names_everybody(&names) {
        Some(("pg_baton.native_dbuser_names", "''"))
    } else {
        None
    };
    Pool {
        logins_are_the_server_s: libraries::logins_are_the_server_s(server, dispatcher),
        all_native,
    }
}

/// Does a list of databases and users have an entry for any user in any database?
fn names_everybody(names: &str) -> bool {
    let is_any = |name: &str| matches!(name.trim(), "*" | "_");
    let mut entries = names.split(',').filter_map(|entry| entry.split_once('/'));
    entries.any(|(database, user)| is_any(database) && is_any(user))
}

fn served(server: &Server, pool: &Pool, method: &str) -> Served {
    if pool.all_native.is_some() {
        return Served::Native;
    }
    let all_by_server = pool.logins_are_the_server_s;
    match method {
        "trust" | "reject" | "scram-sha-256" | "md5" | "password" | "peer" | "cert"
            if !all_by_server =>
        {
            Served::Dispatcher
        }
        _ if server.has("pg_baton.login") => Served::Backend,
        _ => Served::Never,
    }
}

fn words(value: &Value) -> Vec<String> {
    let all = value.as_array().map_or(&[][..], Vec::as_slice);
    all.iter()
        .filter_map(|word| word.as_str().map(str::to_owned))
        .collect()
}

/// The host name; None for an address, or a word that stands for addresses.
fn host_name(address: &str) -> Option<&str> {
    let is_word = matches!(address, "" | "all" | "samehost" | "samenet");
    let ip = address.split('/').next().unwrap_or("");
    (!is_word && ip.parse::<IpAddr>().is_err()).then_some(address)
}

/// Does a name server know the name, in time? The server looks up the address first, which
/// cannot be tried without a client. Blocks, for at most NAME_LIMIT.
fn is_found(name: &str) -> Result<bool, ()> {
    // A suffix stands for all names that end with it.
    if name.starts_with('.') {
        return Ok(true);
    }
    let (tell, hear) = mpsc::channel();
    let asked = (name.to_owned(), 0u16);
    std::thread::spawn(move || {
        let found = asked
            .to_socket_addrs()
            .is_ok_and(|mut all| all.next().is_some());
        let _ = tell.send(found);
    });
    hear.recv_timeout(NAME_LIMIT).map_err(|_| ())
}

struct Line {
    place: String,
    /// The line's text, nearly as it is in the file.
    text: String,
    kind: String,
    method: String,
    databases: Vec<String>,
    address: String,
    options: Vec<String>,
    error: Option<String>,
}

fn line(row: &Value, file: &str) -> Line {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let file = row["file_name"].as_str().unwrap_or(file);
    let (databases, users) = (words(&row["database"]), words(&row["user_name"]));
    let mut parts = vec![
        text("type"),
        databases.join(","),
        users.join(","),
        text("address"),
        text("auth_method"),
    ];
    parts.retain(|part| !part.is_empty());
    Line {
        place: format!("{file} line {}", row["line_number"]),
        text: parts.join(" "),
        kind: text("type"),
        method: text("auth_method"),
        databases,
        address: text("address"),
        options: words(&row["options"]),
        error: row["error"].as_str().map(str::to_owned),
    }
}

pub fn lines(server: &Server, dispatcher: &Dispatcher, findings: &mut Findings) -> Result<()> {
    let sql = if server.major >= 16 {
        RULES_OF_16
    } else {
        RULES_OF_15
    };
    let file = server.text("hba_file");
    let rows = server.rows(sql, None)?;
    let pool = pool(server, dispatcher);
    for row in &rows {
        look(server, &pool, &line(row, &file), findings);
    }
    let names = server.text("pg_baton.native_dbuser_names");
    if let Some((parameter, value)) = pool.all_native {
        let text = format!(
            "every session is native, none shares backends, while {parameter} is {}",
            server.text(parameter)
        );
        findings.mended(CHECK, Level::Warning, text, server.line(parameter, value));
    } else if !names.is_empty() {
        let text = format!(
            "sessions of {names} (database/user) are native, each a backend of its own: \
             pg_baton.native_dbuser_names"
        );
        findings.add(CHECK, Level::Ok, text);
    }
    Ok(())
}

const CHECK: &str = "pg_hba.conf";

fn look(server: &Server, pool: &Pool, line: &Line, findings: &mut Findings) {
    let place = &line.place;
    let what = format!("{place} ({})", line.text);
    // The line has an error as well, but does no harm.
    if line.kind == "hostssl" && !server.is_on("ssl") {
        let text = format!("{what}: never matches while ssl is off");
        return findings.mended(CHECK, Level::Warning, text, server.line("ssl", "on"));
    }
    if let Some(error) = &line.error {
        let text = format!("a line is wrong, and what was loaded before is in force: {error}");
        return findings.mended(CHECK, Level::Failure, text, place.clone());
    }
    if line.kind == "hostgssenc" && line.method != "reject" {
        return look_at_gss(server, &what, findings);
    }
    let served = served(server, pool, &line.method);
    if let Served::Never = served {
        let mend = format!(
            "{place}: a line before it for these clients with scram-sha-256 or cert, or they connect to port {}",
            server.number("port")
        );
        let text = format!(
            "{what}: method {} is refused on the pool's port",
            line.method
        );
        return findings.mended(CHECK, Level::Failure, text, mend);
    }
    let wants_certificate = line.method == "cert"
        || line
            .options
            .iter()
            .any(|word| word.starts_with("clientcert="));
    if wants_certificate && server.text("ssl_ca_file").is_empty() {
        let text = format!("{what}: lets nobody in, since no certificate can be checked");
        return findings.mended(
            CHECK,
            Level::Failure,
            text,
            server.line("ssl_ca_file", "'root.crt'"),
        );
    }
    if let Some(name) = host_name(&line.address) {
        let mend = format!("{place}: an address in place of the name");
        let delays = "each login that comes to this line asks a name server";
        return match is_found(name) {
            Ok(true) => findings.mended(CHECK, Level::Warning, format!("{what}: {delays}"), mend),
            Ok(false) => findings.mended(
                CHECK,
                Level::Failure,
                format!("{what}: {delays}, and this machine's does not know {name}"),
                mend,
            ),
            Err(()) => findings.mended(
                CHECK,
                Level::Failure,
                format!(
                    "{what}: {delays}, and it has not answered for {} seconds",
                    NAME_LIMIT.as_secs()
                ),
                mend,
            ),
        };
    }
    let is_native = matches!(served, Served::Native);
    let by = if is_native || line.databases == ["replication"] {
        "by the server itself, each connection a backend of its own"
    } else if let Served::Backend = served {
        "by a backend with the server's own code, a fork each login"
    } else {
        "by the dispatcher"
    };
    findings.add(CHECK, Level::Ok, format!("{what}: served {by}"));
}

/// A line that matches only clients with GSSAPI encryption.
fn look_at_gss(server: &Server, what: &str, findings: &mut Findings) {
    let parameter = "pg_baton.gss_encryption";
    if !server.has(parameter) || server.text(parameter) == "off" {
        let text = format!("{what}: never matches, the pool's port offers no GSSAPI encryption");
        return findings.mended(CHECK, Level::Warning, text, server.line(parameter, "auto"));
    }
    let text = format!(
        "{what}: served by the server itself, each connection a backend of its own; so is every client's that has a \
         ticket of Kerberos and no gssencmode=disable"
    );
    findings.add(CHECK, Level::Warning, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_any_user_in_any_database() {
        assert!(names_everybody("*/*") && names_everybody("a/b, _/*"));
        assert!(!names_everybody("") && !names_everybody("d/*,*/u") && !names_everybody("\"*\"/*"));
    }

    #[test]
    fn a_name_is_told_from_an_address() {
        for address in [
            "",
            "all",
            "samenet",
            "10.0.0.0/8",
            "::1",
            "fe80::/10",
            "127.0.0.1",
        ] {
            assert_eq!(host_name(address), None, "{address}");
        }
        for name in ["db.example.com", ".example.com", "localhost"] {
            assert_eq!(host_name(name), Some(name));
        }
    }
}
