//! What becomes of a session that speaks, comes back, or ends.
//!
//! Ownership goes one way round: an event on a session's socket means that it
//! is the dispatcher's; it then waits for its turn, and is handed over
//! (dispatch.rs). From there it comes back by its next event, by RELEASE, or ends.

use super::limits::{group_of, Group};
use super::sessions::{Location, Need, Of, Whereabouts};
use super::{
    index_of, Action, Core, Ending, Look, Says, SessionId, Shown, Skipped, TenantKey, Then, Why,
    Words,
};
use crate::protocol::opening::Failure;

impl Core {
    /// Makes a session of a client of this tenant's that has logged in. Its client is
    /// silent until `ToGreet` or its first word.
    pub fn begin_session(
        &mut self,
        number: u32,
        words: &impl Words,
    ) -> Result<SessionId, NoSession> {
        let tenant = self.tenant(number).ok_or(NoSession::Full)?;
        let (key, pool) = (tenant.key().clone(), tenant.pool());
        self.may_come_in(&key, None)?;
        let usable = |index| words.index_is_free(index);
        let created = self.sessions.create((number, pool), usable);
        let id = created.ok_or(NoSession::Full)?;
        self.session_tally.add(&key, 1);
        self.follow_limits(number);
        self.look_at_threshold();
        Ok(id)
    }

