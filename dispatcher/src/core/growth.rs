//! How many backends a pool starts now, and why; and which of them a session gets.

use super::places::Places;
use super::pool_changes::Reason;
use super::words::Word;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
