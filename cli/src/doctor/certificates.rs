//! TLS: certificates and their end, and whether the pool's port offers it.

use super::ask::Server;
use super::dispatcher::{connect, first_answer, server_address};
use super::{Findings, Level};
use anyhow::Result;
use openssl::asn1::Asn1Time;
use openssl::x509::X509;

const CHECK: &str = "certificates";
/// So long before its end a certificate is spoken of.
const DAYS_LEFT: i32 = 30;

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
    for parameter in ["ssl_cert_file", "ssl_ca_file"] {
        let file = server.text(parameter);
        if !file.is_empty() {
            look_at_file(server, parameter, &file, findings);
        }
    }
    if is_up {
        look_at_port(server, findings)?;
    }
    Ok(())
}

fn look_at_file(server: &Server, parameter: &str, file: &str, findings: &mut Findings) {
    let sql = format!(
        "SELECT json_agg(pg_read_file('{}'))",
        file.replace('\'', "''")
    );
    let text = match server.rows(&sql, None) {
        Ok(rows) => rows
            .first()
            .and_then(|row| row.as_str())
            .unwrap_or("")
            .to_owned(),
        Err(error) => {
            let text = format!("{file} cannot be read: {error:#}");
            return findings.mended(
                CHECK,
                Level::Failure,
                text,
                server.line(parameter, format!("'{file}'")),
            );
        }
    };
    let certificates = match X509::stack_from_pem(text.as_bytes()) {
        Ok(found) if !found.is_empty() => found,
        _ => {
            let text = format!("{file} has no certificate that can be read");
            return findings.mended(
                CHECK,
                Level::Failure,
                text,
                server.line(parameter, format!("'{file}'")),
            );
        }
    };
    for (at, certificate) in certificates.iter().enumerate() {
        let name = if certificates.len() == 1 {
            file.to_owned()
        } else {
            format!("{file} (certificate {})", at + 1)
        };
        let end = certificate.not_after();
        let mend = format!("renew it, put it into {file} and reload the server");
        let now = Asn1Time::days_from_now(0).ok();
        let left = now.as_ref().and_then(|now| now.diff(end).ok());
        let is_early = now
            .as_ref()
            .is_some_and(|now| certificate.not_before() > now);
        match left {
            _ if is_early => {
                let text = format!("{name} is not valid before {}", certificate.not_before());
                findings.mended(CHECK, Level::Failure, text, mend);
            }
            None => findings.add(
                CHECK,
                Level::Unknown,
                format!("{name}: its end, {end}, is no date"),
            ),
            Some(left) if left.days < 0 || left.secs < 0 => {
                findings.mended(
                    CHECK,
                    Level::Failure,
                    format!("{name} has ended on {end}"),
                    mend,
                );
            }
            Some(left) if left.days < DAYS_LEFT => {
                let text = format!("{name} ends in {} days, on {end}", left.days);
                findings.mended(CHECK, Level::Warning, text, mend);
            }
            Some(_) => findings.add(CHECK, Level::Ok, format!("{name} is good until {end}")),
        }
    }
}

/// Does the dispatcher answer S? It has its own copy of key and certificate, and
/// goes without where it could not load them.
fn look_at_port(server: &Server, findings: &mut Findings) -> Result<()> {
    let host = server_address(server)?.unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = u16::try_from(server.number("pg_baton.port")).unwrap_or(0);
    let mut stream = connect(&host, port);
    match stream.as_mut().and_then(first_answer) {
        Some(b'S') => findings.add(CHECK, Level::Ok, "the pool's port offers TLS"),
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