    pub(super) fn spoke(&mut self, id: SessionId, hup: bool, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Here(place) | Location::OnItsWay(place)) if place.is_ungreeted() => {
                let look = Look::Ungreeted;
                self.act(Action::Look { id, look });
            }
            Some(Location::Here(Whereabouts::Skipping(_))) => self.act(Action::SkipOn(id)),
            Some(Location::Here(Whereabouts::Idle)) => self.comes_back(id, hup, words),
            Some(Location::GivenBack { announced: false }) => self.comes_back(id, hup, words),
            // An event of before: of a socket that was armed for its end only,
            // and has been handed on since, or is not given back yet. Whoever
            // has it sees its end, and it is armed when it comes back.
            Some(
                Location::Here(_)
                | Location::OnItsWay(_)
                | Location::GivenBack { announced: true }
                | Location::Held(_),
            )
            | None => {}
        }
    }

    fn comes_back(&mut self, id: SessionId, hup: bool, words: &impl Words) {
        // Its backend has given it back after its first transaction: it may
        // well have come for no more (pass_baton, idle.c).
        if hup || words.transactions(index_of(id)) == 1 {
            let look = Look::Leaving;
            return self.act(Action::Look { id, look });
        }
        self.comes_to_ask(id, words);
    }

    fn comes_to_ask(&mut self, id: SessionId, words: &impl Words) {
        if self.stopping {
            return self.end(id, Why::Administrator);
        }
        self.make_wait(id, words);
    }

    /// What a session's socket holds.
    pub(super) fn said(&mut self, id: SessionId, look: Look, says: Says, words: &impl Words) {
        if self.sessions.get(id).is_none() {
            return;
        }
        match (look, says) {
            (Look::Ungreeted, Says::Leaves | Says::Broken) => self.has_left_ungreeted(id),
            (Look::Ungreeted, _) => {}
            (Look::Leaving, Says::Leaves) => self.end(id, Why::Ended(Ending::Left)),
            (Look::Leaving, Says::Nothing) => self.arm(id),
            (Look::Leaving, Says::Something) => self.comes_to_ask(id, words),
            (Look::Leaving, Says::Broken) => self.end(id, Why::Ended(Ending::Cut)),
            (Look::Cancel, Says::Something) => self.cancel_what_is_asked(id, words),
            (Look::Cancel, _) => {}
            // Two that died may have had it.
            (Look::Lost, _) if !self.is_away(id) => {}
            (Look::Lost, Says::Something) => self.comes_to_ask(id, words),
            (Look::Lost, Says::Leaves) => self.end(id, Why::Ended(Ending::Left)),
            // Its request was read, and nobody answers it.
            (Look::Lost, Says::Nothing | Says::Broken) => self.end(id, Why::Ended(Ending::Cut)),
        }
    }

    fn is_away(&self, id: SessionId) -> bool {
        let place = self.sessions.get(id).map(|session| session.whereabouts());
        matches!(place, Some(Whereabouts::Queue(_) | Whereabouts::Sent(..)))
    }

    pub(super) fn wait_for_greeting(&mut self, id: SessionId, words: &impl Words) {
        if let Some(number) = self.may_wait(id, words) {
            self.sessions.wait_for_greeting(id, self.now.us);
            self.waits(id, number);
        }
    }

    /// Behind all others of its line.
    pub(super) fn make_wait(&mut self, id: SessionId, words: &impl Words) {
        if let Some(number) = self.may_wait(id, words) {
            let line = self.line_of(number, id, words);
            self.sessions.wait(id, line, self.now.us);
            self.waits(id, number);
        }
    }

    /// Where it waits: is it new, or was it silent for longer than others wait? All
    /// are measured by the same wait, so that those that behave alike stand alike.
    fn line_of(&self, number: u32, id: SessionId, words: &impl Words) -> Of {
        let index = index_of(id);
        let silent_us = self.now.passed_us(words.session_since_us(index));
        let waited_us = self.usual_wait_us(number, words);
        let is_new = words.transactions(index) == 0;
        match is_new || u64::try_from(silent_us).is_ok_and(|silent_us| silent_us >= waited_us) {
            true => Of::Quiet,
            false => Of::Busy,
        }
    }

    fn may_wait(&mut self, id: SessionId, words: &impl Words) -> Option<u32> {
        if self.is_forced_out(id, words) {
            self.end(id, Why::Administrator);
            return None;
        }
        let session = self.sessions.get(id)?;
        let (pool, is_ungreeted) = (session.pool(), session.is_ungreeted());
        if words.is_cancelled(index_of(id)) {
            if !is_ungreeted {
                self.cancel_waiting(id);
                return None;
            }
            // A login has no statement.
            self.act(Action::ClearCancel(id));
        }
        Some(pool)
    }

    fn waits(&mut self, id: SessionId, number: u32) {
        self.is_back(id);
        self.act(Action::ShowWaiting(id));
        self.in_want.insert(number);
        self.mark_dirty(number);
    }

    /// A session that is still to be greeted waits again: that its client goes
    /// is seen anew.
    pub(super) fn make_wait_ungreeted(&mut self, id: SessionId, words: &impl Words) {
        self.act(Action::ArmForEnd(id));
        self.make_wait(id, words);
    }

    pub(super) fn given_back(&mut self, id: SessionId, words: &impl Words) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let ungreeted = session.is_ungreeted();
        if self.stopping || self.is_forced_out(id, words) {
            self.end(id, Why::Administrator);
        } else if ungreeted {
            // The backend could not take it: another one shall greet it.
            self.make_wait_ungreeted(id, words);
        } else {
            self.arm(id);
        }
    }

    /// All that it has said was passed over, and nothing of that is left to be
    /// answered: what it says next is a request that begins to wait.
    pub(super) fn skipped(&mut self, id: SessionId) {
        self.act(Action::ClearCancel(id));
        self.arm(id);
    }

    /// Its socket into the epoll, to wait for the client.
    pub(super) fn arm(&mut self, id: SessionId) {
        if self.sessions.get(id).is_some() {
            self.sessions.put(id, Whereabouts::Idle);
            self.is_back(id);
            self.act(Action::Arm(id));
        }
    }

    /// Forgets a session; how its connection ends is said by `why`.
    pub(super) fn end(&mut self, id: SessionId, why: Why) {
        self.nothing_is_stored(id);
        let Some((tenant, _)) = self.sessions.remove(id) else {
            return;
        };
        if let Some(key) = self.tenant_key(tenant).cloned() {
            self.session_tally.take(&key, 1);
        }
        self.is_served_no_more(tenant, id);
        self.count_limits(tenant);
        ensure!(self.sessions.get(id).is_none());
        self.act(Action::End { id, tenant, why });
        self.look_at_threshold();
    }

    /// A client has gone that was still to be greeted: it counts for no limit
    /// any more, and nobody greets it before those who wait behind it. One that
    /// had been greeted is served all the same, as in stock: what it has asked
    /// for is to be done.
    fn has_left_ungreeted(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        if matches!(session.whereabouts(), Whereabouts::Queue(_)) {
            self.act(Action::TakeBack(session.pool()));
        }
        self.then(Then::LeaveUngreeted(id));
    }

    /// Unless a backend has taken it meanwhile, which sees it then.
    pub(super) fn leave_ungreeted(&mut self, id: SessionId) {
        let whereabouts = self.sessions.get(id).map(|session| session.whereabouts());
        if let Some(Whereabouts::Waiting(Need::Greeting)) = whereabouts {
            self.end(id, Why::Ended(Ending::Left));
        }
    }

    /// idle_session_timeout: backends leave it to us, as they do not keep a
    /// session that has it set. It counts for one whose request is passed over and
    /// does not come to its end, too.
    pub(super) fn sweep_session(&mut self, index: u32, words: &impl Words) {
        let Some(id) = self.sessions.in_slot(index) else {
            return;
        };
        let limit_us = words.idle_timeout_us(index);
        let silent_us = self.now.passed_us(words.session_since_us(index));
        if limit_us == 0 || silent_us <= limit_us {
            return;
        }
        match self.locate(id, words) {
            Some(Location::Here(Whereabouts::Skipping(_))) => self.end(id, Why::IdleTooLong),
            _ if words.shown(index) != Shown::Idle => {}
            Some(Location::Held(slot)) => self.act(Action::Recall { slot, id }),
            Some(Location::Here(Whereabouts::Waiting(_)) | Location::OnItsWay(_)) | None => {}
            Some(Location::Here(_) | Location::GivenBack { .. }) => self.end(id, Why::IdleTooLong),
        }
    }
}

