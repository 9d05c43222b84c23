//! The ports on which the demonstration listens.

use super::system::Account;
use anyhow::{bail, Context, Result};
use std::io::ErrorKind;
use std::net::TcpListener;

/// How many ports the search for a free one tries.
const PORTS_TRIED: u16 = 100;
/// The kernel's default, where it cannot be read (IPPROT_SOCK, net/sock.h).
const FIRST_UNPRIVILEGED: u16 = 1024;

/// The requested port, if it is free; else the first free one. `account`: the user as which the
/// server runs, if that is not the caller.
pub fn choose(
    option: &str,
    asked: Option<u16>,
    default: u16,
    other: Option<u16>,
    account: Option<&Account>,
) -> Result<u16> {
    let listen = |port: u16| TcpListener::bind(("127.0.0.1", port)).map(drop);
    let Some(port) = asked else {
        return (default..default + PORTS_TRIED)
            .find(|&port| Some(port) != other && listen(port).is_ok())
            .with_context(|| format!("no free port from {default} on, choose one with {option}"));
    };
    if Some(port) == other {
        bail!("port {port} is the server's own, choose another with {option}");
    }
    if let Some(account) = account.filter(|_| port < first_unprivileged()) {
        bail!(
            "user {}, as whom the server runs, may not listen on port {port}, choose another with {option}",
            account.name
        );
    }
    match listen(port) {
        Ok(()) => Ok(port),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("port {port} is taken, choose another with {option}")
        }
        Err(error) => {
            bail!("cannot listen on port {port} ({error}), choose another with {option}")
        }
    }
}

/// Ports below this one are root's (ip(7)).
fn first_unprivileged() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(FIRST_UNPRIVILEGED)
}
