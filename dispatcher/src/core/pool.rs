//! Pools: who waits for a backend of which kind, and who gets one.
//!
//! A pool is a role as it was at login, a database, and the startup options
//! that only a starting backend can take; nothing else splits it. Sessions that
//! need a backend wait in the pool's FIFO, whose length the number of sessions
//! bounds; its head is kept moved into the ready queue (a kernel socket, whose
//! order [`Pool::sent`] remembers), from which backends help themselves.

use super::ids::SessionId;
use super::origin::{FailedOrigins, Provenance};
use super::places::Places;
use super::pool_changes::Reason;
use super::pool_limits::PoolLimits;
use super::replaceable::Replaceable;
use super::room::Lack;
use super::words::Word;
use crate::protocol::auth::client::Failure;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What makes a pool. Names are what its backends log in by, OIDs who they
/// must be then: a name may be another's by now (docs/design/pools.md).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    pub user: Vec<u8>,
    pub database: Vec<u8>,
    pub role_oid: u32,
    pub database_oid: u32,
    /// Was the role a superuser when its clients logged in? Backends keep that
    /// from their own login (AuthenticatedUserIsSuperuser, miscinit.c).
    pub superuser: bool,
    /// Options that only a starting backend can take, sorted by name.
    pub options: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Messages that the ready queue can hold at most (it holds fewer).
pub const QUEUE_DEPTH: usize = 64;

/// One pool. Who is in it and who waits, [`Sessions`](super::sessions) knows.
pub struct Pool {
    pub key: Arc<PoolKey>,
    /// Tells it from another one that had its number.
    pub serial: u64,
    /// control's value since which its backends have all been started.
    pub settings_generation: u64,
    /// What a starting backend reads has changed: it serves the sessions it
    /// has, and clients who come now get another pool.
    pub outdated: bool,
    pub replaceable: Replaceable,
    /// Its group's; None: not known yet.
    pub limits: Option<PoolLimits>,
    /// When the last backend left that serves its sessions in turn; 0: it has not had
    /// any.
    pub without_since_us: u64,
    /// Does it want one more all the time?
    pub lack: Lack,
    /// Its mode says so, and its backends are told.
    pub keeps_sessions: bool,
    /// Of the contexts of its sessions, as far as they are stored.
    pub context_bytes: i64,
    /// What its backends have been shown.
    pub memory_left: Option<i64>,
    /// Slots of its backends that are not dedicated. What is done for each
    /// session that speaks goes through these only.
    pub backends: Vec<u32>,
    /// Slots of those that are.
    pub dedicated: Vec<u32>,
    /// All of them that are not told of as lost (pool_changes.rs).
    pub staying: u32,
    /// Where its sessions come from, and how many from each.
    pub origins: BTreeMap<Provenance, u32>,
    /// Where its sessions are now, if they have moved.
    pub moved_to: Option<u32>,
    /// What was sent into the ready queue last, oldest first.
    pub sent: VecDeque<SessionId>,
    /// The queue was full: an event tells when it is not.
    pub queue_full: bool,
    /// Nothing can be sent to its backends for the moment.
    pub rests: bool,
    /// In the list of pools to look at.
    pub dirty: bool,
    pub retry: Retry,
    /// Beside the backend started last another one was starting.
    pub starts_together: bool,
    /// Why the last start of a backend failed.
    pub failure: Option<Failure>,
    /// On whose behalf none starts.
    pub failed_origins: FailedOrigins,
}

impl Pool {
    pub fn new(key: Arc<PoolKey>, serial: u64, settings_generation: u64) -> Pool {
        Pool {
            key,
            serial,
            settings_generation,
            outdated: false,
            replaceable: Replaceable::default(),
            limits: None,
            keeps_sessions: false,
            without_since_us: 0,
            lack: Lack::default(),
            context_bytes: 0,
            memory_left: None,
            backends: Vec::new(),
            dedicated: Vec::new(),
            staying: 0,
            origins: BTreeMap::new(),
            moved_to: None,
            sent: VecDeque::new(),
            queue_full: false,
            rests: false,
            dirty: false,
            retry: Retry::default(),
            starts_together: false,
            failure: None,
            failed_origins: FailedOrigins::default(),
        }
    }

