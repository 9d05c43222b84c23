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

use super::ids::SessionId;
use super::Core;
use crate::protocol::auth::client::Failure;
use std::collections::HashMap;

/// Where a client comes from, as pg_hba.conf can tell: clients of one role that
/// come from the same place can all log in, or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Provenance {
    /// The system's user at the other end of a Unix socket.
    User(u32),
    /// An address, as session records have it, and the number of the names in
    /// the client's certificate: 0 if it does not speak TLS (certificates.rs).
    Address {
        family: u16,
        bytes: [u8; 16],
        tls: u32,
    },
}

impl Default for Provenance {
    fn default() -> Provenance {
        Provenance::User(u32::MAX)
    }
}

impl Provenance {
    pub fn is_local(&self) -> bool {
        matches!(self, Provenance::User(_))
    }

    /// Lines of type hostssl are for one by TLS, and hostnossl not.
    pub fn tls(&self) -> u32 {
        match self {
            Provenance::User(_) => 0,
            Provenance::Address { tls, .. } => *tls,
        }
    }
}

/// A session on whose behalf a backend logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub from: Provenance,
    /// A client from there has been let in since the backend was to be opened.
    pub is_past: bool,
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
    pub fn renew(&mut self, login_generation: u64) {
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

    /// Why none started on behalf of a client from there.
    pub fn failure_of(&self, from: &Provenance) -> Option<&Failure> {
        self.failed.get(from)
    }

    /// A client from there has been let in.
    pub fn let_in(&mut self, from: &Provenance) {
        self.failed.remove(from);
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

impl Core {
    /// Who waits longest, or else any session of the pool, of those on whose
    /// behalf none has failed.
    pub(super) fn choose_origin(
        &mut self,
        number: u32,
        over_unix: bool,
        login_generation: u64,
    ) -> Option<Origin> {
        let starts = &mut self.pool_mut(number)?.starts;
        starts.begin_to_choose(login_generation);
        let pool = self.pool(number)?;
        let origin_of = |session: SessionId| {
            let found = self.sessions.get(session)?;
            let from = found.from();
            let may = found.pool() == number
                && (over_unix || !from.is_local())
                && pool.starts.failure_of(&from).is_none();
            may.then_some(Origin {
                session,
                from,
                is_past: false,
            })
        };
        let is_possible = |from: &Provenance| over_unix || !from.is_local();
        if !pool.starts.has_origin_to_try(is_possible) {
            return None;
        }
        let waiting = pool
            .queue
            .last(usize::MAX)
            .chain(self.sessions.fifo(number));
        waiting
            .chain(self.sessions.of_pool(number))
            .find_map(origin_of)
    }

    /// A client from there has just been let in, whatever was known of where it
    /// is from, and whatever becomes of a backend that is being opened on
    /// behalf of another one from there.
    pub(super) fn let_in(&mut self, number: u32, from: super::Provenance) {
        let Some(pool) = self.pools.get_mut(number) else {
            return;
        };
        pool.starts.let_in(&from);
        // No other is opened on anybody's behalf. As a rule they are the last ones.
        let mut starting = self.backends.lives(number).starting();
        for slot in pool.shared().iter().rev() {
            if starting == 0 {
                return;
            }
            let backend = self.backends.get_mut(*slot);
            if let Some(backend) = backend.filter(|backend| backend.life().is_starting()) {
                backend.has_let_in(from);
                starting -= 1;
            }
        }
    }

    /// Why no backend could log in on behalf of this session. Who cannot be
    /// named at all has no way in but the dispatcher's own.
    pub(super) fn own_failure(
        &self,
        number: u32,
        id: SessionId,
        over_unix: bool,
    ) -> Option<&Failure> {
        let pool = self.pool(number)?;
        let from = self.sessions.get(id)?.from();
        if from.is_local() && !over_unix {
            return pool.starts.failure();
        }
        pool.starts.failure_of(&from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last_byte: u8) -> Provenance {
        Provenance::Address {
            family: 2,
            tls: 0,
            bytes: [last_byte; 16],
        }
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
