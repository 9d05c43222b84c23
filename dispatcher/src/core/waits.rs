//! Sessions that have waited too long for a backend.
//!
//! One that was greeted keeps its connection: its request is read and passed
//! over, an error stands in for the answer, and it is ready for the next. One
//! that was not greeted yet ends with the error.

use super::sessions::{Need, Whereabouts};
use super::{Action, Core, SessionId, Skipped, Then, Why};
use crate::protocol::opening::Failure;

/// Ended, or passed over, in one round: a word to each client.
const EXPIRED_AT_ONCE: usize = 64;

impl Core {
    /// Ends a pool's waits that have reached their limit, longest first. True if the
    /// longest has.
    pub(super) fn expire_waits(&mut self, number: u32, longest_us: Option<u64>) -> bool {
        let limit_us = self.limits.session_wait_timeout_us;
        let is_over = limit_us > 0 && longest_us >= Some(limit_us);
        if is_over {
            // The longest waits may be in the ready queue.
            self.act(Action::TakeBack(number));
            self.then(Then::Expire(number));
        }
        is_over
    }

    /// In each round: some of those, of whichever pool.
    pub(super) fn expire_on(&mut self) {
        let mut left = EXPIRED_AT_ONCE;
        while let Some(number) = self.expiring.first_from(0) {
            while let Some(id) = self.waits_too_long(number) {
                if left == 0 {
                    return;
                }
                left -= 1;
                let is_ungreeted = (self.sessions.get(id)).is_some_and(|session| {
                    session.whereabouts() == Whereabouts::Waiting(Need::Greeting)
                });
                match is_ungreeted {
                    true => self.end(id, Why::WaitedTooLong),
                    false => self.skip(id, Skipped::WaitedTooLong, false),
                }
            }
            self.expiring.remove(number);
        }
    }

    fn waits_too_long(&self, number: u32) -> Option<SessionId> {
        let id = self.sessions.longest_waiting(number)?;
        let waits_since_us = self.sessions.get(id)?.waits_since_us();
        let waited_us = self.now.us.saturating_sub(waits_since_us);
        (waited_us >= self.limits.session_wait_timeout_us).then_some(id)
    }

    /// Out of the FIFO, its request to be passed over.
    pub(super) fn skip(&mut self, id: SessionId, why: Skipped, later: bool) {
        self.sessions.put(id, Whereabouts::Skipping(why));
        self.is_back(id);
        self.act(Action::Skip { id, why, later });
    }

    /// What those who wait in vain are told: has the pool a backend, and why
    /// could none be started?
    pub fn why_it_waits(&self, number: u32) -> (bool, Option<&Failure>) {
        let Some(pool) = self.pool(number) else {
            return (false, None);
        };
        let has_backend = self.backends.lives(number).may_serve() > 0;
        (has_backend, pool.starts.failure())
    }
}
