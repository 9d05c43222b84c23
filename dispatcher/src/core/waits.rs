//! Sessions that have waited too long for a backend.
//!
//! One that was greeted keeps its connection: its request is read and passed
//! over, an error stands in for the answer, and it is ready for the next. One
//! that was not greeted yet ends with the error.

use super::sessions::{Need, Whereabouts};
use super::{Action, Core, SessionId, Skipped, Then, Why};
use crate::protocol::auth::client::Failure;

impl Core {
    /// Ends a pool's waits that have reached their limit, longest first.
    pub(super) fn expire_waits(&mut self, number: u32, longest_us: Option<u64>) {
        let limit_us = self.limits.session_wait_timeout_us;
        if limit_us > 0 && longest_us.is_some_and(|longest_us| longest_us >= limit_us) {
            // The longest waits may be in the ready queue.
            self.act(Action::TakeBack(number));
            self.then(Then::Expire(number));
        }
    }

    pub(super) fn expire(&mut self, number: u32) {
        let limit_us = self.limits.session_wait_timeout_us;
        while let Some(id) = self.sessions.longest_waiting(number) {
            let Some(session) = self.sessions.get(id) else {
                return;
            };
            if self.now.us.saturating_sub(session.waits_since_us()) < limit_us {
                return;
            }
            if session.whereabouts() == Whereabouts::Waiting(Need::Greeting) {
                self.end(id, Why::WaitedTooLong);
            } else {
                self.skip(id, Skipped::WaitedTooLong, false);
            }
        }
    }

    /// Out of the FIFO, its request to be passed over.
    pub(super) fn skip(&mut self, id: SessionId, why: Skipped, later: bool) {
        self.sessions.put(id, Whereabouts::Skipping(why));
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
