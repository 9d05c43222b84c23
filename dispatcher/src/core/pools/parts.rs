//! What the dispatcher knows of a pool's ready queue: a kernel socket from which its backends help
//! themselves. The dispatcher keeps moving the head of the pool's FIFO into it.

use crate::core::SessionId;
use crate::protocol::opening::Failure;
use std::collections::VecDeque;

/// More messages than the queue ever holds.
const DEPTH: usize = 64;
/// Where tenants take turns, the queue holds what the pool's backends take in this time. The
/// session whose turn is next waits no longer than that. With only one session per backend, the
/// backends of a pool with short transactions would sleep three times as often.
const WORTH_US: u64 = 1_000;
/// The rate at which they take is measured over at least this time.
const COUNTED_FOR_US: u64 = 2_000;
/// Whatever net.unix.max_dgram_qlen is.
const MORE_THAN_IT_HOLDS: i32 = 1 << 20;

#[derive(Default)]
pub struct ReadyQueue {
    /// The sessions sent into it last, oldest first.
    sent: VecDeque<SessionId>,
    /// How many sessions were sent, without those taken back.
    all_sent: u64,
    /// How many sessions backends had taken at the last look.
    seen_taken: u64,
    /// The queue was full: an event reports when it is not.
    is_full: bool,
    /// Nothing can be sent for the moment, not even to the pool's backends.
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

    /// Sessions that the backends take in a time too short to matter to a waiting session.
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

    /// The session sent last is not in the queue, because the queue is full.
    pub fn was_full(&mut self) {
        self.sent.pop_back();
        self.is_taken_back();
        self.is_full = true;
    }

    pub fn rest(&mut self) {
        self.rests = true;
    }

    /// The queue accepts sessions again, or the next backend opens a new queue.
    pub fn has_room(&mut self) {
        self.is_full = false;
        self.rests = false;
    }

    /// A session that was in the queue is in the FIFO again.
    pub fn is_taken_back(&mut self) {
        self.all_sent = self.all_sent.saturating_sub(1);
    }

    /// How many sessions backends have taken since the last look, if `queued` are in the queue.
    pub fn take_taken(&mut self, queued: usize) -> u64 {
        let taken = self.all_sent.saturating_sub(queued as u64);
        let more = taken.saturating_sub(self.seen_taken);
        self.seen_taken += more;
        more
    }

    /// Forgets the sessions that were taken, if `queued` are still in the queue; those that are
    /// known.
    pub fn forget_taken(&mut self, queued: usize) -> impl Iterator<Item = SessionId> + '_ {
        let taken = self.sent.len().saturating_sub(queued);
        self.sent.drain(..taken)
    }

    /// All sessions of the queue are taken back.
    pub fn is_drained(&mut self) {
        self.sent.clear();
    }

    /// The last `count` sessions sent, oldest first: those that are still in the queue.
    pub fn last(&self, count: usize) -> impl Iterator<Item = SessionId> + '_ {
        let past = self.sent.len().saturating_sub(count);
        self.sent.iter().skip(past).copied()
    }
}

/// Is the ready queue's counter wrong for good? A backend is busy from before it takes a message
/// until after it has lowered the counter. So while any backend is busy the two may differ, and a
/// correction would be wrong: no backend sees a message that is not counted.
///
/// A message is counted before it is sent, so the counter never falls below 0 by itself: a process
/// has overwritten it, and a backend that takes a message meanwhile makes it wrong once more, for
/// as long. Nor can it exceed what a kernel's queue may hold.
pub fn counter_is_wrong(queue_is_empty: bool, may_be_taking: bool, queued: i32) -> bool {
    !(0..=MORE_THAN_IT_HOLDS).contains(&queued)
        || (!may_be_taking && queue_is_empty != (queued == 0))
}

// ----------------------------------------------------------------------------
// How a pool's backends start: what failed, and when a start is tried again.

#[derive(Default)]
pub struct Starts {
    retry: Retry,
    /// Another backend was starting when the last one was started.
    together: bool,
    /// Why the last start failed.
    failure: Option<Failure>,
}

impl Starts {
    /// Is a start permitted by now?
    pub fn may_be_tried(&self, now_us: u64) -> bool {
        self.retry.allowed(now_us)
    }