    /// The slots of all its backends.
    pub fn all_backends(&self) -> impl Iterator<Item = u32> + '_ {
        self.backends.iter().chain(&self.dedicated).copied()
    }

    pub fn has_backends(&self) -> bool {
        self.all_backends().next().is_some()
    }

    pub fn set_dedicated(&mut self, slot: u32, dedicated: bool) {
        self.backends.retain(|other| *other != slot);
        self.dedicated.retain(|other| *other != slot);
        if dedicated {
            self.dedicated.push(slot);
        } else {
            self.backends.push(slot);
        }
    }

    pub fn forget_backend(&mut self, slot: u32, now_us: u64) {
        self.backends.retain(|other| *other != slot);
        self.dedicated.retain(|other| *other != slot);
        if self.backends.is_empty() {
            self.without_since_us = now_us;
        }
    }

    pub fn note_sent(&mut self, id: SessionId) {
        if self.sent.len() == QUEUE_DEPTH {
            self.sent.pop_front();
        }
        self.sent.push_back(id);
    }

    pub fn comes_from(&mut self, from: Provenance) {
        *self.origins.entry(from).or_default() += 1;
    }

    pub fn gone_from(&mut self, from: Provenance) {
        if let Some(count) = self.origins.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.origins.remove(&from);
            }
        }
    }
}

/// Backing off after failed starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    not_before_us: u64,
}

impl Retry {
    const FIRST_US: u64 = 50_000;
    const MOST_US: u64 = 5_000_000;

    /// Several that were started together fail together: that counts once.
    pub fn failed(&mut self, now_us: u64) {
        if !self.allowed(now_us) {
            return;
        }
        let wait = Self::FIRST_US << self.failures.min(10);
        self.failures += 1;
        self.not_before_us = now_us + wait.min(Self::MOST_US);
    }

    pub fn succeeded(&mut self) {
        *self = Retry::default();
    }

    pub fn allowed(&self, now_us: u64) -> bool {
        now_us >= self.not_before_us
    }

    pub fn is_waiting(&self) -> bool {
        self.failures > 0
    }
}

/// What decides how many backends a pool shall start now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Sessions in FIFO and ready queue.
    pub waiting: usize,
    /// Backends of the pool that are not there yet.
    pub starting: usize,
    /// The pool's backends that are not dedicated, starting ones included.
    pub backends: usize,
    /// Sessions of the pool.
    pub sessions: usize,
    pub min_backends: usize,
    pub places: Places,
    /// How many more its own limit allows.
    pub own_room: usize,
    /// Forced migration needs a second backend.
    pub force_migration: bool,
}

impl Growth {
    /// How many backends the pool could use.
    pub fn wanted(&self) -> usize {
        let mut least = if self.sessions > 0 {
            self.min_backends
        } else {
            0
        };
        if self.force_migration && self.waiting > 0 {
            least = least.max(2);
        }
        self.for_waiting().max(least.saturating_sub(self.backends))
    }

    fn for_waiting(&self) -> usize {
        self.waiting.saturating_sub(self.starting)
    }

    /// Why the nth of those that are started now is, counted from 0.
    pub fn why_start(&self, nth: usize) -> Reason {
        if nth < self.for_waiting() {
            match self.places.is_extra(nth) {
                true => Reason::Stall,
                false => Reason::Waiting,
            }
        } else if self.backends + nth < self.min_backends {
            Reason::Least
        } else {
            Reason::ForcedMigration
        }
    }

    pub fn starts(&self) -> usize {
        self.wanted().min(self.own_room).min(self.places.room())
    }

    /// Sessions wait, and nothing may be started for them.
    pub fn wants_room(&self) -> bool {
        self.waiting > 0 && self.wanted() > 0 && self.own_room > 0 && self.places.room() == 0
    }

    /// Sessions wait, and the pool has all the backends it may have.
    pub fn is_at_its_limit(&self) -> bool {
        self.waiting > 0 && self.wanted() > 0 && self.own_room == 0
    }
}

/// Which of a pool's backends a session gets that cannot have its last one: an idle
/// one, or one that lingers; with forced migration never the last. The result is the
/// slot and the state it was seen in, to be claimed by compare-and-swap.
pub fn choose_backend(
    states: impl Iterator<Item = (u32, Word)>,
    never: Option<u32>,
) -> Option<(u32, Word)> {
    let mut lingers = None;
    for (slot, state) in states {
        match state {
            _ if never == Some(slot) => {}
            Word::Idle => return Some((slot, state)),
            Word::Linger if lingers.is_none() => lingers = Some((slot, state)),
            _ => {}
        }
    }
    lingers
}

