//! What becomes of a session that speaks, comes back, or ends.
//!
//! Ownership goes one way round: an event on a session's socket means that it
//! is the dispatcher's; it then waits for its turn, and is handed over
//! (serve.rs). From there it comes back by its next event, by RELEASE, or ends.

use super::sessions::{Location, Need, Of, Whereabouts};
use super::{index_of, Action, Core, Ending, Look, NoSession, Says, SessionId, Then, Why, Words};

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
            _ if words.shown(index) != super::Shown::Idle => {}
            Some(Location::Held(slot)) => self.act(Action::Recall { slot, id }),
            Some(Location::Here(Whereabouts::Waiting(_)) | Location::OnItsWay(_)) | None => {}
            Some(Location::Here(_) | Location::GivenBack { .. }) => self.end(id, Why::IdleTooLong),
        }
    }
}