// ----------------------------------------------------------------------------
// Sessions that have waited too long for a backend.
//
// One that was greeted keeps its connection: its request is read and passed
// over, an error stands in for the answer, and it is ready for the next. One
// that was not greeted yet ends with the error.

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

// ----------------------------------------------------------------------------
// Clients' cancel requests: whom each hits, and who answers it.
//
// Only who has a session may answer it. On a backend: that backend, which is
// named the session and signalled. In the FIFO: we, at once, as stock would
// answer; the request is never executed. In the ready queue: we, if it can be
// taken back. In between, a flag in the session's slot tells whoever has it
// next: the backend that takes it, or us when it comes back and asks to wait.

impl Core {
    /// Cancels what this session runs, and nothing else.
    pub(super) fn cancel(&mut self, id: SessionId, words: &impl Words) {
        let pool = self.sessions.get(id).map(|session| session.pool());
        match (self.locate(id, words), pool) {
            (Some(Location::OnItsWay(Whereabouts::Queue(_))), Some(pool)) => {
                self.act(Action::TakeBack(pool));
                self.then(Then::Cancel(id));
            }
            _ => self.cancel_located(id, words),
        }
    }

    pub(super) fn cancel_located(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Held(_)) => self.act(Action::CancelOnBackend(id)),
            // A login has no statement.
            Some(Location::Here(Whereabouts::Waiting(Need::Greeting))) => {}
            // It is answered with an error already.
            Some(Location::Here(Whereabouts::Skipping(_))) | None => {}
            Some(Location::OnItsWay(_)) => self.act(Action::MarkCancel(id)),
            // What it has asked is in its socket. We may not have come to that yet, or
            // it is part of a message, which nobody has looked at: that is not hit.
            Some(Location::Here(_) | Location::GivenBack { .. }) => {
                let look = Look::Cancel;
                self.act(Action::Look { id, look });
            }
        }
    }

    /// A whole request of it is there.
    pub(super) fn cancel_what_is_asked(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Here(Whereabouts::Waiting(Need::Answer))) => self.cancel_waiting(id),
            _ => self.act(Action::MarkCancel(id)),
        }
    }

    /// Ends this session as pg_terminate_backend() does. A backend that comes to
    /// have it sees to it by itself.
    pub(super) fn terminate(&mut self, id: SessionId, words: &impl Words) {
        let pool = self.sessions.get(id).map(|session| session.pool());
        match (self.locate(id, words), pool) {
            (Some(Location::OnItsWay(Whereabouts::Queue(_))), Some(pool)) => {
                self.act(Action::TakeBack(pool));
                self.then(Then::Terminate(id));
            }
            _ => self.terminate_located(id, words),
        }
    }

    pub(super) fn terminate_located(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Held(_)) => self.act(Action::TerminateOnBackend(id)),
            Some(Location::Here(_) | Location::GivenBack { .. }) => {
                self.end(id, Why::Administrator);
            }
            Some(Location::OnItsWay(_)) | None => {}
        }
    }

    /// Its request is to be passed over. That begins with the next event on its
    /// socket.
    pub(super) fn cancel_waiting(&mut self, id: SessionId) {
        self.act(Action::ClearCancel(id));
        // One that comes to ask has not begun to wait.
        if !matches!(
            self.sessions.get(id).map(|session| session.whereabouts()),
            Some(Whereabouts::Waiting(_))
        ) {
            self.sessions.wait(id, Of::Quiet, self.now.us);
        }
        self.skip(id, Skipped::Cancelled, true);
    }
}

