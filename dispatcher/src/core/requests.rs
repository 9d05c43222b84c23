//! What becomes of a session that speaks, comes back, or ends.
//!
//! Ownership moves in one circle. An event on a session's socket means that the dispatcher owns the
//! session. The session then waits for its turn, and is handed over (dispatch.rs). It comes back by
//! its next event or by RELEASE, or it ends.

use super::limits::{group_of, Group};
use super::sessions::{Location, Need, Of, Whereabouts};
use super::{
    index_of, Action, Core, Ending, Look, Says, SessionId, Shown, Skipped, TenantKey, Then, Why,
    Words,
};
use crate::protocol::opening::Failure;

impl Core {
    /// Creates a session for a client of this tenant that has logged in. The client is silent until
    /// `ToGreet` or its first message.
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
        self.came_in(id, number, &key);
        Ok(id)
    }

    /// A session of an earlier dispatcher goes on under its name: limits do not concern it, as it
    /// has come in. `holder`: the slot of the backend that has it, and what is expected of that; the
    /// backend leaves, and gives the session back before. False if the session's slot is not free,
    /// or the backend's has another backend.
    pub fn adopt_session(
        &mut self,
        number: u32,
        id: SessionId,
        holder: Option<(u32, Need)>,
    ) -> bool {
        let Some(tenant) = self.tenant(number) else {
            return false;
        };
        let (key, pool) = (tenant.key().clone(), tenant.pool());
        let may_hold = |slot: u32| match self.backends.get(slot) {
            Some(adopted) => adopted.pool() == pool && adopted.life().is_leaving(),
            None => self.backends.may_be_adopted(slot),
        };
        if holder.is_some_and(|(slot, _)| !may_hold(slot))
            || !self.sessions.adopt(id, (number, pool))
        {
            return false;
        }
        self.came_in(id, number, &key);
        if let Some((slot, need)) = holder {
            let serial = match self.backends.get(slot) {
                Some(adopted) => adopted.serial(),
                None => self.adopt_backend(slot, pool),
            };
            self.sessions.is_with(id, slot, serial, need);
            self.is_handed_out(id, true);
        }
        true
    }

    fn came_in(&mut self, id: SessionId, number: u32, key: &TenantKey) {
        self.session_tally.add(key, 1);
        self.exempt_if_privileged(id, key);
        self.follow_limits(number);
        self.look_at_threshold();
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
            // An old event: of a socket that was armed for its end only, and has been handed on
            // since or is not given back yet. The owner of the session sees the end of the socket,
            // which is armed when the session comes back.
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
        // Its backend has given it back after its first transaction: the client may well have come
        // for this one transaction (pass_baton, idle.c).
        if hup || words.transactions(index_of(id)) == 1 {
            let look = Look::Leaving;
            return self.act(Action::Look { id, look });
        }
        self.comes_to_ask(id, words);
    }

    fn comes_to_ask(&mut self, id: SessionId, words: &impl Words) {
        if self.ends_sessions() {
            return self.end(id, Why::Administrator);
        }
        self.make_wait(id, words);
    }

    /// Takes what a session's socket holds.
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
            // Two backends that died may have had it.
            (Look::Lost, _) if !self.is_away(id) => {}
            (Look::Lost, Says::Something) => self.comes_to_ask(id, words),
            (Look::Lost, Says::Leaves) => self.end(id, Why::Ended(Ending::Left)),
            // Its request was read, and no process answers it.
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

    /// Appends the session to its line.
    pub(super) fn make_wait(&mut self, id: SessionId, words: &impl Words) {
        if let Some(number) = self.may_wait(id, words) {
            let line = self.line_of(number, id, words);
            self.sessions.wait(id, line, self.now.us);
            self.waits(id, number);
        }
    }

    /// The line in which a session waits: quiet if it is new, or was silent for longer than others
    /// wait. All sessions are measured by the same wait, so that equal behaviour gets the same
    /// line.
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

    /// A session that is still to be greeted waits again. Its socket is armed anew, for its end.
    pub(super) fn make_wait_ungreeted(&mut self, id: SessionId, words: &impl Words) {
        self.act(Action::ArmForEnd(id));
        self.make_wait(id, words);
    }

    pub(super) fn given_back(&mut self, id: SessionId, words: &impl Words) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let ungreeted = session.is_ungreeted();
        if self.ends_sessions() || self.is_forced_out(id, words) {
            self.end(id, Why::Administrator);
        } else if ungreeted {
            // The backend could not take it: another backend greets it.
            self.make_wait_ungreeted(id, words);
        } else {
            self.arm(id);
        }
    }

    /// All messages of the session were skipped, and none of them is left to be answered. Its next
    /// message is a request that begins to wait.
    pub(super) fn skipped(&mut self, id: SessionId) {
        self.act(Action::ClearCancel(id));
        self.arm(id);
    }

    /// Puts the session's socket into the epoll, to wait for the client.
    pub(super) fn arm(&mut self, id: SessionId) {
        if self.sessions.get(id).is_some() {
            self.sessions.put(id, Whereabouts::Idle);
            self.is_back(id);
            self.act(Action::Arm(id));
        }
    }

    /// Forgets a session; `why` says how its connection ends.
    pub(super) fn end(&mut self, id: SessionId, why: Why) {
        self.nothing_is_stored(id);
        self.forget_exempt(id);
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

    /// The client of an ungreeted session has gone: the session counts for no limit any more, and
    /// is not greeted before sessions behind it. A greeted session is served all the same, as in
    /// stock PostgreSQL: what its client has asked for is to be done.
    fn has_left_ungreeted(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        if matches!(session.whereabouts(), Whereabouts::Queue(_)) {
            self.act(Action::TakeBack(session.pool()));
        }
        self.then(Then::LeaveUngreeted(id));
    }

    /// Ends the session, unless a backend has taken it meanwhile: that backend sees the end itself.
    pub(super) fn leave_ungreeted(&mut self, id: SessionId) {
        let whereabouts = self.sessions.get(id).map(|session| session.whereabouts());
        if let Some(Whereabouts::Waiting(Need::Greeting)) = whereabouts {
            self.end(id, Why::Ended(Ending::Left));
        }
    }

    /// Applies idle_session_timeout. Backends leave it to the dispatcher, as they do not keep a
    /// session that has it set. It also applies to a session whose request is skipped and does not
    /// come to its end.
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
// A greeted session keeps its connection: its request is read and skipped, an error stands in for
// the answer, and the session is ready for the next request. An ungreeted session ends with the
// error.

/// Sessions ended or skipped in one round: each costs a message to its client.
const EXPIRED_AT_ONCE: usize = 64;

impl Core {
    /// Ends a pool's waits that have reached their limit, longest first. True if the longest has.
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

    /// Ends the next of these waits in each round, of any pool.
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
        let id = self.longest_waiting(number)?;
        let waited_us = self.wait_us(id)?;
        (waited_us >= self.limits.session_wait_timeout_us).then_some(id)
    }

    /// Takes a session out of the FIFO; its request is to be skipped.
    pub(super) fn skip(&mut self, id: SessionId, why: Skipped, later: bool) {
        self.sessions.put(id, Whereabouts::Skipping(why));
        self.is_back(id);
        self.act(Action::Skip { id, why, later });
    }

    /// What sessions that wait in vain are told: whether the pool has a backend, and why none could
    /// be started.
    pub fn why_it_waits(&self, number: u32) -> (bool, Option<&Failure>) {
        let Some(pool) = self.pool(number) else {
            return (false, None);
        };
        let has_backend = self.backends.lives(number).may_serve() > 0;
        (has_backend, pool.starts.failure())
    }
}

