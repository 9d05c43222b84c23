//! How often the sessions of a pool take each other's backends, to ask for them again at once.
//!
//! A backend lingers with a session that has just been answered, as that may ask again at
//! once. A session that asks and has no backend takes a lingering one; then the other session
//! has none when it asks, and so on. Each of these is a hand-over, though no session waits,
//! which is what pools grow for. With one more backend each session would keep its own.

use crate::core::SessionId;
use std::collections::VecDeque;

/// So many in so long are often: some percent of what a backend does.
const OFTEN: u32 = 50;
const OFTEN_US: u64 = 50_000;
/// A session that asks again so soon would have found its backend.
const SOON_US: u64 = 1_000;
/// That are remembered: more than are away for so short a time, where backends are few.
const REMEMBERED: usize = 16;

/// A pool's rate of steals.
#[derive(Debug, Default)]
pub struct StealRate {
    /// Sessions whose backends have been taken, and when; the latest last.
    losers: VecDeque<(SessionId, u64)>,
    since_us: u64,
    count: u32,
}

impl StealRate {
    /// The backend that lingered with this session is another's now.
    pub fn loses_backend(&mut self, id: SessionId, now_us: u64) {
        if self.losers.len() == REMEMBERED {
            self.losers.pop_front();
        }
        self.losers.push_back((id, now_us));
    }

    /// This session gets a backend: it counts if its own was taken a moment ago.
    pub fn gets_backend(&mut self, id: SessionId, now_us: u64) {
        let taken = self.losers.iter().position(|(loser, _)| *loser == id);
        let taken = taken.and_then(|at| self.losers.remove(at));
        let is_soon = taken.is_some_and(|(_, at_us)| now_us.saturating_sub(at_us) <= SOON_US);
        if !is_soon || self.are_often() {
            return;
        }
        if now_us.saturating_sub(self.since_us) > OFTEN_US {
            (self.since_us, self.count) = (now_us, 0);
        }
        self.count += 1;
        if self.are_often() {
            self.since_us = now_us;
        }
    }

    /// One more backend would end that.
    pub fn are_often(&self) -> bool {
        self.count >= OFTEN
    }

    /// It has been decided whether there is one more: steals are counted anew.
    pub fn reset(&mut self) {
        if self.are_often() {
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sessions in turns, so many times, each so long after the other, and after every
    /// second time a pause.
    fn often(each_us: u64, pause_us: u64, times: u64) -> usize {
        let mut steals = StealRate::default();
        let (mut now_us, mut often) = (0, 0);
        for nth in 0..times {
            let id = nth % 2;
            steals.gets_backend(id, now_us);
            often += usize::from(steals.are_often());
            steals.reset();
            steals.loses_backend(1 - id, now_us);
            now_us += each_us + id * pause_us;
        }
        often
    }

    #[test]
    fn a_thousand_steals_a_second_are_often_and_fewer_are_not() {
        assert_eq!(often(500, 0, 1_001), 20);
        assert_eq!(often(900, 0, 1_001), 20);
        assert_eq!(often(500, 2_000, 10_000), 0, "a third of that");
        assert_eq!(often(1_100, 0, 10_000), 0, "each comes back later");
    }

    #[test]
    fn a_session_that_comes_back_late_or_lost_none_does_not_count() {
        let mut steals = StealRate::default();
        for nth in 0..1_000 {
            steals.loses_backend(nth, nth * 100);
            steals.gets_backend(nth + 1, nth * 100);
            steals.gets_backend(nth.saturating_sub(11), nth * 100);
            assert!(!steals.are_often());
            assert!(steals.losers.len() <= REMEMBERED);
        }
    }
}
