//! For whom a backend is opened.
//!
//! The server lets a pool's backend in by the line of pg_hba.conf that let
//! its client in: the dispatcher names a session of the pool, by its address,
//! and for one of a Unix socket by the socket itself. What the server does
//! with that is told in the extension's attach_origin.c.
//!
//! Any backend serves all sessions of its pool, whoever let it in. So if the
//! way of one client is closed by now (its line has gone, its password is
//! another), it is opened on behalf of another; and nobody is told of a
//! failure that is another's.

use super::pool::Pool;
use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::sessions::{index_of, SessionId};
use crate::dispatcher::sys::socket::{self, Address};
use crate::protocol::auth::client::Failure;
use std::collections::HashMap;
use std::fmt::Write;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;

/// The protocol option that makes the server's backend call the extension
/// before it authenticates; its value does not matter.
pub const PROTOCOL_OPTION: (&[u8], &[u8]) = (b"_pq_.pg_baton", b"");

/// Where a client comes from, as pg_hba.conf can tell: clients of one role that
/// come from the same place can all log in, or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Provenance {
    family: u16,
    bytes: [u8; 16],
    /// The system's user at the other end of a Unix socket.
    uid: u32,
}

impl Provenance {
    /// `uid` counts for an address of a Unix socket only.
    pub fn new(address: &Address, uid: u32) -> Provenance {
        if address.is_local() {
            Provenance {
                family: libc::AF_UNIX as u16,
                bytes: [0; 16],
                uid,
            }
        } else {
            Provenance {
                family: address.family,
                bytes: address.bytes,
                uid: 0,
            }
        }
    }

    pub fn of(address: &Address, client: RawFd) -> Provenance {
        let uid = if address.is_local() {
            socket::peer(client).map_or(u32::MAX, |(_, uid)| uid)
        } else {
            0
        };
        Provenance::new(address, uid)
    }
}

/// A session on whose behalf a backend logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub address: Address,
    pub from: Provenance,
    /// A client from there has been let in since the backend was to be opened.
    pub is_past: bool,
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

/// On whose behalf no backend of a pool could log in. When all have been tried,
/// the dispatcher's own connection is, as it is; then it begins anew. A client
/// that has just been let in is tried again.
#[derive(Default)]
pub struct FailedOrigins {
    /// Bounded by where the pool's clients come from.
    failed: HashMap<Provenance, Failure>,
    /// Under which they failed.
    login_generation: u64,
    first: Option<Failure>,
    tried: usize,
    all_tried: bool,
    /// Attempts in a row that clients' coming in has overtaken.
    overtaken: usize,
}

impl FailedOrigins {
    /// Tried one after the other; then it is time for a pause (`Retry`).
    const TRIED_AT_ONCE: usize = 8;

    /// Before the next is tried.
    fn renew(&mut self, login_generation: u64) {
        if self.all_tried || self.login_generation != login_generation {
            *self = FailedOrigins {
                login_generation,
                ..FailedOrigins::default()
            };
        }
    }

    /// True if another one may be tried at once.
    pub fn failed(&mut self, from: Provenance, failure: Failure) -> bool {
        self.first.get_or_insert_with(|| failure.clone());
        if self.failed.insert(from, failure).is_none() {
            self.tried += 1;
        }
        let may_go_on = self.tried < Self::TRIED_AT_ONCE;
        if !may_go_on {
            self.tried = 0;
        }
        may_go_on
    }

    /// A client from where the attempt that failed was made for has been let in
    /// since. True if another may be made at once, by what counts now.
    pub fn overtaken(&mut self) -> bool {
        self.overtaken += 1;
        self.overtaken < Self::TRIED_AT_ONCE
    }

    pub fn has_attached(&mut self) {
        self.overtaken = 0;
    }

    /// The dispatcher's own connection has failed, too.
    pub fn all_tried(&mut self) {
        self.all_tried = true;
    }

    /// The first failure: of who waited longest.
    pub fn first(&self) -> Option<&Failure> {
        self.first.as_ref()
    }
}

impl Dispatcher {
    fn session_from(&self, id: SessionId) -> Option<(Provenance, Address)> {
        let session = self.sessions.get(id)?;
        let (_, address) = self.contexts.arena.record_identity(index_of(id));
        Some((Provenance::of(&address, session.fd()), address))
    }

