//! Each line of pg_hba.conf, and how a client of the pool's port that it lets in is
//! served.

use super::ask::Server;
use super::{libraries, Findings, Level};
use anyhow::Result;
use serde_json::Value;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

/// A name server that takes longer holds up logins.
const NAME_LIMIT: Duration = Duration::from_secs(2);

const RULES_OF_16: &str =
    "SELECT json_agg(h ORDER BY rule_number NULLS FIRST, line_number) FROM pg_hba_file_rules h";
const RULES_OF_15: &str = "SELECT json_agg(h ORDER BY line_number) FROM pg_hba_file_rules h";

/// How a line's method is carried out on the pool's port.
enum Served {
    /// By the dispatcher.
    Dispatcher,
    /// By a backend, with the server's own code.
    Backend,
    /// Not there.
    Never,
}

fn served(server: &Server, method: &str) -> Served {
    // As the launcher decides (login_by_server in parameters_message.c).
    let all_by_server = match server.text("pg_baton.login").as_str() {
        "server" => true,
        "auto" => libraries::hook_into_logins(server),
        _ => false,
    };
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

/// Neither an address nor a word that stands for some.
fn host_name(address: &str) -> Option<&str> {
    let is_word = matches!(address, "" | "all" | "samehost" | "samenet");
    let ip = address.split('/').next().unwrap_or("");
    (!is_word && ip.parse::<IpAddr>().is_err()).then_some(address)
}

/// Does a name server know it, in time? The server asks by address first, which
/// cannot be tried without a client. Blocks, not for long.
fn is_found(name: &str) -> Result<bool, ()> {
    // A suffix stands for all names that end so.
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
    /// As it stands there, nearly.
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

pub fn lines(server: &Server, findings: &mut Findings) -> Result<()> {
    let sql = if server.major >= 16 {
        RULES_OF_16
    } else {
        RULES_OF_15
    };
    let file = server.text("hba_file");
    let rows = server.rows(sql, None)?;
    for row in &rows {
        look(server, &line(row, &file), findings);
    }
    if server.is_on("db_user_namespace") {
        findings.mended(
            CHECK,
            Level::Warning,
            "every session is native, none shares backends, while db_user_namespace is on",
            server.line("db_user_namespace", "off"),
        );
    }
    Ok(())
}

const CHECK: &str = "pg_hba.conf";

fn look(server: &Server, line: &Line, findings: &mut Findings) {
    let place = &line.place;
    let what = format!("{place} ({})", line.text);
    // It has an error as well, but does no harm.
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
    let served = served(server, &line.method);
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
    let by = if line.databases == ["replication"] {
        "by the server itself, each connection a backend of its own"
    } else if let Served::Backend = served {
        "by a backend with the server's own code, a fork each login"
    } else {
        "by the dispatcher"
    };
    findings.add(CHECK, Level::Ok, format!("{what}: served {by}"));
}

/// A line of those who have GSSAPI encryption alone.
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
