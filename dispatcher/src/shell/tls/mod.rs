//! TLS: the dispatcher has the keys, so it stands between a TLS client and
//! whoever serves its session.
//!
//! A plain client's socket is handed to backends as it is. That of a TLS client
//! stays here: a relay owns it, and one end of a socketpair; the other end is
//! what is handed over, and nobody downstream sees a difference. The two must
//! never be mistaken for each other, so they are two types: [`ClientEnd`] and
//! [`HandedEnd`].
//!
//! Relays run on threads of their own, each with its own epoll. The event loop
//! does no TLS I/O and no cryptography; all it does is to make the socketpair
//! and to be told how the handshake went. docs/design/tls.md has the whole.
//!
//! | module | what it does |
//! |---|---|
//! | `settings` | the server's parameters about TLS, as the launcher sends them |
//! | `key_file` | who may read a private key; its passphrase |
//! | `context` | from these to what OpenSSL makes sessions of |
//! | `secure` | one TLS session: bytes in, bytes out, no I/O |
//! | `relay` | one client's relay: what is read and written when; no system calls |
//! | `rest` | which relays have nothing to do for a while |
//! | `sockets` | a relay's two sockets |
//! | `threads` | the threads that run relays |
//! | `facts` | what a handshake has shown |

pub mod context;
pub mod facts;
mod key_file;
pub mod relay;
pub mod rest;
pub mod secure;
pub mod settings;
mod sockets;
pub mod threads;

use facts::{Facts, Names};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The socket that a client itself reads and writes.
pub struct ClientEnd(pub OwnedFd);

/// What is handed to backends, and logged in on: a plain client's own socket,
/// or the near end of a relay's socketpair.
pub struct HandedEnd {
    socket: OwnedFd,
    is_relayed: bool,
    /// Known once the handshake is over.
    tls: Option<Arc<Facts>>,
}

impl HandedEnd {
    /// Without TLS both ends are one socket.
    pub fn plain(client: ClientEnd) -> HandedEnd {
        HandedEnd {
            socket: client.0,
            is_relayed: false,
            tls: None,
        }
    }

    /// The far end of a socketpair.
    pub fn relayed(socket: OwnedFd) -> HandedEnd {
        HandedEnd {
            socket,
            is_relayed: true,
            tls: None,
        }
    }

    pub fn secured(&mut self, facts: Arc<Facts>) {
        debug_assert!(self.is_relayed);
        self.tls = Some(facts);
    }

    /// A plain client's own socket, for a relay.
    pub fn into_client_end(self) -> ClientEnd {
        debug_assert!(!self.is_relayed);
        ClientEnd(self.socket)
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub fn is_relayed(&self) -> bool {
        self.is_relayed
    }

    pub fn tls(&self) -> Option<&Arc<Facts>> {
        self.tls.as_ref()
    }

    /// Of the client's certificate, if it has one.
    pub fn certificate(&self) -> Option<&Names> {
        let certificate = self.tls.as_ref()?.certificate.as_ref();
        certificate.map(|certificate| &certificate.names)
    }

    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}
