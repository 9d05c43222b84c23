//! TLS: when certificates and revocation lists expire, and what the pool's port serves.

use super::ask::{literal, Server};
use super::dispatcher::{connect, first_answer, server_address};
use super::{Findings, Level};
use anyhow::Result;
use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::{X509Crl, X509};
use serde_json::Value;
use std::net::TcpStream;

const CHECK: &str = "certificates";
/// A certificate that expires within this many days gets a warning.
const DAYS_LEFT: i32 = 30;
const END_OF_LIST: &str = "-----END X509 CRL-----";

pub fn look(server: &Server, is_up: bool, findings: &mut Findings) -> Result<()> {
    if !server.is_on("ssl") {
        findings.mended(
            CHECK,
            Level::Ok,
            "ssl is off: clients on the pool's port get no TLS, as on the server's own",
            server.line("ssl", "on"),
        );
        return Ok(());
    }
    let mut own = None;
    for parameter in ["ssl_cert_file", "ssl_ca_file"] {
        let file = server.text(parameter);
        if !file.is_empty() {
            let found = look_at_file(server, parameter, &file, findings);
            // The first certificate of its file is the server's; the others lead to an
            // authority.
            own = own.or(found.into_iter().next());
        }
    }
    look_at_lists(server, findings);
    if is_up {
        look_at_port(server, own.as_ref(), findings)?;
    }
    Ok(())
}

/// None, with a finding, if the file cannot be read.
fn read(server: &Server, parameter: &str, file: &str, findings: &mut Findings) -> Option<String> {
    match server.read_file(file) {
        Ok(text) => Some(text.unwrap_or_default()),
        Err(error) => {
            let text = format!("{file} cannot be read: {error:#}");
            let mend = server.line(parameter, format!("'{file}'"));
            findings.mended(CHECK, Level::Failure, text, mend);
            None
        }
    }
}

fn look_at_file(
    server: &Server,
    parameter: &str,
    file: &str,
    findings: &mut Findings,
) -> Vec<X509> {
    let Some(text) = read(server, parameter, file, findings) else {
        return Vec::new();
    };
    let certificates = match X509::stack_from_pem(text.as_bytes()) {
        Ok(found) if !found.is_empty() => found,
        _ => {
            let text = format!("{file} has no certificate that can be read");
            let mend = server.line(parameter, format!("'{file}'"));
            findings.mended(CHECK, Level::Failure, text, mend);
            return Vec::new();
        }
    };
    for (at, certificate) in certificates.iter().enumerate() {
        let name = if certificates.len() == 1 {
            file.to_owned()
        } else {
            format!("{file} (certificate {})", at + 1)
        };
        let mend = format!("renew it, put it into {file} and reload the server");
        let now = Asn1Time::days_from_now(0).ok();
        if now.is_some_and(|now| certificate.not_before() > now) {
            let text = format!("{name} is not valid before {}", certificate.not_before());
            findings.mended(CHECK, Level::Failure, text, mend);
        } else {
            look_at_end(&name, certificate.not_after(), "", mend, findings);
        }
    }
    certificates
}

/// Whether the time is past, and the whole days until then; None if it is no date.
fn time_left(end: &Asn1TimeRef) -> Option<(bool, i32)> {
    let now = Asn1Time::days_from_now(0).ok()?;
    let left = now.diff(end).ok()?;
    Some((left.days < 0 || left.secs < 0, left.days))
}

fn look_at_end(name: &str, end: &Asn1TimeRef, harm: &str, mend: String, findings: &mut Findings) {
    match time_left(end) {
        None => findings.add(
            CHECK,
            Level::Unknown,
            format!("{name}: its end, {end}, is no date"),
        ),
        Some((true, _)) => {
            let text = format!("{name} has ended on {end}{harm}");
            findings.mended(CHECK, Level::Failure, text, mend);
        }
        Some((false, days)) if days < DAYS_LEFT => {
            let text = format!("{name} ends in {days} days, on {end}");
            findings.mended(CHECK, Level::Warning, text, mend);
        }
        Some(_) => findings.add(CHECK, Level::Ok, format!("{name} is good until {end}")),
    }
}

// ---- revoked certificates -----------------------------------------------------

