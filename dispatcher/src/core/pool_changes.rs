//! Why a pool has got a backend more, or one less: what the scheduling log says.
//!
//! Each backend is told of twice, whatever becomes of it: when it is opened, and
//! when it is told to go, says that it goes, or has gone, whichever comes first. So
//! a pool's lines add up to the backends that it has and keeps.

use super::{Action, Core};

/// A pool has got a backend more, or one less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolChange {
    pub slot: u32,
    pub pool: u32,
    /// That it has now; those that go left out.
    pub backends: u32,
    pub why: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    // ---- one more ----------------------------------------------------------
    /// Sessions wait.
    Waiting,
    /// So they do, and beyond max_backends, for transactions hold others.
    Stall,
    /// min_backends, pool_min_backends
    Least,
    /// Its sessions often take each other's (pools/steals.rs).
    Steals,
    /// Which needs two.
    ForcedMigration,

    // ---- one less ----------------------------------------------------------
    /// backend_idle_timeout
    Idle,
    /// backend_lifetime
    Old,
    /// There are more than there may be, of all pools.
    Surplus,
    /// That pool's sessions wait: for a place among all,
    RoomFor(u32),
    /// as no more may be started, and its client let it wait for long (idle_clients.rs),
    RoomFromIdle(u32),
    /// or within a limit of the server's on connections.
    RoomWithinConnectionLimit(u32),
    /// A statement wants the database for itself.
    Hold,
    /// What a backend reads when it starts has changed, and a session has come since.
    Outdated,
    Stops,
    /// It was asked to make room, and says so when nobody knows for whom any more.
    RoomForOthers,
    /// What the session left cannot be cleaned.
    Unclean,
    /// Its process has, by whatever cause.
    Ended,
    NotStarted,
}

impl Reason {
    /// Has the pool got one more?
    pub fn is_growth(self) -> bool {
        matches!(
            self,
            Reason::Waiting
                | Reason::Stall
                | Reason::Least
                | Reason::Steals
                | Reason::ForcedMigration
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
            Reason::Idle => "backend_idle_timeout",
            Reason::Old => "backend_lifetime",
            Reason::Surplus => "max_backends",
            Reason::RoomFor(_) => "room for another pool",
            Reason::RoomFromIdle(_) => "extra_idle_timeout",
            Reason::RoomWithinConnectionLimit(_) => "room within a connection limit",
            Reason::Hold => "database wanted by a statement",
            Reason::Outdated => "settings changed",
            Reason::Stops => "shutdown",
            Reason::RoomForOthers => "room for others",
            Reason::Unclean => "session left what cannot be cleaned",
            Reason::Ended => "process ended",
            Reason::NotStarted => "could not be started",
        }
    }
}

impl Core {
    /// A pool has been given one more.
    pub(super) fn tell_growth(&mut self, slot: u32, number: u32, why: Reason) {
        debug_assert!(why.is_growth());
        let backends = self.count_staying(number, 1);
        self.act(Action::TellPool(PoolChange {
            slot,
            pool: number,
            backends,
            why,
        }));
    }

    /// A backend is about to go or has gone, and its pool has one less. Only what
    /// is told first counts.
    pub(super) fn tell_loss(&mut self, slot: u32, why: Reason) {
        debug_assert!(!why.is_growth());
        let Some(backend) = self.backends.get_mut(slot) else {
            return;
        };
        if !backend.is_lost() {
            return;
        }
        let pool = backend.pool();
        let backends = self.count_staying(pool, -1);
        self.act(Action::TellPool(PoolChange {
            slot,
            pool,
            backends,
            why,
        }));
    }

    /// Why a backend is forgotten that nobody has told of before.
    pub(super) fn why_forgotten(&self, slot: u32) -> Reason {
        match self.backends.life(slot) {
            Some(life) if life.is_starting() => Reason::NotStarted,
            _ => Reason::Ended,
        }
    }

    /// Those that nobody has told of as lost: one more, or one less.
    fn count_staying(&mut self, number: u32, change: i32) -> u32 {
        self.pool_mut(number)
            .map_or(0, |pool| pool.count_staying(change))
    }
}