// ----------------------------------------------------------------------------
// Whose is the session that a backend speaks of?
//
// A backend's message is believed as far as it can be true. What the scheduler
// has done with a session comes first: it went to this backend, or into the
// ready queue of this backend's pool. Who of a pool took it from the queue only
// backends know, so there, and only there, the words of its slot decide. They
// are no proof, as each process of the server could write them; who lies by
// them can harm sessions of its own database.

/// What a message says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// What happens to a session in place: it changes, is greeted, ends.
    InPlace,
    /// It comes back. It may never have been in place: the backend could not
    /// take it.
    Back,
}

/// Can it be so?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The backend's.
    Theirs,
    /// Nobody's any more: it has ended while the message was under way.
    Past,
    /// Somebody else's, or there never was one.
    NotTheirs,
}

impl Core {
    /// Whose is the session of which the backend in this slot says that?
    pub fn whose(&self, slot: u32, id: SessionId, tells: Tells, words: &impl Words) -> Whose {
        if self.sessions.get(id).is_none() {
            return match self.sessions.was_there(id) {
                true => Whose::Past,
                false => Whose::NotTheirs,
            };
        }
        let is_theirs = self.may_have(slot, id) && !self.pool_mate_has(slot, id, tells, words);
        match is_theirs || self.comes_from(slot, id, words) {
            true => Whose::Theirs,
            false => Whose::NotTheirs,
        }
    }

    /// It waits already, and this backend of its pool had it last: an event of its
    /// socket too many (one that was armed twice, reap.rs) may be heard before the
    /// message by which it was given back.
    fn comes_from(&self, slot: u32, id: SessionId, words: &impl Words) -> bool {
        let (Some(session), Some(backend)) = (self.sessions.get(id), self.backends.get(slot))
        else {
            return false;
        };
        let index = index_of(id);
        matches!(session.whereabouts(), Whereabouts::Waiting(_))
            && session.pool() == backend.pool()
            && words.holder(index).is_none()
            && words.last_backend(index) == Some(slot)
    }

    /// Did this session go where this backend could get it, and has it not come
    /// back since, as far as we know?
    pub(super) fn may_have(&self, slot: u32, id: SessionId) -> bool {
        let (Some(session), Some(backend)) = (self.sessions.get(id), self.backends.get(slot))
        else {
            return false;
        };
        match session.whereabouts() {
            Whereabouts::Sent(to, _) => to == slot && session.sent_to() == backend.serial(),
            Whereabouts::Queue(_) => session.queue() == backend.pool(),
            Whereabouts::Idle | Whereabouts::Waiting(_) | Whereabouts::Skipping(_) => false,
        }
    }

