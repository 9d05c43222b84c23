//! How many backends there may be, and of which kind.
//!
//! A backend is *shared*, or *apart*: its session is dedicated, so that it serves no other session.
//! `max_backends` bounds the shared backends alone. Those apart have bounds of their own, in what
//! the server's connections leave. So sessions that keep their backends cost the others memory, and
//! no backend. In a stall (stall.rs) there are *extra* backends besides, and the last of these are
//! kept for roles that have few backends. docs/design/pools.md has the reasons.

use super::lifecycle::Reason;
use super::Word;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// A superuser's first backend needs no place, and a few more need none of the pool's, whatever
/// keeps the first busy: the server keeps connections for superusers.
const SUPERUSERS_FIRST: usize = 3;
/// 1/STALL_PART of all connections is never for shared or dedicated backends.
const STALL_PART: usize = 8;

/// How many more backends may a role take that has `own`, where `left` are left? It takes from the
/// last `kept` only as long as it has fewer than are left. So whatever one role does, another role
/// that has none gets one.
pub fn may_take(own: usize, left: usize, kept: usize) -> usize {
    let freely = left.saturating_sub(kept);
    freely.max((left + 1).saturating_sub(own) / 2).min(left)
}

/// What a role has, and whether it has a right to reserved connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Role {
    /// Its backends of all pools, starting and leaving ones included.
    pub backends: usize,
    /// A superuser's session has waited in vain.
    pub is_superuser_in_need: bool,
}

/// The backends that exist, and the limits on them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Backends of all pools, starting ones included.
    pub total: usize,
    /// Of these, dedicated.
    pub dedicated: usize,
    /// Of the others, held by transactions that last.
    pub held: usize,
    /// How many more may be started because no waiting session makes progress (stall.rs).
    pub boost: usize,
    /// pg_baton.max_extra_backends; None: what is left.
    pub max_extra: Option<usize>,
    /// pg_baton.max_backends
    pub max_backends: usize,
    /// pg_baton.max_dedicated; None: what is left.
    pub max_dedicated: Option<usize>,
    /// Connections of the server that the pool may have.
    pub ceiling: usize,
    /// Beyond the ceiling, for superusers.
    pub for_superusers: usize,
    /// The role that wants a backend.
    pub role: Role,
}

impl Places {
    fn most_extra(&self) -> usize {
        self.max_extra.unwrap_or(usize::MAX)
    }

    /// An eighth of the ceiling is for a stall.
    pub fn most_shared(&self) -> usize {
        let for_stall = (self.ceiling / STALL_PART).min(self.most_extra());
        self.max_backends.min(self.ceiling - for_stall)
    }

    /// Extra backends that only roles with few backends get: a quarter of what the shared backends
    /// leave, or what they have to leave.
    fn kept(&self) -> usize {
        let left = self.ceiling - self.most_shared();
        (left / 4)
            .max(self.ceiling / STALL_PART)
            .min(left)
            .min(self.most_extra())
    }

    /// Backends apart never take what shared backends may have, nor what is kept.
    pub fn most_dedicated(&self) -> usize {
        let left = self.ceiling - self.most_shared() - self.kept();
        self.max_dedicated.map_or(left, |most| most.min(left))
    }

    /// Connections of the ceiling that neither shared backends nor a stall may need, and that no
    /// other backend has. This is the most native sessions.
    pub fn most_native(&self) -> usize {
        let apart = self.total.saturating_sub(self.most_shared());
        (self.ceiling - self.most_shared() - self.kept()).saturating_sub(apart)
    }

    /// Dedicated backends within their bound. Those beyond it hold places of the shared backends,
    /// as they cannot be moved.
    fn apart(&self) -> usize {
        self.dedicated.min(self.most_dedicated())
    }

    /// Places that the dedicated backends leave the shared ones.
    fn left_for_shared(&self) -> usize {
        (self.most_shared() + self.apart()).saturating_sub(self.dedicated)
    }

    /// The least places for shared backends: a quarter.
    fn kept_for_shared(&self) -> usize {
        (self.most_shared() / 4).max(1)
    }

    /// Places beyond max_backends in a stall.
    fn extra(&self) -> usize {
        (self.held + self.boost).min(self.most_extra())
    }

    /// The most backends without a stall.
    fn most_usual(&self) -> usize {
        self.most_shared() + self.apart()
    }

    /// The most backends now.
    fn most(&self) -> usize {
        (self.most_usual() + self.extra()).min(self.ceiling)
    }

    /// Connections that are left to the pool.
    pub fn left(&self) -> usize {
        self.ceiling.saturating_sub(self.total)
    }

