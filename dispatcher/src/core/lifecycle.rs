//! A backend starts: it has logged in and attached, or its start has failed.

use super::pools::PoolKey;
use super::{Action, Core, Leaving, SessionId, Then, Why, Words};
use crate::protocol::opening::Failure;
use crate::protocol::Report;

/// A start that takes longer has failed.
const START_LIMIT_US: u64 = 60_000_000;

/// The role and database as which a backend has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role_oid: u32,
    pub database_oid: u32,
}

/// What becomes of a backend that attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// It belongs to this pool.
    Welcome(u32),
    /// No backend is expected in this slot.
    Unexpected,
    Stranger,
}

impl Identity {
    /// Has the backend logged in to that database, and as the pool's role if the pool has one? By
    /// now a database's name may be another's.
    pub fn is_of(&self, key: &PoolKey) -> bool {
        self.database_oid == key.database_oid
            && key.role_oid.is_none_or(|role| role == self.role_oid)
    }
}

impl Core {
    /// May the backend attach? If not, it is forgotten at once. If so, it exists from its welcome
    /// on (`Attached`).
    pub fn may_attach(&mut self, slot: u32, identity: Identity, words: &impl Words) -> Attach {
        let Some(backend) = self.backends.get(slot).filter(|b| b.life().is_starting()) else {
            return Attach::Unexpected;
        };
        let number = backend.pool();
        let Some(pool) = self.pool(number) else {
            return Attach::Unexpected;
        };
        if !identity.is_of(pool.key()) {
            let name = String::from_utf8_lossy(&pool.key().database).into_owned();
            let text = format!("database \"{name}\" does not exist");
            let report = Report::fatal(b"3D000", text)
                .with_detail("It seems to have just been dropped or renamed.");
            self.forget_backend(slot);
            self.start_failed(number, Failure::ServerError(report), words);
            return Attach::Stranger;
        }
        Attach::Welcome(number)
    }

    pub(super) fn attached(&mut self, slot: u32) {
        let now_us = self.now.us;
        self.backends.attached(slot, now_us);
        let Some(backend) = self.backends.get_mut(slot) else {
            return;
        };
        let (number, life) = (backend.pool(), backend.life());
        let after_us = now_us.saturating_sub(backend.started_us());
        self.replacing.has_started(after_us);
        if let Some(pool) = self.pool_mut(number) {
            pool.starts.has_come();
        }
        if life.is_leaving() {
            self.act(Action::Retire(slot));
        }
        self.mark_dirty(number);
    }

    /// A backend could not be opened.
    pub fn open_failed(&mut self, slot: u32, failure: Failure, words: &impl Words) {
        let Some(backend) = self.backends.get(slot).filter(|b| b.life().is_starting()) else {
            return;
        };
        let number = backend.pool();
        self.forget_backend(slot);
        self.start_failed(number, failure, words);
    }

    pub(super) fn give_up_starting(&mut self, words: &impl Words) {
        let latest_us = self.now.us.saturating_sub(START_LIMIT_US);
        while let Some(slot) = self.backends.next_started_before(latest_us) {
            let text = "a backend did not attach in time; is pg_baton in shared_preload_libraries?";
            self.open_failed(slot, Failure::Protocol(text.into()), words);
        }
    }
}

// ----------------------------------------------------------------------------
// A failed start: what is tried next, and which clients are told.

/// The most clients that are told in a round that no backend will greet them, and the most sessions
/// that are looked at for that.
const ENDED_AT_ONCE: usize = 64;
const LOOKED_AT_ONCE: usize = 1024;

/// The sessions that waited when a pool's start failed, from the first on.
pub struct Ungreeted {
    pool: u32,
    /// How many of the sessions looked at wait on.
    stay: usize,
    left: usize,
}

impl Core {
    /// A backend could not be started. Ends the sessions that waiting cannot help, and tries again
    /// later for the rest. If the server lacked room, room is made.
    pub(super) fn start_failed(&mut self, number: u32, failure: Failure, words: &impl Words) {
        let now_us = self.now.us;
        let Some(pool) = self.pool_mut(number) else {
            return;
        };
        if pool.starts.were_in_each_other_s_way(&failure, now_us) {
            return self.mark_dirty(number);
        }
        let is_of_a_limit = failure.is_of_a_limit();
        if pool.starts.failed(failure, now_us) {
            self.act(Action::TellFailure(number));
        }
        match is_of_a_limit {
            true => self.make_room_within_limit(number, words),
            false => self.begin_to_end_ungreeted(number),
        }
    }

    /// Ends the clients that no backend will greet. As long as the pool has a backend they wait for
    /// it.
    pub(super) fn begin_to_end_ungreeted(&mut self, pool: u32) {
        if (self.pool(pool)).is_some_and(|pool| !pool.has_backends()) {
            self.act(Action::TakeBack(pool));
            self.then(Then::EndUngreeted(pool));
        }
    }