    /// After a failure one backend at a time, until one succeeds.
    pub fn are_one_at_a_time(&self) -> bool {
        self.retry.is_waiting()
    }

    /// A backend is started; `together` with another.
    pub fn begin(&mut self, together: bool) {
        self.together = together;
    }

    /// A backend has attached.
    pub fn has_come(&mut self) {
        self.retry.succeeded();
        self.failure = None;
    }

    /// If only one more backend fits, two that start at a time are both refused: the server counts
    /// them before it lets them in (CountUserBackends and CountDBConnections, InitPostgres, 15 to
    /// 18). True: that may be the cause, and the next backend starts alone.
    pub fn were_in_each_other_s_way(&mut self, failure: &Failure, now_us: u64) -> bool {
        let may_be_why = self.together && failure.is_of_a_limit();
        if may_be_why {
            self.retry.failed(now_us);
        }
        may_be_why
    }

    /// A start is to be tried again later. True if this failure differs from the last, or is the
    /// first.
    pub fn failed(&mut self, failure: Failure, now_us: u64) -> bool {
        self.retry.failed(now_us);
        let is_new = self.failure.as_ref() != Some(&failure);
        self.failure = Some(failure);
        is_new
    }

    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

/// Backing off after failed starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Retry {
    failures: u32,
    not_before_us: u64,
}

impl Retry {
    const FIRST_US: u64 = 50_000;
    const MOST_US: u64 = 5_000_000;

    /// Several backends that were started together fail together: that counts once.
    fn failed(&mut self, now_us: u64) {
        if !self.allowed(now_us) {
            return;
        }
        let wait = Self::FIRST_US << self.failures.min(10);
        self.failures += 1;
        self.not_before_us = now_us + wait.min(Self::MOST_US);
    }

    fn succeeded(&mut self) {
        *self = Retry::default();
    }

    fn allowed(&self, now_us: u64) -> bool {
        now_us >= self.not_before_us
    }

    fn is_waiting(&self) -> bool {
        self.failures > 0
    }
}

// ----------------------------------------------------------------------------
// How often the sessions of a pool take each other's backends, to ask for them again at once.
//
// A backend lingers with a session that has just been answered, as that session may ask again at
// once. A session that asks and has no backend takes a lingering one; then the other session has
// none when it asks, and so on. Each of these steals is a hand-over, though no session waits, and
// pools grow only for waiting sessions. With one more backend each session would keep its own.

/// This number of steals in this time is often: some percent of what a backend does.
const OFTEN: u32 = 50;
const OFTEN_US: u64 = 50_000;
/// A session that asks again within this time would have found its backend.
const SOON_US: u64 = 1_000;
/// How many losers are remembered: more than are away for so short a time, where backends are few.
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
    /// The backend that lingered with this session belongs to another session now.
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

    /// One more backend would end the steals.
    pub fn are_often(&self) -> bool {
        self.count >= OFTEN
    }

    /// Whether to start one more backend has been decided: steals are counted anew.
    pub fn reset(&mut self) {
        if self.are_often() {
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod ready_queue_tests {
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
        let first = sent(&mut queue, 1_000_000, 20);
        assert_eq!(first, 0, "not counted for long enough");
        assert_eq!(sent(&mut queue, 1_002_000, 20), 50);
        assert_eq!(sent(&mut queue, 1_004_000, 5_000), 0, "long ones");
        assert_eq!(sent(&mut queue, 9_000_000, 50), 20);
    }

    #[test]
    fn counter_is_left_alone_while_a_backend_may_be_taking() {
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

#[cfg(test)]
mod starts_tests {
    use super::*;

    #[test]
    fn failed_starts_are_repeated_ever_more_slowly() {
        let mut retry = Retry::default();
        assert!(retry.allowed(0) && !retry.is_waiting());
        retry.failed(1_000_000);
        assert!(!retry.allowed(1_049_999) && retry.allowed(1_050_000));
        // The other starts of the same burst, and the next try.
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

#[cfg(test)]
mod steals_tests {
    use super::*;

    /// Two sessions alternate, `times` times, each `each_us` after the other, with a pause after
    /// every second time.
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