    /// Are, in a stall, no more left than are kept for roles that have few?
    pub fn are_few_left(&self) -> bool {
        self.has_extra() && self.are_last_left()
    }

    /// May the rest be kept for roles that have few?
    pub fn are_last_left(&self) -> bool {
        self.left() <= self.kept()
    }

    /// Are few left, together with those that are `free`, and has the role so many that it takes no
    /// other role's place?
    pub fn has_its_share(&self, free: usize) -> bool {
        let left = self.left() + free;
        left <= self.kept() && self.role.backends > self.most_shared().max(left)
    }

    /// Is the nth added backend, counted from 0, there because of a stall?
    pub fn is_extra(&self, nth: usize) -> bool {
        self.total + nth >= self.most_usual()
    }

    /// Are there backends because of a stall?
    pub fn has_extra(&self) -> bool {
        self.total > self.most_usual()
    }

    /// How many may be added, in a stall or not, whatever role they are for.
    pub fn usual_room(&self) -> usize {
        self.most_usual()
            .min(self.ceiling)
            .saturating_sub(self.total)
    }

    /// How many may be added, for this role.
    pub fn room(&self) -> usize {
        let usual = self.usual_room();
        let extra = self.most().saturating_sub(self.total).saturating_sub(usual);
        let left = self.left().saturating_sub(usual);
        let own = self.role.backends + usual;
        let room = usual + extra.min(may_take(own, left, self.kept()));
        room.max(self.room_of_superuser())
    }

    fn room_of_superuser(&self) -> usize {
        let is_one_of_the_first = match self.role.backends {
            0 => true,
            // A place that is left may have been made for another role.
            own => own < SUPERUSERS_FIRST && self.total >= self.ceiling,
        };
        let is_there_one = self.total < self.ceiling + self.for_superusers;
        usize::from(self.role.is_superuser_in_need && is_one_of_the_first && is_there_one)
    }

    /// There are more than the permitted number, whatever the cause.
    #[cfg(test)]
    pub fn is_overdrawn(&self) -> bool {
        self.total > self.most()
    }

    /// There are more shared backends than permitted: sessions are no longer dedicated, or
    /// max_backends was lowered.
    pub fn has_surplus(&self) -> bool {
        self.shared_beyond_usual() > self.extra()
    }

    /// More shared backends beyond the usual number than are held: in a stall the backends started
    /// for it are taken, too.
    pub fn has_more_than_held(&self) -> bool {
        self.shared_beyond_usual() > self.held
    }

    fn shared_beyond_usual(&self) -> usize {
        let shared = self.total.saturating_sub(self.dedicated);
        shared.saturating_sub(self.left_for_shared().max(self.kept_for_shared()))
    }

    /// Dedicated sessions have taken so much that one has to end if others wait in vain.
    pub fn has_excess(&self) -> bool {
        self.left_for_shared() < self.kept_for_shared()
    }
}

/// Which dedicated session ends. Candidates are those beyond the bound that are idle between two
/// transactions. Of these it is one of the role with the most backends, and of that role the one
/// that came last. `slots`: all dedicated backends, in the order in which they became so.
pub fn choose_excess(
    slots: impl DoubleEndedIterator<Item = u32> + ExactSizeIterator,
    most_dedicated: usize,
    is_idle: impl Fn(u32) -> bool,
    role_backends: impl Fn(u32) -> usize,
) -> Option<u32> {
    let beyond = slots.len().saturating_sub(most_dedicated);
    slots
        .rev()
        .take(beyond)
        .filter(|slot| is_idle(*slot))
        // The first of several.
        .min_by_key(|slot| Reverse(role_backends(*slot)))
}

// ----------------------------------------------------------------------------
// How many backends a pool starts now, and why; and which of them a session gets.

