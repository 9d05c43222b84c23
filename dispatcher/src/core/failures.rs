//! When no backend can be started: what is tried next, and who is told.

use super::origin::Origin;
use super::{Action, Core, SessionId, Then, Why, Words};
use crate::protocol::auth::client::Failure;

/// Clients that are told in a round that no backend will greet them, and sessions that are
/// looked at for that.
const ENDED_AT_ONCE: usize = 64;
const LOOKED_AT_ONCE: usize = 1024;

/// The sessions that waited when a pool's start failed, from the first on.
pub struct Ungreeted {
    pool: u32,
    over_unix: Option<bool>,
    /// Of those that were looked at: they wait on.
    stay: usize,
    left: usize,
}

impl Core {
    /// Where but one more may come in, two that start at a time are both
    /// refused: the server counts them before it lets them in
    /// (CountUserBackends and CountDBConnections, InitPostgres, 15 to 18). True:
    /// that may be why, and the next one starts alone.
    pub(super) fn in_each_other_s_way(&mut self, number: u32, failure: &Failure) -> bool {
        let now_us = self.now.us;
        let pool = self.pool_mut(number);
        if !pool.is_some_and(|pool| pool.starts.were_in_each_other_s_way(failure, now_us)) {
            return false;
        }
        self.mark_dirty(number);
        true
    }

    /// The server does not let a backend in: the line that let a client in has
    /// changed since, say. Others are tried, and last the dispatcher's own way.
    pub(super) fn login_failed(
        &mut self,
        number: u32,
        origin: Option<Origin>,
        over_unix: bool,
        failure: Failure,
        words: &impl Words,
    ) {
        let Some(pool) = self.pool_mut(number) else {
            return;
        };
        let Some(failure) = pool.starts.was_refused(origin, failure) else {
            return self.mark_dirty(number);
        };
        self.note_failure(number, failure, Some(over_unix), words);
    }

    /// A backend could not be started: tell those who cannot be helped by
    /// waiting, and try again later for the rest.
    pub(super) fn start_failed(&mut self, number: u32, failure: Failure, words: &impl Words) {
        self.note_failure(number, failure, None, words);
    }

    /// To be tried again later. If it was for want of room, that is made; or else nobody
    /// is to wait in vain.
    fn note_failure(
        &mut self,
        number: u32,
        failure: Failure,
        over_unix: Option<bool>,
        words: &impl Words,
    ) {
        let now_us = self.now.us;
        let Some(pool) = self.pool_mut(number) else {
            return;
        };
        let limit = failure.limit();
        if pool.starts.failed(failure, now_us) {
            self.act(Action::TellFailure(number));
        }
        match limit {
            Some(limit) => self.make_room_within_limits(number, limit, over_unix, words),
            None => self.begin_to_end_ungreeted(number, over_unix),
        }
    }

    /// Ends the clients that no backend will greet, each for the failure that
    /// is its own. As long as the pool has a backend they wait for that.
    pub(super) fn begin_to_end_ungreeted(&mut self, pool: u32, over_unix: Option<bool>) {
        if (self.pool(pool)).is_some_and(|pool| !pool.has_backends()) {
            self.act(Action::TakeBack(pool));
            self.then(Then::EndUngreeted { pool, over_unix });
        }
    }

    /// `over_unix`: a login failed, each has a failure of its own.
    pub(super) fn end_ungreeted(&mut self, pool: u32, over_unix: Option<bool>) {
        self.ungreeted.push_back(Ungreeted {
            pool,
            over_unix,
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
                match self.why_ungreeted(of.pool, id, of.over_unix) {
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

    fn why_ungreeted(&self, number: u32, id: SessionId, over_unix: Option<bool>) -> Option<Why> {
        let failure = match over_unix {
            Some(over_unix) => self.own_failure(number, id, over_unix),
            None => self.pool(number).and_then(|pool| pool.starts.failure()),
        }?;
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
        Failure::NoCredentials(_) | Failure::UnsupportedMethod(_) => true,
        Failure::ServerNotProven | Failure::Protocol(_) => false,
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
        assert!(is_final(&Failure::NoCredentials("scram-sha-256")));
        assert!(!is_final(&Failure::Protocol("x".into())));
    }
}
