//! Databases that a statement wants for itself (DROP DATABASE and its like).
//!
//! The process that executes it holds the database by an open connection,
//! from before the server counts who else is there up to its transaction's
//! end, when the server's lock on the database goes as well. As long as it is
//! held the pool starts no backend there, and greets nobody: who logs in waits
//! until a backend can be started, as he would wait for that lock, and gets
//! the server's own answer then. When no session is there, neither stay its
//! idle backends.
//!
//! Where its sessions are ended (WITH (FORCE)) their pools hand out nobody any more. All
//! ready queues are emptied, some in each round, and then all sessions looked at
//! (stop.rs). When the statement has ended that is done once more, as backends have
//! given some back since; and the hold lasts until it is.

use super::sessions::Location;
use super::{Action, Core, SessionId, Then, Words};

/// Ready queues that are emptied in a round: some system calls each.
const TAKEN_BACK_AT_ONCE: usize = if cfg!(test) { 2 } else { 256 };

/// One database that is held.
pub struct Hold {
    /// Its holder's number. None: he has gone, and not all have been looked at yet.
    number: Option<u32>,
    /// A name may be another database's by now.
    database_oid: u32,
    /// Its sessions are ended.
    forced: bool,
    /// Ready queues are still to be emptied: those of pools from this one on.
    to_take_back: Option<u32>,
    /// The session that executes the statement, 0 if it is none of the pool's.
    own: SessionId,
    /// Whom nobody had when its holder went.
    #[cfg(test)]
    to_end: Vec<SessionId>,
}

impl Core {
    /// Takes or confirms a hold. Who is in the database is counted and told
    /// (`TellWhoIsIn`); if that is nobody, neither stay its idle backends.
    pub fn hold(
        &mut self,
        number: u32,
        database_oid: u32,
        forced: bool,
        own: SessionId,
        words: &impl Words,
    ) {
        self.holds.retain(|hold| hold.number != Some(number));
        self.holds.push(Hold {
            number: Some(number),
            database_oid,
            forced,
            to_take_back: forced.then_some(0),
            own,
            #[cfg(test)]
            to_end: Vec::new(),
        });
        self.who_is_in.begin(number, database_oid, own);
        match forced {
            // They end, and are counted then.
            true => self.take_back_on(),
            false => self.count_who_is_in(words),
        }
    }

    /// Is there more to be done without anything having happened?
    pub(super) fn is_taking_hold(&self) -> bool {
        let mut holds = self.holds.iter();
        self.who_is_in.has_more()
            || holds.any(|hold| hold.to_take_back.is_some() || hold.number.is_none())
    }

    /// In each round: the next ready queues.
    pub(super) fn take_back_on(&mut self) {
        let mut left = TAKEN_BACK_AT_ONCE;
        for at in 0..self.holds.len() {
            let hold = &mut self.holds[at];
            let Some(from) = hold.to_take_back else {
                continue;
            };
            let pools = self.pools.in_database(hold.database_oid, from);
            let pools: Vec<u32> = pools.take(left).collect();
            left -= pools.len();
            hold.to_take_back = pools.last().map_or(Some(from), |last| Some(last + 1));
            for pool in pools {
                if self.pools.with_backends().contains(pool) {
                    self.act(Action::TakeBack(pool));
                }
            }
            self.then(Then::EndSessions);
        }
    }

    /// Sessions end that are to: all if it stops, and those of databases whose ready queues
    /// are empty.
    pub(super) fn end_sessions(&mut self, words: &impl Words) {
        let mut begins = self.stopping;
        for hold in &mut self.holds {
            let Some(from) = hold.to_take_back else {
                continue;
            };
            let mut left = self.pools.in_database(hold.database_oid, from);
            if left.next().is_none() {
                hold.to_take_back = None;
                begins = true;
            }
        }
        if begins {
            self.begin_to_end(words);
        }
        self.count_who_is_in(words);
    }