// ----------------------------------------------------------------------------
// Clients' cancel requests: which session each hits, and which process answers it.
//
// Only the owner of a session may answer it. On a backend: that backend, which is told the session
// and signalled. In the FIFO: the dispatcher, at once, as stock PostgreSQL would answer; the
// request is never executed. In the ready queue: the dispatcher, if the session can be taken back.
// In between, a flag in the session's slot tells the next owner: the backend that takes the
// session, or the dispatcher when the session comes back and asks to wait.

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
            // Its request is in its socket. Either the dispatcher has not read its event yet, or
            // the request is part of a message that no process has read: a partial message is not
            // hit.
            Some(Location::Here(_) | Location::GivenBack { .. }) => {
                let look = Look::Cancel;
                self.act(Action::Look { id, look });
            }
        }
    }

    /// The socket holds a whole request of the session.
    pub(super) fn cancel_what_is_asked(&mut self, id: SessionId, words: &impl Words) {
        match self.locate(id, words) {
            Some(Location::Here(Whereabouts::Waiting(Need::Answer))) => self.cancel_waiting(id),
            _ => self.act(Action::MarkCancel(id)),
        }
    }

    /// Ends this session as pg_terminate_backend() does. A backend that takes the session later
    /// sees that by itself.
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

    /// Marks the session's request to be skipped. Skipping begins with the next event on its
    /// socket.
    pub(super) fn cancel_waiting(&mut self, id: SessionId) {
        self.act(Action::ClearCancel(id));
        // A session that has just asked has not begun to wait.
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
// Which backend may speak of a session.
//
// A backend's message is believed as far as it can be true. What the scheduler has done with a
// session comes first: the session went to this backend, or into the ready queue of this backend's
// pool. Only backends know which of them took it from the queue, so there, and only there, the
// words of the session's slot decide. They are no proof, as each process of the server could write
// them. A process that lies by them can harm only sessions of its own database.

/// What a message says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// The session is in place: it changes, is greeted, or ends.
    InPlace,
    /// The session comes back. It may never have been in place: the backend could not take it.
    Back,
}