    pub(super) fn end_ungreeted(&mut self, pool: u32) {
        self.ungreeted.push_back(Ungreeted {
            pool,
            stay: 0,
            left: self.sessions.fifo(pool).count(),
        });
    }

    /// Continues this in each round.
    pub(super) fn end_ungreeted_on(&mut self) {
        let (mut may_end, mut may_look) = (ENDED_AT_ONCE, LOOKED_AT_ONCE);
        while let Some(mut of) = self.ungreeted.pop_front() {
            let next = self.sessions.fifo(of.pool).skip(of.stay);
            let some: Vec<SessionId> = next.take(of.left.min(may_look)).collect();
            // As long as the pool has a backend they wait for it.
            if some.is_empty() || self.backends.lives(of.pool).attached() > 0 {
                continue;
            }
            for id in some {
                of.left -= 1;
                may_look -= 1;
                match self.why_ungreeted(of.pool, id) {
                    Some(why) => {
                        may_end -= 1;
                        self.end(id, why);
                    }
                    None => of.stay += 1,
                }
                if may_end == 0 {
                    break;
                }
            }
            self.ungreeted.push_front(of);
            if may_end == 0 || may_look == 0 {
                return;
            }
        }
    }

    fn why_ungreeted(&self, number: u32, id: SessionId) -> Option<Why> {
        let failure = self.pool(number).and_then(|pool| pool.starts.failure())?;
        let is_ungreeted = (self.sessions.get(id)).is_some_and(|session| session.is_ungreeted());
        let ends = (is_ungreeted || failure.is_no_database()) && is_final(failure);
        ends.then(|| Why::Failed(Box::new(failure.clone())))
    }
}

/// Can waiting not help?
fn is_final(failure: &Failure) -> bool {
    match failure {
        // The server starts up or ends, or the connection broke. A client of the server's own port
        // is told of all other errors, too.
        Failure::ServerError(report) => {
            let state = &report.sqlstate;
            !state.starts_with(b"57P") && !state.starts_with(b"08")
        }
        Failure::Protocol(_) => false,
    }
}

// ----------------------------------------------------------------------------
// A backend leaves, or changes which sessions it serves.

impl Core {
    /// Asks a backend to exit at its next boundary, and gives it no more sessions.
    pub(super) fn retire(&mut self, slot: u32, why: Reason) {
        if self.backends.retire(slot, why.for_pool()) {
            self.tell_loss(slot, why);
            self.act(Action::Retire(slot));
            self.mark_pool_of(slot);
        }
    }

    /// The backend may be free. Or it leaves, and fewer of its pool's backends may now be kept for
    /// reserves, or be left to others.
    fn mark_pool_of(&mut self, slot: u32) {
        if let Some(number) = self.backends.get(slot).map(|backend| backend.pool()) {
            self.mark_dirty(number);
        }
    }

    /// The backend is no longer dedicated if its session has gone.
    pub(super) fn may_be_free(&mut self, slot: u32, words: &impl Words) {
        self.told_dedicated(slot, false, words);
        self.mark_pool_of(slot);
    }

    /// A backend exits, as it was asked to or for a reason of its own. It gives back the session
    /// that it has.
    pub(super) fn leaves(&mut self, slot: u32, cause: Leaving, words: &impl Words) {
        let is_new = self.backends.retire(slot, None);
        self.backends.exits(slot, self.now.us);
        let makes_room = self.backend_retires(slot, words);
        let why = match cause {
            Leaving::Asked => makes_room.unwrap_or(Reason::RoomForOthers),
            Leaving::Unclean => Reason::Unclean,
            Leaving::Outdated => Reason::Outdated,
        };
        if is_new {
            self.tell_loss(slot, why);
        }
        self.mark_pool_of(slot);
    }

    /// Frees a slot.
    pub(super) fn forget_backend(&mut self, slot: u32) {
        if let Some(why) = self.why_lost(slot) {
            self.tell_loss(slot, why);
        }
        let Some(backend) = self.backends.remove(slot) else {
            return;
        };
        self.act(Action::FreeSlot(slot));
        let (number, now_us) = (backend.pool(), self.now.us);
        if self.pools.forget_backend(number, slot, now_us) {
            self.act(Action::CloseQueue(number));
            self.count_use(number);
        }
        // There is room now: for this pool or another.
        self.room_made(backend.life().room_for());
        self.mark_waiting();
    }
}

// ----------------------------------------------------------------------------
// Why a pool has gained or lost a backend: what the scheduling log says.
//
// Each backend has two lines, whatever becomes of it: one when it is opened; and one when it is
// told to leave, says that it leaves, or has gone, whichever comes first. So a pool's lines add up
// to the backends that it has and keeps.

