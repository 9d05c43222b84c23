//! How often the sessions of a pool take each other's backends, to ask for them again at once.
//!
//! A backend lingers with a session that has just been answered, as that may ask again at
//! once. Who asks and has none gets such a one; then its session has none when it asks, and
//! so on: each of these is a hand-over, though nobody ever waits, which is what pools grow
//! for. With one more backend each would have his own.

use crate::core::SessionId;
use std::collections::VecDeque;

/// So many in so long are often: some percent of what a backend does.
const OFTEN: u32 = 50;
const OFTEN_US: u64 = 50_000;
/// Who asks again so soon would have found his backend.
const SOON_US: u64 = 1_000;
/// That are remembered: more than are away for so short a time, where backends are few.
const REMEMBERED: usize = 16;

#[derive(Debug, Default)]
pub struct Takings {
    /// Whose backends have been taken, and when; the latest last.
    from: VecDeque<(SessionId, u64)>,
    since_us: u64,
    count: u32,
}

impl Takings {
    /// The backend that lingered with this session is another's now.
    pub fn taken_from(&mut self, id: SessionId, now_us: u64) {
        if self.from.len() == REMEMBERED {
            self.from.pop_front();
        }
        self.from.push_back((id, now_us));
    }

    /// This session gets one. True: its own was taken a moment ago, and that is so often;
    /// then they are counted anew.
    pub fn are_often(&mut self, id: SessionId, now_us: u64) -> bool {
        let taken = self.from.iter().position(|(from, _)| *from == id);
        let taken = taken.and_then(|at| self.from.remove(at));
        if taken.is_none_or(|(_, at_us)| now_us.saturating_sub(at_us) > SOON_US) {
            return false;
        }
        if now_us.saturating_sub(self.since_us) > OFTEN_US {
            (self.since_us, self.count) = (now_us, 0);
        }
        self.count += 1;
        let are_often = self.count >= OFTEN;
        if are_often {
            (self.since_us, self.count) = (now_us, 0);
        }
        are_often
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sessions in turns, so many times, each so long after the other, and after every
    /// second time a pause.
    fn often(each_us: u64, pause_us: u64, times: u64) -> usize {
        let mut takings = Takings::default();
        let (mut now_us, mut often) = (0, 0);
        for nth in 0..times {
            let id = nth % 2;
            often += usize::from(takings.are_often(id, now_us));
            takings.taken_from(1 - id, now_us);
            now_us += each_us + id * pause_us;
        }
        often
    }

    #[test]
    fn a_thousand_a_second_are_often_and_fewer_are_not_however_long_they_go_on() {
        assert_eq!(often(500, 0, 1_001), 20);
        assert_eq!(often(900, 0, 1_001), 20);
        assert_eq!(often(500, 2_000, 10_000), 0, "a third of that");
        assert_eq!(often(1_100, 0, 10_000), 0, "each comes back later");
    }

    #[test]
    fn who_comes_back_late_or_has_lost_none_does_not_count() {
        let mut takings = Takings::default();
        for nth in 0..1_000 {
            takings.taken_from(nth, nth * 100);
            assert!(!takings.are_often(nth + 1, nth * 100));
            assert!(!takings.are_often(nth.saturating_sub(11), nth * 100));
            assert!(takings.from.len() <= REMEMBERED);
        }
    }
}