/// Can the message be true?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The session is the backend's.
    Own,
    /// The session has ended while the message was under way.
    Past,
    /// The session has another owner, or never existed.
    Foreign,
}

impl Core {
    /// Does the session belong to the backend in this slot, which sends this message?
    pub fn ownership(
        &self,
        slot: u32,
        id: SessionId,
        tells: Tells,
        words: &impl Words,
    ) -> Ownership {
        if self.sessions.get(id).is_none() {
            return match self.sessions.was_there(id) {
                true => Ownership::Past,
                false => Ownership::Foreign,
            };
        }
        let is_its_session = self.may_have(slot, id) && !self.pool_mate_has(slot, id, tells, words);
        match is_its_session || self.comes_from(slot, id, words) {
            true => Ownership::Own,
            false => Ownership::Foreign,
        }
    }

    /// The session waits already, and this backend of its pool had it last. A surplus event of its
    /// socket (armed twice, reap.rs) may arrive before the message by which the session was given
    /// back.
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

    /// Did this session go where this backend could get it, without having come back since, as far
    /// as the dispatcher knows?
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

    /// Where a session is. A holder that cannot have it does not count.
    pub(super) fn locate(&self, id: SessionId, words: &impl Words) -> Option<Location> {
        let is_possible = |slot: u32| self.may_have(slot, id);
        self.sessions.locate(id, words, is_possible)
    }

    /// The session went into the pool's queue: has another backend of the pool got it?
    fn pool_mate_has(&self, slot: u32, id: SessionId, tells: Tells, words: &impl Words) -> bool {
        let index = index_of(id);
        let whereabouts = self.sessions.get(id).map(|session| session.whereabouts());
        if !matches!(whereabouts, Some(Whereabouts::Queue(_))) {
            return false;
        }
        match words.holder(index) {
            Some(holder) => holder != slot && self.may_have(holder, id),
            // Given back by the backend that had it last; or never in place.
            None => {
                let was_last = words.last_backend(index) == Some(slot);
                !was_last && (tells == Tells::InPlace || words.shown(index) != Shown::Waiting)
            }
        }
    }
}

// ----------------------------------------------------------------------------
// Which clients become sessions: how many sessions a role may have in a database
// (pg_baton.pool_max_sessions), and from when on new sessions are native because too many wait
// (pg_baton.native_when_waiting).
//
// What the launcher says of a client (CONNECTION LIMIT, a refusal) and the limits at the door,
// which count native sessions too, belong to the shell: login/answers.rs.

/// Why a client gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// Its role has this number of sessions in its database, and may have no more.
    PoolLimit(usize),
    /// There is no slot for it.
    Full,
}

/// Do so many sessions wait that new ones become native? True from the threshold on, until only
/// half as many wait.
#[derive(Debug, Default)]
pub struct Crowd {
    is_there: bool,
    /// Logins before this time use the last result.
    look_at_us: u64,
}

/// Counting looks at up to some hundred ready queues.
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
    /// May one more session of this key come in? A superuser may in any case, as with CONNECTION
    /// LIMIT (InitializeSessionUserId in miscinit.c). Until the launcher has reported the settings
    /// of the role in the database, its answer about this client counts.
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

    /// A client has identified itself: is it to be native, as too many sessions wait for the pool's
    /// backends?
    pub fn too_many_wait(&mut self, words: &impl Words) -> bool {
        let threshold = self.limits.native_when_waiting;
        if threshold == 0 || self.is_pause_felt() {
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
    fn new_sessions_are_native_from_threshold_until_half_is_served() {
        let mut crowd = Crowd::default();
        let seen = [9, 10, 9, 6, 5, 9, 10, 0].map(|waiting| {
            crowd.look(10, waiting);
            crowd.is_there
        });
        assert_eq!(seen, [false, true, true, true, false, false, true, false]);
    }
}
