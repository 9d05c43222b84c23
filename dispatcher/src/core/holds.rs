//! Databases that a statement wants for itself (DROP DATABASE and its like).
//!
//! The process that executes it holds the database by an open connection,
//! from before the server counts who else is there up to its transaction's
//! end, when the server's lock on the database goes as well. As long as it is
//! held the pool starts no backend there, and greets nobody: who logs in waits
//! until a backend can be started, as he would wait for that lock, and gets
//! the server's own answer then. When no session is there, neither stay its
//! idle backends.

use super::pool_changes::Reason;
use super::sessions::Location;
use super::{Action, Core, SessionId, Then, Words};
use std::collections::BTreeMap;

/// One database that is held.
pub struct Hold {
    /// Its holder's number.
    number: u32,
    database: Vec<u8>,
    /// Its sessions are ended.
    forced: bool,
    /// The session that executes the statement, 0 if it is none of the pool's.
    own: SessionId,
}

impl Core {
    /// Takes or confirms a hold. When the actions are done, `who_is_in` tells
    /// what to answer.
    pub fn hold(&mut self, number: u32, database: &[u8], forced: bool, own: SessionId) {
        self.holds.retain(|hold| hold.number != number);
        self.holds.push(Hold {
            number,
            database: database.to_vec(),
            forced,
            own,
        });
        if forced {
            for pool in self.pools.in_database(database) {
                if self.pools.with_backends().contains(pool) {
                    self.act(Action::TakeBack(pool));
                }
            }
            self.then(Then::EndSessions);
        }
    }

    /// Sessions a user in a database that is held. If there is none, neither
    /// stay its idle backends. Who has been greeted is counted; of the others backends
    /// have some.
    pub fn who_is_in(&mut self, number: u32, words: &impl Words) -> BTreeMap<Vec<u8>, u32> {
        let mut users: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let Some(hold) = self.holds.iter().find(|hold| hold.number == number) else {
            return users;
        };
        let pools = self.pools.in_database(&hold.database);
        let is_own = |id: SessionId| id == hold.own;
        let pool_of = |id| self.sessions.get(id).map(|session| session.pool());
        for number in &pools {
            let Some(pool) = self.pool(*number) else {
                continue;
            };
            let mut count = self.sessions.greeted_members(*number);
            let own_is_in = pool_of(hold.own) == Some(*number) && !self.is_ungreeted(hold.own);
            count -= usize::from(own_is_in);
            if count > 0 {
                *users.entry(pool.key().user.clone()).or_default() += count as u32;
            }
            // And those that are being greeted.
            for slot in pool.all_backends() {
                let id = words.backend_session(slot);
                if is_own(id) || !self.is_ungreeted(id) || !self.is_in_database(id, words) {
                    continue;
                }
                // It may have moved.
                if let Some(pool) = pool_of(id).and_then(|number| self.pool(number)) {
                    *users.entry(pool.key().user.clone()).or_default() += 1;
                }
            }
        }
        if users.is_empty() {
            for pool in pools {
                self.retire_all(pool, Reason::Hold);
            }
        }
        users
    }

    fn is_ungreeted(&self, id: SessionId) -> bool {
        (self.sessions.get(id)).is_some_and(|session| session.is_ungreeted())
    }

    /// As it is, looked at one by one.
    #[cfg(test)]
    pub(super) fn check_who_is_in(
        &self,
        number: u32,
        users: &BTreeMap<Vec<u8>, u32>,
        words: &impl Words,
    ) {
        let hold = self.holds.iter().find(|hold| hold.number == number);
        let hold = hold.expect("it is held");
        let mut found: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for number in self.pools.in_database(&hold.database) {
            for id in self.sessions.of_pool(number) {
                if id != hold.own && self.is_in_database(id, words) {
                    let pool = self.pool(number).expect("it is there");
                    *found.entry(pool.key().user.clone()).or_default() += 1;
                }
            }
        }
        assert_eq!(*users, found, "who is in a database");
    }

    /// The statement's transaction has ended, or its process.
    pub(super) fn hold_ended(&mut self, number: u32, words: &impl Words) {
        let Some(at) = self.holds.iter().position(|hold| hold.number == number) else {
            return;
        };
        if self.holds[at].forced {
            // Whoever is not ended by now would live on.
            self.end_the_rest(words);
        }
        self.holds.swap_remove(at);
        // Another database may have this name now.
        self.act(Action::ForgetAllGreetings);
        // Who waits there gets his backend in the next rounds.
        self.mark_waiting_in_any_case();
    }

    /// Is the database of this pool held?
    pub fn is_held(&self, number: u32) -> bool {
        !self.holds.is_empty()
            && self.pool(number).is_some_and(|pool| {
                let mut holds = self.holds.iter();
                holds.any(|hold| hold.database == pool.key().database)
            })
    }

    /// Shall this session end because its database is dropped by force?
    pub(super) fn is_forced_out(&self, id: SessionId, words: &impl Words) -> bool {
        if self.holds.is_empty() || !self.is_in_database(id, words) {
            return false;
        }
        let pool = self
            .sessions
            .get(id)
            .and_then(|session| self.pool(session.pool()));
        pool.is_some_and(|pool| {
            self.holds
                .iter()
                .any(|hold| hold.forced && hold.own != id && hold.database == pool.key().database)
        })
    }

    /// Has it been greeted? One that waits for that would wait for the
    /// server's lock.
    fn is_in_database(&self, id: SessionId, words: &impl Words) -> bool {
        let held = matches!(self.locate(id, words), Some(Location::Held(_)));
        held || (self.sessions.get(id)).is_some_and(|session| !session.is_ungreeted())
    }
}