    /// Where the sessions of a pool come from.
    pub fn pool_from(&self, number: u32) -> impl Iterator<Item = (Provenance, Address)> + '_ {
        let is_here = move |id: &SessionId| {
            let session = self.sessions.get(*id);
            session.is_some_and(|session| session.pool == number)
        };
        let sessions = self.sessions.ids().filter(is_here);
        sessions.filter_map(|id| self.session_from(id))
    }

    /// Who waits longest, or else any session of the pool, of those on whose
    /// behalf none has failed. A client's descriptor can be sent over a Unix
    /// socket only.
    pub fn origin_for(&mut self, number: u32, over_unix: bool) -> Option<Origin> {
        let generation = self.control.header.login_generation.load(SeqCst);
        let pool = self.pools[number as usize].as_mut()?;
        pool.failed_origins.renew(generation);
        let pool = self.pools[number as usize].as_ref()?;
        let origin_of = |session: SessionId| {
            let found = self.sessions.get(session)?;
            if found.pool != number {
                return None;
            }
            let (from, address) = self.session_from(session)?;
            let may = (over_unix || !address.is_local())
                && !pool.failed_origins.failed.contains_key(&from);
            may.then_some(Origin {
                session,
                address,
                from,
                is_past: false,
            })
        };
        let waiting = pool.sent.iter().chain(&pool.fifo).copied();
        waiting.chain(self.sessions.ids()).find_map(origin_of)
    }

    /// This client has just been let in, whatever was known of where it is from,
    /// and whatever becomes of a backend that is being opened on behalf of
    /// another one from there.
    pub fn let_in(&mut self, number: u32, id: SessionId) {
        let is_opening = |slot: &u32| {
            let backend = self.backends[*slot as usize].as_ref();
            backend.is_some_and(|backend| backend.origin().is_some())
        };
        let is_concerned = |pool: &&Pool| {
            !pool.failed_origins.failed.is_empty() || pool.backends.iter().any(is_opening)
        };
        if self.pools[number as usize]
            .as_ref()
            .filter(is_concerned)
            .is_none()
        {
            return;
        }
        if let (Some((from, _)), Some(pool)) =
            (self.session_from(id), self.pools[number as usize].as_mut())
        {
            pool.failed_origins.failed.remove(&from);
            for slot in &pool.backends {
                if let Some(backend) = self.backends[*slot as usize].as_mut() {
                    backend.has_let_in(from);
                }
            }
        }
    }

    /// Why no backend could log in on behalf of this session. Who cannot be
    /// named at all has no way in but the dispatcher's own.
    pub fn own_failure(&self, number: u32, id: SessionId, over_unix: bool) -> Option<&Failure> {
        let pool = self.pools[number as usize].as_ref()?;
        let (from, address) = self.session_from(id)?;
        if address.is_local() && !over_unix {
            return pool.failure.as_ref();
        }
        pool.failed_origins.failed.get(&from)
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
            from: Provenance::new(&address, 0),
            is_past: false,
        };
        assert_eq!(origin.suffix(), ":2:7f000001000000000000000000000000");
        origin.address = Address::default();
        assert_eq!(origin.suffix(), format!(":1:{}", "00".repeat(16)));
    }

    fn from(last_byte: u8) -> Provenance {
        let mut address = Address {
            family: libc::AF_INET as u16,
            ..Address::default()
        };
        address.bytes[3] = last_byte;
        Provenance::new(&address, 7)
    }

    #[test]
    fn where_a_client_comes_from_is_its_address_or_its_system_user() {
        let local = Address::default();
        assert_ne!(Provenance::new(&local, 1), Provenance::new(&local, 2));
        assert_eq!(from(1), Provenance { uid: 0, ..from(1) });
        assert_ne!(from(1), from(2));
    }

    #[test]
    fn each_is_tried_once_until_all_have_failed_or_something_changes() {
        let failure = || Failure::Protocol("no".into());
        let mut origins = FailedOrigins::default();
        origins.renew(1);
        for byte in 1..FailedOrigins::TRIED_AT_ONCE as u8 {
            assert!(origins.failed(from(byte), failure()));
            assert!(origins.failed(from(byte), failure()));
        }
        assert!(!origins.failed(from(100), failure()));
        assert!(origins.failed(from(101), failure()));
        origins.renew(1);
        assert!(origins.failed.contains_key(&from(100)) && origins.first().is_some());
        origins.all_tried();
        origins.renew(1);
        assert!(origins.failed.is_empty() && origins.first().is_none());
        origins.failed(from(1), failure());
        origins.renew(2);
        assert!(origins.failed.is_empty());
    }

    #[test]
    fn clients_that_come_without_end_do_not_make_attempts_without_end() {
        let mut origins = FailedOrigins::default();
        for _ in 0..3 {
            for _ in 1..FailedOrigins::TRIED_AT_ONCE {
                assert!(origins.overtaken());
            }
            assert!(!origins.overtaken() && !origins.overtaken());
            origins.has_attached();
        }
    }
}
