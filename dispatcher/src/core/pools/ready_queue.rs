//! A pool's ready queue, as far as it is known here: a kernel socket from which its
//! backends help themselves. Into it the head of the pool's FIFO is kept moved.

use crate::core::ids::SessionId;
use std::collections::VecDeque;

/// Messages that it can hold at most (it holds fewer).
const DEPTH: usize = 64;
/// Where tenants take turns, the queue holds what the pool's backends take in so long. A session
/// whose turn it is next waits for no more than that; with one session for each backend, the
/// backends of a pool with short transactions would sleep three times as often.
const WORTH_US: u64 = 1_000;
/// How many they take is counted over this time at least.
const COUNTED_FOR_US: u64 = 2_000;
/// Whatever net.unix.max_dgram_qlen is.
const MORE_THAN_IT_HOLDS: i32 = 1 << 20;

#[derive(Default)]
pub struct ReadyQueue {
    /// What was sent into it last, oldest first.
    sent: VecDeque<SessionId>,
    /// How many were, those left out that were taken back.
    all_sent: u64,
    /// How many backends had taken when it was looked at.
    seen_taken: u64,
    /// It was full: an event tells when it is not.
    is_full: bool,
    /// Nothing can be sent for the moment, to backends of the pool either.
    rests: bool,
    /// Sessions sent since then.
    counted: u64,
    counted_since_us: u64,
    /// Sessions that are taken in WORTH_US.
    worth: usize,
}

impl ReadyQueue {
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Sessions that the backends take in a time too short to matter to one that waits.
    pub fn worth(&self) -> usize {
        self.worth
    }

    /// From now on a backend may own it.
    pub fn send(&mut self, id: SessionId, now_us: u64) {
        let counted_for_us = now_us.saturating_sub(self.counted_since_us);
        if counted_for_us >= COUNTED_FOR_US {
            self.worth = (self.counted * WORTH_US / counted_for_us) as usize;
            (self.counted, self.counted_since_us) = (0, now_us);
        }
        self.counted += 1;
        if self.sent.len() == DEPTH {
            self.sent.pop_front();
        }
        self.sent.push_back(id);
        self.all_sent += 1;
    }

    /// The one that was sent last is not in it: it is full.
    pub fn was_full(&mut self) {
        self.sent.pop_back();
        self.is_taken_back();
        self.is_full = true;
    }

    pub fn rest(&mut self) {
        self.rests = true;
    }

    /// It takes more; or there is another one the next time.
    pub fn has_room(&mut self) {
        self.is_full = false;
        self.rests = false;
    }

    /// One that was in it is in the FIFO again.
    pub fn is_taken_back(&mut self) {
        self.all_sent = self.all_sent.saturating_sub(1);
    }

    /// How many backends have taken from it since it was looked at, as `queued` are in it.
    pub fn take_taken(&mut self, queued: usize) -> u64 {
        let taken = self.all_sent.saturating_sub(queued as u64);
        let more = taken.saturating_sub(self.seen_taken);
        self.seen_taken += more;
        more
    }

    /// Those that were taken, as so many are in it still, as far as they are known.
    pub fn forget_taken(&mut self, queued: usize) -> impl Iterator<Item = SessionId> + '_ {
        let taken = self.sent.len().saturating_sub(queued);
        self.sent.drain(..taken)
    }

    /// All that was in it is taken back.
    pub fn is_drained(&mut self) {
        self.sent.clear();
    }

    /// So many that were sent last, first come first: those that are still in it.
    pub fn last(&self, count: usize) -> impl Iterator<Item = SessionId> + '_ {
        let past = self.sent.len().saturating_sub(count);
        self.sent.iter().skip(past).copied()
    }
}

/// Is the ready queue's counter wrong for good? A backend is busy from before
/// it takes a message until after it has lowered the counter, so while any is
/// busy the two may differ, and to correct the one would put it wrong: a
/// message that is not counted is seen by nobody. Below 0 it never is by itself, as
/// what is sent is counted before: somebody has written there, and who is taking
/// something meanwhile makes it wrong once more, for as long. Nor is it ever beyond what a
/// kernel's queue may hold.
pub fn counter_is_wrong(queue_is_empty: bool, may_be_taking: bool, queued: i32) -> bool {
    !(0..=MORE_THAN_IT_HOLDS).contains(&queued)
        || (!may_be_taking && queue_is_empty != (queued == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(queue: &mut ReadyQueue, from_us: u64, gap_us: u64) -> usize {
        for nth in 0..100 {
            queue.send(SessionId::default(), from_us + nth * gap_us);
        }
        queue.worth()
    }

    #[test]
    fn a_queue_is_worth_a_millisecond_of_short_transactions() {
        let mut queue = ReadyQueue::default();
        assert_eq!(
            sent(&mut queue, 1_000_000, 20),
            0,
            "not counted for long enough"
        );
        assert_eq!(sent(&mut queue, 1_002_000, 20), 50);
        assert_eq!(sent(&mut queue, 1_004_000, 5_000), 0, "long ones");
        assert_eq!(sent(&mut queue, 9_000_000, 50), 20);
    }

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
        assert!(counter_is_wrong(false, true, i32::MAX));
        assert!(counter_is_wrong(false, false, 0));
        assert!(counter_is_wrong(false, false, -1));
    }
}