/// After a list has expired, every certificate of its authority is refused.
fn look_at_lists(server: &Server, findings: &mut Findings) {
    let mut files = Vec::new();
    let file = server.text("ssl_crl_file");
    if !file.is_empty() {
        files.push(("ssl_crl_file", file));
    }
    let folder = server.text("ssl_crl_dir");
    if !folder.is_empty() {
        // The names under which OpenSSL looks for them: a hash, .r and a number.
        let sql = format!(
            "SELECT json_agg(name ORDER BY name) FROM pg_ls_dir({}) name WHERE name ~ '\\.r[0-9]+$'",
            literal(&folder)
        );
        match server.rows(&sql, None) {
            Ok(rows) => {
                let names = rows.iter().filter_map(Value::as_str);
                files.extend(names.map(|name| ("ssl_crl_dir", format!("{folder}/{name}"))));
            }
            Err(error) => findings.mended(
                CHECK,
                Level::Failure,
                format!("{folder} cannot be read: {error:#}"),
                server.line("ssl_crl_dir", format!("'{folder}'")),
            ),
        }
    }
    for (parameter, file) in files {
        let Some(text) = read(server, parameter, &file, findings) else {
            continue;
        };
        let lists = text.split_inclusive(END_OF_LIST);
        for list in lists.filter(|list| list.ends_with(END_OF_LIST)) {
            match X509Crl::from_pem(list.as_bytes()) {
                Ok(list) => {
                    if let Some(end) = list.next_update() {
                        let harm = ": its authority's certificates are refused";
                        let mend = format!("put a new one into {file} and reload the server");
                        look_at_end(&file, end, harm, mend, findings);
                    }
                }
                Err(_) => findings.mended(
                    CHECK,
                    Level::Failure,
                    format!("{file} has a list of revoked certificates that cannot be read"),
                    server.line(parameter, format!("'{file}'")),
                ),
            }
        }
    }
}

// ---- what is served -------------------------------------------------------------

/// Does the dispatcher answer S, and which certificate does it serve? The dispatcher has its
/// own copy of key and certificate, runs without TLS if it could not load them, and reads them
/// again when the server is reloaded.
fn look_at_port(server: &Server, own: Option<&X509>, findings: &mut Findings) -> Result<()> {
    let host = server_address(server)?.unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = u16::try_from(server.number("pg_baton.port")).unwrap_or(0);
    let Some(mut stream) = connect(&host, port) else {
        let text = format!("the pool's port does not answer at {host}:{port} from here");
        findings.add(CHECK, Level::Unknown, text);
        return Ok(());
    };
    match first_answer(&mut stream) {
        Some(b'S') => look_at_served(served(stream, &host), own, server, findings),
        Some(_) => findings.mended(
            CHECK,
            Level::Failure,
            "ssl is on, and the pool's port offers no TLS",
            "\"SSL configuration\" in the server's log says why; mend that and reload the server",
        ),
        None => findings.add(
            CHECK,
            Level::Unknown,
            format!("the pool's port does not answer at {host}:{port} from here"),
        ),
    }
    Ok(())
}

/// The certificate, whichever authority has signed it and whatever names it has. Blocks, as
/// long as the stream's time limits allow.
pub fn served(stream: TcpStream, host: &str) -> Option<X509> {
    let mut builder = SslConnector::builder(SslMethod::tls_client()).ok()?;
    builder.set_verify(SslVerifyMode::NONE);
    builder.set_min_proto_version(None).ok()?;
    let mut configuration = builder.build().configure().ok()?;
    configuration.set_verify_hostname(false);
    configuration.set_use_server_name_indication(false);
    let stream = configuration.connect(host, stream).ok()?;
    stream.ssl().peer_certificate()
}

fn look_at_served(
    served: Option<X509>,
    own: Option<&X509>,
    server: &Server,
    findings: &mut Findings,
) {
    let Some(served) = served else {
        let text = "the pool's port offers TLS, and a handshake from here fails";
        return findings.add(CHECK, Level::Unknown, text);
    };
    let is_own = own.is_none_or(|own| is_same(own, &served));
    if is_own {
        return findings.add(CHECK, Level::Ok, "the pool's port offers TLS");
    }
    let file = server.text("ssl_cert_file");
    let end = served.not_after();
    let (level, until) = match time_left(end) {
        Some((true, _)) => (Level::Failure, "that has ended on"),
        _ => (Level::Warning, "good until"),
    };
    findings.mended(
        CHECK,
        level,
        format!("the pool's port serves another certificate than {file} has, {until} {end}"),
        "reload the server",
    );
}

fn is_same(one: &X509, other: &X509) -> bool {
    match (one.to_der(), other.to_der()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
