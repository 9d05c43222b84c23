//! For whom a backend is opened.
//!
//! The server lets a pool's backend in by the line of pg_hba.conf that let
//! its client in: the dispatcher names a session of the pool, by its address,
//! and for one of a Unix socket by the socket itself. What the server does
//! with that is told in the extension's attach_origin.c.

use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::sessions::{index_of, SessionId};
use crate::dispatcher::sys::socket::{self, Address};
use crate::protocol::auth::client::Failure;
use std::fmt::Write;
use std::os::fd::RawFd;

/// The protocol option that makes the server's backend call the extension
/// before it authenticates; its value does not matter.
pub const PROTOCOL_OPTION: (&[u8], &[u8]) = (b"_pq_.pg_baton", b"");

/// A session on whose behalf a backend logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub address: Address,
}

impl Origin {
    /// How `pg_baton.attach` goes on after slot and token.
    pub fn suffix(&self) -> String {
        let family = if self.address.is_local() {
            libc::AF_UNIX as u16
        } else {
            self.address.family
        };
        let mut text = format!(":{family}:");
        for byte in self.address.bytes {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

impl Dispatcher {
    /// Who waits longest, or else any session of the pool.
    pub fn origin_for(&self, number: u32) -> Option<Origin> {
        let pool = self.pools[number as usize].as_ref()?;
        let is_here = |id: &SessionId| {
            self.sessions
                .get(*id)
                .is_some_and(|session| session.pool == number && session.fd() >= 0)
        };
        let session = pool
            .sent
            .iter()
            .chain(&pool.fifo)
            .copied()
            .find(is_here)
            .or_else(|| self.sessions.ids().find(is_here))?;
        let (_, address) = self.contexts.arena.record_identity(index_of(session));
        Some(Origin { session, address })
    }

    /// The line that let the client in has changed since, or its password has:
    /// there may be one for the dispatcher itself.
    pub fn origin_failed(&mut self, number: u32, failure: Failure) {
        if let Some(pool) = self.pools[number as usize].as_mut() {
            pool.origin_failure = Some(failure);
        }
        self.mark_dirty(number);
    }

    /// The backend waits for the client's socket; without one it goes on with
    /// its own, which then decides.
    pub fn send_origin(&self, connection: RawFd, origin: &Origin) {
        if !origin.address.is_local() {
            return;
        }
        let client = self
            .sessions
            .get(origin.session)
            .map(|session| session.fd());
        let sent = match client {
            Some(client) => socket::send_descriptors(connection, &[0], &[client]),
            None => socket::send_descriptors(connection, &[0], &[]),
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
        let mut address = Address {
            family: libc::AF_INET as u16,
            port: 1234,
            ..Address::default()
        };
        address.bytes[..4].copy_from_slice(&[127, 0, 0, 1]);
        let mut origin = Origin {
            session: 1,
            address,
        };
        assert_eq!(origin.suffix(), ":2:7f000001000000000000000000000000");
        origin.address = Address::default();
        assert_eq!(origin.suffix(), format!(":1:{}", "00".repeat(16)));
    }
}
