//! How many backends a pool starts now, and why; and which of them a session gets.

use super::places::Places;
use super::pool_changes::Reason;
use super::words::Word;
use std::collections::VecDeque;

/// What decides how many backends a pool shall start now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Sessions that may be served: those that wait and have room, and in the ready queue.
    pub waiting: usize,
    /// Backends of the pool that are not there yet.
    pub starting: usize,
    /// The pool's backends that are not dedicated, starting ones included.
    pub backends: usize,
    /// Sessions of the pool.
    pub sessions: usize,
    pub min_backends: usize,
    pub places: Places,
    /// Forced migration needs a second backend.
    pub force_migration: bool,
    /// Its sessions often take each other's, and it may have one more for that.
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

    /// Why the nth of those that are started now is, counted from 0.
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

    /// Those beyond the usual number are for sessions that wait alone.
    pub fn starts(&self) -> usize {
        let for_waiting = self.for_waiting().min(self.room());
        for_waiting.max(self.wanted().min(self.places.usual_room()))
    }

    /// How many backends the pool could start, if it wanted them.
    pub fn room(&self) -> usize {
        self.places.room()
    }

    /// Sessions wait, and nothing may be started for them.
    pub fn wants_room(&self) -> bool {
        self.waiting > 0 && self.wanted() > 0 && self.places.room() == 0
    }
}

/// Which of a pool's backends those get that cannot have their last ones: idle ones, or
/// those that linger. It goes on from one session to the next, so that a round looks at
/// each once.
#[derive(Debug, Default)]
pub struct Search {
    looked_at: usize,
    lingering: VecDeque<u32>,
}

impl Search {
    /// The slot, and the state it was seen in, to be claimed by compare-and-swap. `state`:
    /// None if the session may not have this one.
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
mod tests {
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
    fn idle_ones_come_first_then_those_that_linger_and_never_one_that_may_not_be_had() {
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
        // One that does not linger any more when it comes to its turn.
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