/// A pool has gained or lost a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolChange {
    pub slot: u32,
    pub pool: u32,
    /// The backends that it has now, without leaving ones.
    pub backends: u32,
    pub why: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    // ---- gained -------------------------------------------------------------
    /// Sessions wait.
    Waiting,
    /// Sessions wait, and the start is beyond max_backends, because transactions hold other
    /// backends.
    Stall,
    /// min_backends, pool_min_backends
    Least,
    /// Its sessions often take each other's backends (pools/parts.rs).
    Steals,
    /// Forced migration needs two backends.
    ForcedMigration,
    /// An earlier dispatcher has started it.
    Adopted,

    // ---- lost ---------------------------------------------------------------
    /// backend_idle_timeout
    Idle,
    /// backend_lifetime
    Old,
    /// RECONNECT on the console.
    Reconnect,
    /// All pools together have more than the permitted number.
    Surplus,
    /// Sessions of that pool wait for a place among all,
    RoomFor(u32),
    /// or no more may be started, and the client of this backend let it wait for long (stall.rs),
    RoomFromIdle(u32),
    /// or they wait within a limit of the server on connections.
    RoomWithinConnectionLimit(u32),
    /// A statement wants the database for itself.
    Hold,
    /// What a backend reads when it starts has changed, and a session has come since.
    Outdated,
    Stops,
    /// The dispatcher that has started it has ended.
    Replaced,
    /// It was asked to make room, and says so when it is no longer known for which pool.
    RoomForOthers,
    /// What its session left cannot be cleaned up.
    Unclean,
    /// Its process has ended, for whatever cause.
    Ended,
    NotStarted,
}

impl Reason {
    /// Has the pool gained a backend?
    pub fn is_growth(self) -> bool {
        matches!(
            self,
            Reason::Waiting
                | Reason::Stall
                | Reason::Least
                | Reason::Steals
                | Reason::ForcedMigration
                | Reason::Adopted
        )
    }

    /// The pool that gets the place.
    pub fn for_pool(self) -> Option<u32> {
        match self {
            Reason::RoomFor(pool)
            | Reason::RoomFromIdle(pool)
            | Reason::RoomWithinConnectionLimit(pool) => Some(pool),
            _ => None,
        }
    }

    /// As docs/operations.md lists them.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Waiting => "sessions wait",
            Reason::Stall => "stall",
            Reason::Least => "min_backends",
            Reason::Steals => "hand-overs",
            Reason::ForcedMigration => "force_migration",
            Reason::Adopted => "adopted",
            Reason::Idle => "backend_idle_timeout",
            Reason::Old => "backend_lifetime",
            Reason::Reconnect => "RECONNECT",
            Reason::Surplus => "max_backends",
            Reason::RoomFor(_) => "room for another pool",
            Reason::RoomFromIdle(_) => "extra_idle_timeout",
            Reason::RoomWithinConnectionLimit(_) => "room within a connection limit",
            Reason::Hold => "database wanted by a statement",
            Reason::Outdated => "settings changed",
            Reason::Stops => "shutdown",
            Reason::Replaced => "dispatcher replaced",
            Reason::RoomForOthers => "room for others",
            Reason::Unclean => "session left what cannot be cleaned",
            Reason::Ended => "process ended",
            Reason::NotStarted => "could not be started",
        }
    }
}

impl Core {
    /// Reports that a pool has gained a backend.
    pub(super) fn tell_growth(&mut self, slot: u32, number: u32, why: Reason) {
        ensure!(why.is_growth());
        let backends = self.count_staying(number, 1);
        self.act(Action::TellPool(PoolChange {
            slot,
            pool: number,
            backends,
            why,
        }));
    }

    /// Reports that a backend has begun to leave, and its pool has lost it.
    pub(super) fn tell_loss(&mut self, slot: u32, why: Reason) {
        ensure!(!why.is_growth());
        let Some(pool) = self.backends.get(slot).map(|backend| backend.pool()) else {
            return;
        };
        let backends = self.count_staying(pool, -1);
        self.act(Action::TellPool(PoolChange {
            slot,
            pool,
            backends,
            why,
        }));
    }

    /// Why a backend is lost that ends without having left before. None: its loss was reported.
    pub(super) fn why_lost(&self, slot: u32) -> Option<Reason> {
        match self.backends.life(slot)? {
            life if life.is_leaving() => None,
            life if life.is_starting() => Some(Reason::NotStarted),
            _ => Some(Reason::Ended),
        }
    }

    /// Counts the backends that are not reported as lost; `change` is 1 or -1.
    fn count_staying(&mut self, number: u32, change: i32) -> u32 {
        self.pool_mut(number)
            .map_or(0, |pool| pool.count_staying(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Report;

    #[test]
    fn only_what_waiting_cannot_mend_is_final() {
        let error = |state| Failure::ServerError(Report::fatal(state, "no"));
        assert!(is_final(&error(b"28P01")));
        assert!(is_final(&error(b"3D000")));
        assert!(is_final(&error(b"58P01")));
        assert!(!is_final(&error(b"57P03")));
        assert!(!is_final(&Failure::Protocol("x".into())));
    }
}
