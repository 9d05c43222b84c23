//! For whom a backend is opened, as the server is told it.
//!
//! The server lets a pool's backend in by the line of pg_hba.conf that let
//! its client in: the dispatcher names a session of the pool, by its address,
//! and for one of a Unix socket by the socket itself. What the server does
//! with that is told in the extension's attach_origin.c.

use crate::core::Provenance;
use crate::dispatcher::sys::descriptors;
use crate::dispatcher::sys::socket::{self, Address};
use crate::dispatcher::tls::certificates;
use crate::dispatcher::tls::facts::Names;
use std::fmt::Write;
use std::os::fd::RawFd;

/// The protocol option that makes the server's backend call the extension
/// before it authenticates; its value does not matter.
pub const PROTOCOL_OPTION: (&[u8], &[u8]) = (b"_pq_.pg_baton", b"");

/// Has the server let a backend in without more: its client's login was the
/// server's own, and cannot be done again (trusted_hba.c).
pub const TRUSTED_OPTION: (&[u8], &[u8]) = (b"_pq_.pg_baton_trusted", b"");

/// Of a name in a certificate: two digits each, in a startup packet.
const MOST_NAME_BYTES: usize = 1500;

/// Where a client comes from.
pub fn provenance(address: &Address, client: RawFd, tls: u32) -> Provenance {
    if address.is_local() {
        Provenance::User(socket::peer(client).map_or(u32::MAX, |(_, uid)| uid))
    } else {
        Provenance::Address {
            family: address.family,
            bytes: address.bytes,
            tls,
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
pub fn suffix(from: Provenance, certificate: Option<&Names>) -> String {
    let address = address_of(from);
    let mut text = format!(":{}:", address.family);
    for byte in address.bytes {
        let _ = write!(text, "{byte:02x}");
    }
    // Others could not be told in a startup packet; nor are they known to exist.
    let names = certificate.filter(|names| {
        names.common.len() <= MOST_NAME_BYTES && names.distinguished.len() <= MOST_NAME_BYTES
    });
    let Some(names) = names else {
        let _ = write!(text, ":{}", u8::from(from.tls() != certificates::PLAIN));
        return text;
    };
    text.push_str(":2");
    for name in [&names.common, &names.distinguished] {
        text.push(':');
        for byte in name {
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

/// The backend waits for the client's socket; without one (-1) it goes on with
/// none.
pub fn send_client(connection: RawFd, client: RawFd) {
    let sent = if client >= 0 {
        descriptors::send(connection, &[0], &[client])
    } else {
        descriptors::send(connection, &[0], &[])
    };
    if let Err(error) = sent {
        tracing::debug!("could not send a client's socket to a backend: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_named_as_the_extension_reads_it() {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[127, 0, 0, 1]);
        let from = |tls| Provenance::Address {
            family: 2,
            bytes,
            tls,
        };
        let address = "7f000001000000000000000000000000";
        assert_eq!(suffix(from(0), None), format!(":2:{address}:0"));
        assert_eq!(suffix(from(1), None), format!(":2:{address}:1"));
        let names = Names {
            common: b"a".to_vec(),
            distinguished: b"CN=a".to_vec(),
        };
        assert_eq!(
            suffix(from(2), Some(&names)),
            format!(":2:{address}:2:61:434e3d61")
        );
        assert_eq!(
            suffix(Provenance::User(7), None),
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
        let from = provenance(&address, -1, 0);
        address.port = 1;
        assert_eq!(from, provenance(&address, -1, 0));
        assert_ne!(from, provenance(&address, -1, 1));
        address.bytes[0] = 1;
        assert_ne!(from, provenance(&address, -1, 0));
        assert!(!from.is_local() && provenance(&Address::default(), -1, 0).is_local());
    }
}
