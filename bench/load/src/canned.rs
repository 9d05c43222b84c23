//! A server of canned answers, which shows how fast a client alone can be.
//!
//! It greets each client, answers each Query with the same row, and does nothing else. A
//! measurement against it covers the client, the kernel's TCP, and the least that any server
//! would have to do. One thread, one epoll. A connection is dropped when it ends or sends what
//! no benchmark's client sends.

use super::system::Epoll;
use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// The listener's number in the epoll; a connection has the number of its place.
const LISTENER: u64 = u64::MAX;
const WAIT_MS: i32 = 100;
const READ_BYTES: usize = 4096;
const SSL_REQUEST: u32 = 80_877_103;
const GSSENC_REQUEST: u32 = 80_877_104;
/// As many parameters as a server of version 15 reports.
const PARAMETERS: [(&str, &str); 13] = [
    ("application_name", "pgbench"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("default_transaction_read_only", "off"),
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("IntervalStyle", "postgres"),
    ("is_superuser", "on"),
    ("server_encoding", "UTF8"),
    ("server_version", "15.0"),
    ("session_authorization", "demo"),
    ("standard_conforming_strings", "on"),
    ("TimeZone", "Etc/UTC"),
];

struct Connection {
    socket: TcpStream,
    greeted: bool,
}

/// Serves on `address` until `stop` is set.
pub fn serve(address: SocketAddr, stop: &AtomicBool) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot use {address}"))?;
    listener.set_nonblocking(true)?;
    let mut epoll = Epoll::new()?;
    epoll.watch(&listener, LISTENER)?;
    let (greeting, row) = (greeting(), row());
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut ready = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        ready.clear();
        ready.extend(epoll.wait(WAIT_MS)?);
        for &number in &ready {
            if number == LISTENER {
                accept(&listener, &epoll, &mut connections)?;
                continue;
            }
            let place = &mut connections[number as usize];
            let stays = place
                .as_mut()
                .is_some_and(|connection| answer(connection, &greeting, &row));
            if !stays {
                *place = None;
            }
        }
    }
    Ok(())
}

fn accept(
    listener: &TcpListener,
    epoll: &Epoll,
    connections: &mut Vec<Option<Connection>>,
) -> Result<()> {
    let socket = match listener.accept() {
        Ok((socket, _)) => socket,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error).context("cannot accept a connection"),
    };
    socket.set_nodelay(true)?;
    let free = connections.iter().position(Option::is_none);
    let place = free.unwrap_or_else(|| {
        connections.push(None);
        connections.len() - 1
    });
    epoll.watch(&socket, place as u64)?;
    connections[place] = Some(Connection {
        socket,
        greeted: false,
    });
    Ok(())
}

/// Reads one message and answers it; false if the connection ends here.
fn answer(connection: &mut Connection, greeting: &[u8], row: &[u8]) -> bool {
    let mut bytes = [0; READ_BYTES];
    let Ok(length) = connection.socket.read(&mut bytes) else {
        return false;
    };
    let code = |at: usize| {
        let found = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
        found.map(u32::from_be_bytes)
    };
    let reply = match (connection.greeted, length) {
        (_, 0..=7) => return false,
        (true, _) if bytes[0] == b'Q' => row,
        (true, _) => return false,
        (false, _) if matches!(code(4), Some(SSL_REQUEST | GSSENC_REQUEST)) => b"N",
        (false, _) => {
            connection.greeted = true;
            greeting
        }
    };
    connection.socket.write_all(reply).is_ok()
}

fn message(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(body);
}

/// AuthenticationOk, ParameterStatus, BackendKeyData, ReadyForQuery.
fn greeting() -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, b'R', &[0; 4]);
    for (name, value) in PARAMETERS {
        message(&mut out, b'S', format!("{name}\0{value}\0").as_bytes());
    }
    message(&mut out, b'K', &[0, 0, 0, 1, 0, 0, 0, 1]);
    message(&mut out, b'Z', b"I");
    out
}

/// One row that answers all queries of pgbench: that of select-only (whose result it ignores),
/// the scale (the first column), and before that whether the accounts are partitioned (the
/// second column, null: no).
fn row() -> Vec<u8> {
    let mut out = Vec::new();
    let mut description = vec![0, 3];
    for name in ["scale", "strategy", "count"] {
        description.extend_from_slice(format!("{name}\0").as_bytes());
        // No table, no column; int4: its OID, length, no modifier, as text.
        description.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 23, 0, 4]);
        description.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0]);
    }
    message(&mut out, b'T', &description);
    let values = [0, 3, 0, 0, 0, 1, b'1', 255, 255, 255, 255, 0, 0, 0, 1, b'0'];
    message(&mut out, b'D', &values);
    message(&mut out, b'C', b"SELECT 1\0");
    message(&mut out, b'Z', b"I");
    out
}

#[cfg(test)]
mod tests {
    use super::{greeting, row};
    use crate::wire::Reader;

    #[test]
    fn what_it_says_is_protocol_and_ends_ready() {
        for bytes in [greeting(), row()] {
            let seen = Reader::default().take(&bytes);
            assert!(seen.ready && seen.error.is_none() && seen.unexpected.is_none());
        }
    }
}