/// Is the ready queue's counter wrong for good? A backend is busy from before
/// it takes a message until after it has lowered the counter, so while any is
/// busy the two may differ, and to correct the one would put it wrong: a
/// message that is not counted is seen by nobody. Below 0 it never is by itself, as
/// what is sent is counted before: somebody has written there, and who is taking
/// something meanwhile makes it wrong once more, for as long.
pub fn counter_is_wrong(queue_is_empty: bool, may_be_taking: bool, queued: i32) -> bool {
    queued < 0 || (!may_be_taking && queue_is_empty != (queued == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_left_alone_while_somebody_may_be_taking() {
        for queued in [0, 1] {
            assert!(!counter_is_wrong(true, true, queued));
            assert!(!counter_is_wrong(false, true, queued));
        }
        assert!(!counter_is_wrong(true, false, 0));
        assert!(!counter_is_wrong(false, false, 2));
        assert!(counter_is_wrong(true, false, 1));
        assert!(counter_is_wrong(true, false, -1));
        assert!(counter_is_wrong(true, true, -1));
        assert!(counter_is_wrong(false, false, 0));
        assert!(counter_is_wrong(false, false, -1));
    }

    fn growth() -> Growth {
        Growth {
            own_room: usize::MAX,
            places: Places {
                max_backends: 8,
                ceiling: 10,
                ..Places::default()
            },
            ..Growth::default()
        }
    }

    #[test]
    fn one_backend_for_each_that_waits_counting_those_that_start() {
        let mut now = Growth {
            waiting: 3,
            starting: 1,
            backends: 1,
            ..growth()
        };
        assert_eq!(now.starts(), 2);
        now.starting = 3;
        assert_eq!(now.starts(), 0);
    }

    #[test]
    fn each_that_is_started_has_its_reason() {
        let mut now = Growth {
            waiting: 3,
            sessions: 3,
            min_backends: 4,
            force_migration: true,
            ..growth()
        };
        let reasons = |now: &Growth| -> Vec<Reason> {
            (0..now.starts()).map(|nth| now.why_start(nth)).collect()
        };
        let waits = Reason::Waiting;
        assert_eq!(reasons(&now), [waits, waits, waits, Reason::Least]);
        now.places.total = 7;
        now.places.held = 1;
        assert_eq!(reasons(&now), [waits, Reason::Stall]);
        now.waiting = 1;
        now.starting = 1;
        now.backends = 1;
        now.min_backends = 0;
        assert_eq!(reasons(&now), [Reason::ForcedMigration]);
    }

    #[test]
    fn no_more_than_there_are_places() {
        let mut now = Growth {
            waiting: 50,
            ..growth()
        };
        now.places.total = 7;
        assert_eq!(now.starts(), 1);
        now.places.total = 8;
        assert_eq!(now.starts(), 0);
        assert!(now.wants_room());
        now.places.dedicated = 1;
        assert_eq!(now.starts(), 1);
        assert!(!now.wants_room());
    }

    #[test]
    fn nor_more_than_its_own_limit_and_then_it_wants_nobody_s_place() {
        let mut now = Growth {
            waiting: 50,
            own_room: 2,
            ..growth()
        };
        assert_eq!(now.starts(), 2);
        now.own_room = 0;
        now.places.total = 8;
        assert!(now.starts() == 0 && !now.wants_room() && now.is_at_its_limit());
    }

    #[test]
    fn min_backends_counts_only_where_there_are_sessions() {
        let mut now = Growth {
            min_backends: 3,
            backends: 1,
            ..growth()
        };
        assert_eq!(now.starts(), 0);
        now.sessions = 1;
        assert_eq!(now.starts(), 2);
    }

    #[test]
    fn forced_migration_wants_two_backends() {
        let now = Growth {
            force_migration: true,
            waiting: 1,
            starting: 1,
            backends: 1,
            ..growth()
        };
        assert_eq!(now.starts(), 1);
    }

    #[test]
    fn idle_ones_come_first_then_those_that_linger_and_never_the_one_that_is_left_out() {
        let states = [
            (1, Word::Busy),
            (2, Word::Linger),
            (3, Word::Idle),
            (4, Word::Linger),
        ];
        let choose = |never| choose_backend(states.into_iter(), never);
        assert_eq!(choose(None), Some((3, Word::Idle)));
        assert_eq!(choose(Some(3)), Some((2, Word::Linger)));
        let one = |word, never| choose_backend([(1, word)].into_iter(), never);
        assert_eq!(one(Word::Idle, Some(1)), None);
        assert_eq!(one(Word::Retiring, None), None);
    }

    #[test]
    fn failed_starts_are_repeated_ever_more_slowly() {
        let mut retry = Retry::default();
        assert!(retry.allowed(0) && !retry.is_waiting());
        retry.failed(1_000_000);
        assert!(!retry.allowed(1_049_999) && retry.allowed(1_050_000));
        // the others of the same burst, and the next try
        for _ in 0..100 {
            retry.failed(1_010_000);
        }
        assert!(retry.allowed(1_050_000));
        retry.failed(1_050_000);
        assert!(!retry.allowed(1_149_999) && retry.allowed(1_150_000));
        let mut now_us = 1_150_000;
        for _ in 0..100 {
            retry.failed(now_us);
            now_us += Retry::MOST_US;
            assert!(retry.allowed(now_us) && retry.is_waiting());
        }
        retry.failed(now_us);
        assert!(!retry.allowed(now_us + Retry::MOST_US - 1));
        retry.succeeded();
        assert!(retry.allowed(0));
    }
}
