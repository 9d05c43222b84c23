//! The server's parameters: those of the demonstration, and those of its user.

use super::{comparison, Arguments, NAME};
use anyhow::{bail, Result};
use std::fmt::Write;
use std::net::TcpListener;
use std::path::Path;

pub const LOOPBACK: &str = "127.0.0.1";

/// Parses NAME=VALUE; refuses parameters that the demonstration needs for itself.
pub fn parse(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("\"{text}\" is not of the form NAME=VALUE"))?;
    let name = name.trim();
    let known_characters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(known_characters) {
        return Err(format!("\"{name}\" cannot be the name of a parameter"));
    }
    if value.contains(['\n', '\r', '\0']) {
        return Err(format!("the value of \"{name}\" has a line break in it"));
    }
    let option = match name.to_ascii_lowercase().as_str() {
        "port" => Some("--pg-port"),
        "pg_baton.port" => Some("--port"),
        _ => None,
    };
    if let Some(option) = option {
        return Err(format!("\"{name}\" is set by {option}"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// The parameters of the demonstration. The user's settings come last, since the last line of a
/// parameter counts.
pub fn all(
    arguments: &Arguments,
    pg_port: u16,
    pool_port: u16,
    directory: &Path,
) -> Vec<(String, String)> {
    // The direct half of the comparison needs a backend for each client.
    let max_connections = comparison::CLIENTS + arguments.backends + 20;
    let fixed: [(&str, String); 10] = [
        ("listen_addresses", loopback_addresses().to_owned()),
        ("port", pg_port.to_string()),
        ("unix_socket_directories", in_list(directory)),
        ("max_connections", max_connections.to_string()),
        ("shared_buffers", "256MB".to_owned()),
        // The cluster does not outlive this program.
        ("fsync", "off".to_owned()),
        ("log_line_prefix", "%m [%p] %q%u@%d ".to_owned()),
        ("shared_preload_libraries", "pg_baton".to_owned()),
        ("pg_baton.port", pool_port.to_string()),
        ("pg_baton.max_backends", arguments.backends.to_string()),
    ];
    let own = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let rest = addresses(arguments);
    own.chain(rest.iter().map(with_pool)).collect()
}

/// The user's settings. If the pool takes the server's place, they follow the addresses where
/// server and pool listen.
pub fn addresses(arguments: &Arguments) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    if arguments.same_port {
        let pool = loopback_addresses().to_owned();
        settings.push(("listen_addresses".to_owned(), String::new()));
        settings.push(("pg_baton.listen_addresses".to_owned(), pool));
    }
    settings.extend(arguments.set.iter().cloned());
    settings
}

/// The demonstration needs the library: other libraries come after it.
fn with_pool((name, value): &(String, String)) -> (String, String) {
    let value = if !name.eq_ignore_ascii_case("shared_preload_libraries") {
        value.clone()
    } else if value.trim().is_empty() {
        "pg_baton".to_owned()
    } else {
        format!("pg_baton, {value}")
    };
    (name.clone(), value)
}

/// A directory as an element of a list: in quotes, as it may contain a comma.
fn in_list(directory: &Path) -> String {
    format!(
        "\"{}\"",
        directory.display().to_string().replace('"', "\"\"")
    )
}

/// The host by which both ports are asked: the loopback address, or the directory of their Unix
/// sockets if they do not listen there.
pub fn host(settings: &[(String, String)], directory: &Path) -> Result<String> {
    let last = |wanted: &str| {
        let mut found = settings.iter().rev();
        found
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.as_str())
    };
    let has_loopback = |list: &str| {
        list.split(',')
            .map(|name| name.trim().trim_matches('"'))
            .any(|name| ["*", "0.0.0.0", LOOPBACK, "localhost"].contains(&name))
    };
    let addresses = [last("listen_addresses"), last("pg_baton.listen_addresses")];
    // An empty pg_baton.listen_addresses means the server's.
    let mut given = addresses
        .iter()
        .enumerate()
        .filter_map(|(index, list)| list.filter(|list| index == 0 || !list.is_empty()));
    if given.all(has_loopback) {
        return Ok(LOOPBACK.to_owned());
    }
    let host = directory.display().to_string();
    if last("unix_socket_directories").is_some() || host.contains(',') {
        bail!("neither {LOOPBACK} nor a Unix socket in {host} is left to ask the server by: let listen_addresses have {LOOPBACK}");
    }
    Ok(host)
}

/// A port's address for libpq; in a URI all but a few characters are escaped.
pub fn address(host: &str, port: u16) -> String {
    if !host.starts_with('/') {
        return format!("postgresql://{NAME}@{host}:{port}/{NAME}");
    }
    let mut escaped = String::new();
    for byte in host.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    format!("postgresql://{NAME}@/{NAME}?host={escaped}&port={port}")
}

fn loopback_addresses() -> &'static str {
    if TcpListener::bind("[::1]:0").is_ok() {
        "127.0.0.1,::1"
    } else {
        LOOPBACK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_keeps_everything_after_the_first_equals_sign() {
        let setting = parse("my.options=-c a=b").expect("is well formed");
        assert_eq!(setting, ("my.options".to_owned(), "-c a=b".to_owned()));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for text in [
            "",
            "port",
            "=1",
            "a b=1",
            "a\nb=1",
            "a=1\nport=2",
            "port=1",
            "PG_Baton.Port=1",
        ] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }

    fn setting(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn libraries_come_after_pg_baton() {
        for (given, expected) in [("", "pg_baton"), ("a, b", "pg_baton, a, b")] {
            let found = with_pool(&setting("Shared_Preload_Libraries", given));
            assert_eq!(found.1, expected);
        }
        assert_eq!(with_pool(&setting("work_mem", "1MB")).1, "1MB");
    }

    #[test]
    fn the_server_is_asked_where_it_listens() {
        let directory = Path::new("/tmp/d");
        let host = |settings: &[(String, String)]| host(settings, directory).ok();
        let tcp = Some("127.0.0.1".to_owned());
        let socket = Some("/tmp/d".to_owned());
        assert_eq!(host(&[]), tcp);
        assert_eq!(host(&[setting("listen_addresses", "*")]), tcp);
        assert_eq!(host(&[setting("listen_addresses", "")]), socket);
        let both = [
            setting("listen_addresses", "localhost"),
            setting("pg_baton.listen_addresses", "::1"),
        ];
        assert_eq!(host(&both), socket);
        let neither = [
            setting("listen_addresses", ""),
            setting("unix_socket_directories", ""),
        ];
        assert_eq!(host(&neither), None);
        // libpq would take it for two hosts
        let closed = [setting("listen_addresses", "")];
        assert!(super::host(&closed, Path::new("/tmp/a,b")).is_err());
    }

    #[test]
    fn address_has_a_form_that_libpq_reads() {
        assert_eq!(
            address("127.0.0.1", 7),
            "postgresql://demo@127.0.0.1:7/demo"
        );
        assert_eq!(
            address("/tmp/a b%", 7),
            "postgresql://demo@/demo?host=%2Ftmp%2Fa%20b%25&port=7"
        );
    }

    #[test]
    fn a_directory_in_a_list_is_quoted() {
        assert_eq!(in_list(Path::new("/a,\"b")), "\"/a,\"\"b\"");
    }
}
