//! For whom a backend is opened, as the server is told it.
//!
//! The server lets a pool's backend in by the line of pg_hba.conf that let
//! its client in: the dispatcher names a session of the pool, by its address,
//! and for one of a Unix socket by the socket itself. What the server does
//! with that is told in the extension's attach_origin.c.

use crate::core::{Origin, Provenance};
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::sys::socket::{self, Address};
use std::fmt::Write;
use std::os::fd::RawFd;

/// The protocol option that makes the server's backend call the extension
/// before it authenticates; its value does not matter.
pub const PROTOCOL_OPTION: (&[u8], &[u8]) = (b"_pq_.pg_baton", b"");

/// Where a client comes from.
pub fn provenance(address: &Address, client: RawFd, is_secure: bool) -> Provenance {
    if address.is_local() {
        Provenance::User(socket::peer(client).map_or(u32::MAX, |(_, uid)| uid))
    } else {
        Provenance::Address {
            family: address.family,
            bytes: address.bytes,
            is_secure,
        }
    }
}

/// The address of clients from there, without a port.
pub fn address_of(from: Provenance) -> Address {
    match from {
        Provenance::User(_) => Address::local(),
        Provenance::Address { family, bytes, .. } => Address {
            family,
            bytes,
            ..Address::default()
        },
    }
}

/// How `pg_baton.attach` goes on after slot and token.
pub fn suffix(from: Provenance) -> String {
    let address = address_of(from);
    let mut text = format!(":{}:", address.family);
    for byte in address.bytes {
        let _ = write!(text, "{byte:02x}");
    }
    let _ = write!(text, ":{}", u8::from(from.is_secure()));
    text
}

impl Dispatcher {
    /// The backend waits for the client's socket; without one it goes on with
    /// none.
    pub fn send_origin(&self, connection: RawFd, origin: &Origin) {
        if !origin.from.is_local() {
            return;
        }
        let client = self.clients.fd(origin.session);
        let sent = if client >= 0 {
            socket::send_descriptors(connection, &[0], &[client])
        } else {
            socket::send_descriptors(connection, &[0], &[])
        };
        if let Err(error) = sent {
            tracing::debug!("could not send a client's socket to a backend: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_named_as_the_extension_reads_it() {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[127, 0, 0, 1]);
        let from = |is_secure| Provenance::Address {
            family: 2,
            bytes,
            is_secure,
        };
        let address = "7f000001000000000000000000000000";
        assert_eq!(suffix(from(false)), format!(":2:{address}:0"));
        assert_eq!(suffix(from(true)), format!(":2:{address}:1"));
        assert_eq!(
            suffix(Provenance::User(7)),
            format!(":1:{}:0", "00".repeat(16))
        );
    }

    #[test]
    fn where_a_client_comes_from_is_its_address_whatever_its_port() {
        let mut address = Address {
            family: 2,
            port: 1234,
            ..Address::default()
        };
        let from = provenance(&address, -1, false);
        address.port = 1;
        assert_eq!(from, provenance(&address, -1, false));
        assert_ne!(from, provenance(&address, -1, true));
        address.bytes[0] = 1;
        assert_ne!(from, provenance(&address, -1, false));
        assert!(!from.is_local() && provenance(&Address::default(), -1, false).is_local());
    }
}