/// What decides how many backends a pool starts now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Sessions that may be served: waiting ones that have room, and those in the ready queue.
    pub waiting: usize,
    /// Backends of the pool that have not attached yet.
    pub starting: usize,
    /// The pool's backends that are not dedicated, starting ones included.
    pub backends: usize,
    /// Sessions of the pool.
    pub sessions: usize,
    pub min_backends: usize,
    pub places: Places,
    /// Forced migration needs a second backend.
    pub force_migration: bool,
    /// Its sessions often take each other's backends, and it may have one more for that.
    pub is_short_of_one: bool,
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
        let for_steals = usize::from(self.is_short_of_one);
        (self.for_waiting())
            .max(least.saturating_sub(self.backends))
            .max(for_steals)
    }

    fn for_waiting(&self) -> usize {
        self.waiting.saturating_sub(self.starting)
    }

    /// Why the nth of the backends started now is started, counted from 0.
    pub fn why_start(&self, nth: usize) -> Reason {
        if nth < self.for_waiting() {
            match self.places.is_extra(nth) {
                true => Reason::Stall,
                false => Reason::Waiting,
            }
        } else if self.backends + nth < self.min_backends {
            Reason::Least
        } else if self.is_short_of_one {
            Reason::Steals
        } else {
            Reason::ForcedMigration
        }
    }

    /// Backends beyond the usual number are only for waiting sessions.
    pub fn starts(&self) -> usize {
        let for_waiting = self.for_waiting().min(self.room());
        let starts = for_waiting.max(self.wanted().min(self.places.usual_room()));
        ensure!(starts <= self.wanted());
        starts
    }

    /// How many backends the pool could start, if it wanted them.
    pub fn room(&self) -> usize {
        self.places.room()
    }

    /// Sessions wait, and no backend may be started for them.
    pub fn wants_room(&self) -> bool {
        self.waiting > 0 && self.wanted() > 0 && self.places.room() == 0
    }
}

/// Finds a backend for sessions that cannot have their last one: an idle backend, or one that
/// lingers. The search goes on from one session to the next, so that a round looks at each backend
/// once.
#[derive(Debug, Default)]
pub struct Search {
    looked_at: usize,
    lingering: VecDeque<u32>,
}

impl Search {
    /// The slot, and the state it was seen in, to be claimed by compare-and-swap. `state`: None if
    /// the session may not have this backend.
    pub fn find(
        &mut self,
        slots: &[u32],
        state: impl Fn(u32) -> Option<Word>,
    ) -> Option<(u32, Word)> {
        while let Some(slot) = slots.get(self.looked_at).copied() {
            self.looked_at += 1;
            match state(slot) {
                Some(Word::Idle) => return Some((slot, Word::Idle)),
                Some(Word::Linger) => self.lingering.push_back(slot),
                _ => {}
            }
        }
        while let Some(slot) = self.lingering.pop_front() {
            if let Some(state) = state(slot).filter(|state| state.is_free()) {
                return Some((slot, state));
            }
        }
        None
    }
}

#[cfg(test)]
mod places_tests {
    use super::*;

    fn places() -> Places {
        Places {
            max_backends: 8,
            ceiling: 97,
            ..Places::default()
        }
    }

    #[test]
    fn max_backends_bounds_those_that_are_shared() {
        let mut now = Places {
            total: 7,
            ..places()
        };
        assert_eq!(now.room(), 1);
        now.total = 8;
        assert_eq!(now.room(), 0);
    }

    #[test]
    fn a_dedicated_session_gives_its_place_back() {
        let mut now = Places {
            total: 8,
            ..places()
        };
        for dedicated in 1..=67 {
            now.dedicated = dedicated;
            assert_eq!(now.room(), 1, "{dedicated}");
            assert!(!now.has_surplus() && !now.has_excess());
            now.total += 1;
        }
        // Up to what the server leaves, without what is kept.
        assert_eq!((now.total, now.most_dedicated()), (75, 67));
    }

    #[test]
    fn backend_that_becomes_shared_again_may_be_surplus() {
        let mut now = Places {
            total: 10,
            dedicated: 2,
            ..places()
        };
        assert!(!now.has_surplus());
        now.dedicated = 1;
        assert!(now.has_surplus());
        now.total = 9;
        assert!(!now.has_surplus());
        now.max_backends = 4;
        assert!(now.has_surplus());
    }

    #[test]
    fn dedicated_beyond_their_bound_take_from_shared_but_never_all() {
        let mut now = Places {
            total: 8,
            max_dedicated: Some(2),
            ..places()
        };
        let mut excess_at = None;
        for dedicated in 1..=10 {
            now.dedicated = dedicated;
            now.total += now.room();
            if now.has_excess() {
                excess_at.get_or_insert(dedicated);
            }
        }
        assert_eq!(now.total, 10);
        // Eight are shared as long as two are dedicated; two stay shared.
        assert_eq!(excess_at, Some(9));
        // However many are dedicated, what is kept for the shared ones is no surplus.
        now.total = 12;
        assert!(!now.has_surplus());
    }

