//! When no backend can be started: what is tried next, and who is told.

use super::{Action, Core, SessionId, Then, Why, Words};
use crate::protocol::opening::Failure;

/// Clients that are told in a round that no backend will greet them, and sessions that are
/// looked at for that.
const ENDED_AT_ONCE: usize = 64;
const LOOKED_AT_ONCE: usize = 1024;

/// The sessions that waited when a pool's start failed, from the first on.
pub struct Ungreeted {
    pool: u32,
    /// Of those that were looked at: they wait on.
    stay: usize,
    left: usize,
}

impl Core {
    /// A backend could not be started: tell those who cannot be helped by
    /// waiting, and try again later for the rest. If it was for want of room, that is made.
    pub(super) fn start_failed(&mut self, number: u32, failure: Failure, words: &impl Words) {
        let now_us = self.now.us;
        let Some(pool) = self.pool_mut(number) else {
            return;
        };
        if pool.starts.were_in_each_other_s_way(&failure, now_us) {
            return self.mark_dirty(number);
        }
        let is_of_a_limit = failure.is_of_a_limit();
        if pool.starts.failed(failure, now_us) {
            self.act(Action::TellFailure(number));
        }
        match is_of_a_limit {
            true => self.make_room_within_limit(number, words),
            false => self.begin_to_end_ungreeted(number),
        }
    }

    /// Ends the clients that no backend will greet. As long as the pool has a backend they
    /// wait for that.
    pub(super) fn begin_to_end_ungreeted(&mut self, pool: u32) {
        if (self.pool(pool)).is_some_and(|pool| !pool.has_backends()) {
            self.act(Action::TakeBack(pool));
            self.then(Then::EndUngreeted(pool));
        }
    }

    pub(super) fn end_ungreeted(&mut self, pool: u32) {
        self.ungreeted.push_back(Ungreeted {
            pool,
            stay: 0,
            left: self.sessions.fifo(pool).count(),
        });
    }

    /// In each round: the next ones of these.
    pub(super) fn end_ungreeted_on(&mut self) {
        let (mut may_end, mut may_look) = (ENDED_AT_ONCE, LOOKED_AT_ONCE);
        while let Some(mut of) = self.ungreeted.pop_front() {
            let next = self.sessions.fifo(of.pool).skip(of.stay);
            let some: Vec<SessionId> = next.take(of.left.min(may_look)).collect();
            // As long as it has a backend they wait for that.
            if some.is_empty() || self.backends.lives(of.pool).attached() > 0 {
                continue;
            }
            for id in some {
                of.left -= 1;
                may_look -= 1;
                match self.why_ungreeted(of.pool, id) {
                    Some(why) => {
                        may_end -= 1;
                        self.end(id, why);
                    }
                    None => of.stay += 1,
                }
                if may_end == 0 {
                    break;
                }
            }
            self.ungreeted.push_front(of);
            if may_end == 0 || may_look == 0 {
                return;
            }
        }
    }

    fn why_ungreeted(&self, number: u32, id: SessionId) -> Option<Why> {
        let failure = self.pool(number).and_then(|pool| pool.starts.failure())?;
        let is_ungreeted = (self.sessions.get(id)).is_some_and(|session| session.is_ungreeted());
        let ends = (is_ungreeted || failure.is_no_database()) && is_final(failure);
        ends.then(|| Why::Failed(Box::new(failure.clone())))
    }
}

/// Can waiting not help?
fn is_final(failure: &Failure) -> bool {
    match failure {
        // Starting up or ending, or the connection broke; all else is what a
        // client of the server's own port is told, too.
        Failure::ServerError(report) => {
            let state = &report.sqlstate;
            !state.starts_with(b"57P") && !state.starts_with(b"08")
        }
        Failure::Protocol(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Report;

    #[test]
    fn only_what_waiting_cannot_mend_is_final() {
        let error = |state| Failure::ServerError(Report::fatal(state, "no"));
        assert!(is_final(&error(b"28P01")));
        assert!(is_final(&error(b"3D000")));
        assert!(is_final(&error(b"58P01")));
        assert!(!is_final(&error(b"57P03")));
        assert!(!is_final(&Failure::Protocol("x".into())));
    }
}