    /// The statement's transaction has ended, or its process.
    pub(super) fn hold_ended(&mut self, number: u32, words: &impl Words) {
        let Some(at) = (self.holds.iter()).position(|hold| hold.number == Some(number)) else {
            return;
        };
        #[cfg(test)]
        self.note_who_is_to_end(at, words);
        self.who_is_in.end(number);
        let hold = &mut self.holds[at];
        hold.number = None;
        if hold.forced && hold.to_take_back.is_none() {
            // Whoever is not ended by then would live on.
            return self.begin_to_end(words);
        }
        self.release_holds();
    }

    /// Those whose holders have gone, as soon as nobody is to end by them.
    pub(super) fn release_holds(&mut self) {
        let is_ending = self.is_ending();
        let before = self.holds.len();
        self.holds.retain(|hold| {
            let may_end = hold.forced && (is_ending || hold.to_take_back.is_some());
            let stays = hold.number.is_some() || may_end;
            #[cfg(test)]
            assert!(
                stays
                    || !hold
                        .to_end
                        .iter()
                        .any(|id| self.sessions.get(*id).is_some()),
                "a session of a database that was dropped lives on"
            );
            stays
        });
        if self.holds.len() == before {
            return;
        }
        // Another database may have this name now.
        self.act(Action::ForgetAllGreetings);
        // Who waits there gets his backend in the next rounds.
        self.mark_waiting_in_any_case();
    }

    pub(super) fn is_ungreeted(&self, id: SessionId) -> bool {
        (self.sessions.get(id)).is_some_and(|session| session.is_ungreeted())
    }

    /// Those on the database of this pool.
    fn holds_on(&self, number: u32) -> impl Iterator<Item = &Hold> {
        let pool = match self.holds.is_empty() {
            true => None,
            false => self.pool(number),
        };
        let is_on = move |hold: &&Hold| {
            pool.is_some_and(|pool| pool.key().database_oid == hold.database_oid)
        };
        self.holds.iter().filter(is_on)
    }

    /// Is the database of this pool held?
    pub fn is_held(&self, number: u32) -> bool {
        self.holds_on(number).next().is_some()
    }

    /// Is the database of this tenant?
    pub fn is_tenant_held(&self, number: u32) -> bool {
        self.pool_of_tenant(number)
            .is_some_and(|pool| self.is_held(pool))
    }

    /// Is it, and do its sessions end?
    pub(super) fn is_forced(&self, number: u32) -> bool {
        self.holds_on(number).any(|hold| hold.forced)
    }

    /// Shall this session end because its database is dropped by force?
    pub(super) fn is_forced_out(&self, id: SessionId, words: &impl Words) -> bool {
        if self.holds.is_empty() || !self.is_in_database(id, words) {
            return false;
        }
        let session = self.sessions.get(id);
        session.is_some_and(|session| {
            let mut holds = self.holds_on(session.pool());
            holds.any(|hold| hold.forced && hold.own != id)
        })
    }

    /// Has it been greeted? One that waits for that would wait for the
    /// server's lock.
    pub(super) fn is_in_database(&self, id: SessionId, words: &impl Words) -> bool {
        let held = matches!(self.locate(id, words), Some(Location::Held(_)));
        held || (self.sessions.get(id)).is_some_and(|session| !session.is_ungreeted())
    }

    #[cfg(test)]
    fn note_who_is_to_end(&mut self, at: usize, words: &impl Words) {
        let hold = &self.holds[at];
        let is_in = |id: &SessionId| {
            let key = self.key_of(*id).expect("it has a tenant");
            key.database_oid == hold.database_oid
        };
        let ids = self.sessions.ids().filter(is_in);
        let to_end = ids
            .filter(|id| hold.forced && self.is_forced_out(*id, words) && self.is_ours(*id, words));
        self.holds[at].to_end = to_end.collect();
    }
}