    #[test]
    fn what_is_held_is_replaced_as_far_as_the_server_has_room() {
        let mut now = Places {
            total: 8,
            max_extra: Some(3),
            ..places()
        };
        for held in 1..=5 {
            now.held = held;
            assert_eq!(now.room(), usize::from(held <= 3));
            now.total += now.room();
            assert!(!now.has_surplus());
        }
        now.held = 1;
        assert!(now.has_surplus());
        now.held = 90;
        now.max_extra = None;
        assert_eq!(now.room(), 97 - 11 - 22);
        // And not at the cost of a dedicated session's place.
        now.total = 97;
        now.dedicated = 67;
        assert_eq!(now.room(), 0);
        assert!(!now.has_surplus() && !now.has_excess());
    }

    #[test]
    fn shared_and_dedicated_fit_into_what_the_server_leaves() {
        let bounds = |max_backends, max_dedicated, ceiling| {
            let now = Places {
                max_backends,
                max_dedicated,
                ceiling,
                ..Places::default()
            };
            (now.most_shared(), now.most_dedicated())
        };
        assert_eq!(bounds(8, None, 1197), (8, 892));
        assert_eq!(bounds(8, Some(500), 1197), (8, 500));
        assert_eq!(bounds(8, Some(500), 97), (8, 67));
        assert_eq!(bounds(8, Some(0), 97), (8, 0));
        assert_eq!(bounds(200, None, 97), (85, 0));
    }

    #[test]
    fn without_extra_ones_nothing_is_kept_for_them() {
        let now = Places {
            max_extra: Some(0),
            ..places()
        };
        assert_eq!((now.most_shared(), now.most_dedicated()), (8, 89));
    }

    #[test]
    fn whatever_one_role_takes_another_gets_some() {
        let mut now = Places {
            total: 8,
            boost: 1000,
            ..places()
        };
        let mut had = Vec::new();
        for _ in 0..6 {
            now.role.backends = if had.is_empty() { 8 } else { 0 };
            while now.room() > 0 {
                now.role.backends += 1;
                now.total += 1;
            }
            had.push(now.role.backends);
        }
        assert_eq!(had, [75, 11, 6, 3, 1, 1]);
    }

    #[test]
    fn a_superuser_in_need_gets_one_beyond_the_ceiling() {
        let mut now = Places {
            total: 97,
            for_superusers: 5,
            ..places()
        };
        assert_eq!(now.room(), 0);
        now.role.is_superuser_in_need = true;
        for backends in 0..3 {
            (now.total, now.role.backends) = (97 + backends, backends);
            assert_eq!(now.room(), 1);
        }
        (now.total, now.role.backends) = (100, 3);
        assert_eq!(now.room(), 0);
        (now.total, now.role.backends) = (102, 0);
        assert_eq!(now.room(), 0);
    }

    #[test]
    fn last_to_become_dedicated_ends_first_and_none_in_transaction() {
        let choose = |slots: &[u32], most_dedicated| {
            let is_idle = |slot| slot != 2;
            choose_excess(slots.iter().copied(), most_dedicated, is_idle, |_| 1)
        };
        assert_eq!(choose(&[1, 3, 2], 0), Some(3));
        assert_eq!(choose(&[2], 0), None);
        // A session that came within the bound stays.
        assert_eq!(choose(&[1, 3, 2], 1), Some(3));
        assert_eq!(choose(&[1, 3, 2], 2), None);
        assert_eq!(choose(&[1], 2), None);
    }

    #[test]
    fn one_of_the_role_with_most_ends_before_others_that_came_later() {
        let of_role = |slot| if slot < 2 { 5 } else { 1 };
        let slots = [7, 1, 2].into_iter();
        assert_eq!(choose_excess(slots, 0, |_| true, of_role), Some(1));
    }
}

#[cfg(test)]
mod growth_tests {
    use super::*;

    fn growth() -> Growth {
        Growth {
            places: Places {
                max_backends: 8,
                max_extra: Some(2),
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
    fn idle_backends_come_first_then_lingering_and_none_unavailable() {
        let words = [
            Word::Busy,
            Word::Linger,
            Word::Idle,
            Word::Linger,
            Word::Idle,
        ];
        let slots = [1, 2, 3, 4, 5];
        let state = |slot: u32| words.get(slot as usize - 1).copied();
        let mut search = Search::default();
        let mut found = || search.find(&slots, state).map(|(slot, _)| slot);
        assert_eq!(
            [(); 5].map(|()| found()),
            [Some(3), Some(5), Some(2), Some(4), None]
        );
        // A backend that no longer lingers when its turn comes.
        let mut search = Search::default();
        assert!(search.find(&slots[..3], state).is_some());
        assert_eq!(
            search.find(&slots[..3], |slot| state(slot).filter(|_| slot != 2)),
            None
        );
        let mut search = Search::default();
        assert_eq!(search.find(&[3], |_| None), None);
    }
}