    /// Where a session is. A holder who cannot have it is none.
    pub(super) fn locate(&self, id: SessionId, words: &impl Words) -> Option<Location> {
        let is_possible = |slot: u32| self.may_have(slot, id);
        self.sessions.locate(id, words, is_possible)
    }

    /// It went into the pool's queue: has another backend of the pool got it?
    fn pool_mate_has(&self, slot: u32, id: SessionId, tells: Tells, words: &impl Words) -> bool {
        let index = index_of(id);
        let whereabouts = self.sessions.get(id).map(|session| session.whereabouts());
        if !matches!(whereabouts, Some(Whereabouts::Queue(_))) {
            return false;
        }
        match words.holder(index) {
            Some(holder) => holder != slot && self.may_have(holder, id),
            // Given back by whoever had it last; or never in place.
            None => {
                let was_last = words.last_backend(index) == Some(slot);
                !was_last && (tells == Tells::InPlace || words.shown(index) != Shown::Waiting)
            }
        }
    }
}

// ----------------------------------------------------------------------------
// Who comes in: how many sessions a role may have in a database
// (pg_baton.pool_max_sessions), and from when on new ones are native because too many
// wait (pg_baton.native_when_waiting).
//
// What the launcher says of a client (CONNECTION LIMIT, a refusal) and the limits at
// the door, for which native sessions count, are the shell's: login/answers.rs.

/// Why a client becomes no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// Its role has so many in its database, and may have no more.
    PoolLimit(usize),
    /// There is no slot for it.
    Full,
}

/// Do so many sessions wait that new ones become native? From the threshold on, and
/// until only half as many wait.
#[derive(Debug, Default)]
pub struct Crowd {
    is_there: bool,
    /// Who logs in before is taken for the same moment's.
    look_at_us: u64,
}

/// To count takes a look at up to some hundred ready queues.
const LOOK_AGAIN_US: u64 = 10_000;

impl Crowd {
    fn look(&mut self, threshold: usize, waiting: usize) {
        let most = match self.is_there {
            true => threshold / 2,
            false => threshold.saturating_sub(1),
        };
        self.is_there = waiting > most;
    }
}

impl Core {
    /// May one more of this key come in? A superuser may in any case, as with CONNECTION
    /// LIMIT (InitializeSessionUserId in miscinit.c). As long as the launcher has not said
    /// what is set for the role in the database, what it said of this client counts.
    pub fn may_come_in(&self, key: &TenantKey, at_login: Option<usize>) -> Result<(), NoSession> {
        let group = group_of(key);
        let limits = self.groups.get(group).and_then(Group::limits);
        let most = limits.map_or(at_login, |limits| limits.max_sessions);
        match most.filter(|_| !key.superuser) {
            Some(most) if self.session_tally.of_group(group) >= most => {
                Err(NoSession::PoolLimit(most))
            }
            _ => Ok(()),
        }
    }

    /// A client says who it is: shall it be native, as too many wait for the pool's
    /// backends?
    pub fn too_many_wait(&mut self, words: &impl Words) -> bool {
        let threshold = self.limits.native_when_waiting;
        if threshold == 0 {
            self.crowd = Crowd::default();
        } else if self.now.us >= self.crowd.look_at_us {
            self.crowd.look(threshold, self.waiting(words));
            self.crowd.look_at_us = self.now.us + LOOK_AGAIN_US;
        }
        self.crowd.is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_sessions_are_native_from_the_threshold_on_and_until_half_of_it_is_served() {
        let mut crowd = Crowd::default();
        let seen = [9, 10, 9, 6, 5, 9, 10, 0].map(|waiting| {
            crowd.look(10, waiting);
            crowd.is_there
        });
        assert_eq!(seen, [false, true, true, true, false, false, true, false]);
    }
}
