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
use super::{Action, Core, SessionId, Then, Why, Words};
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
            for pool in self.pools_of(database) {
                self.act(Action::TakeBack(pool));
            }
            self.then(Then::EndForced(number));
        }
    }

    /// Sessions a user in a database that is held. If there is none, neither
    /// stay its idle backends.
    pub fn who_is_in(&mut self, number: u32, words: &impl Words) -> BTreeMap<Vec<u8>, u32> {
        let mut users: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let Some(hold) = self.holds.iter().find(|hold| hold.number == number) else {
            return users;
        };
        let pools = self.pools_of(&hold.database);
        for pool in &pools {
            let is_in = |id: &SessionId| *id != hold.own && self.is_in_database(*id, words);
            let count = self.sessions.of_pool(*pool).filter(is_in).count() as u32;
            if let (true, Some(pool)) = (count > 0, self.pool(*pool)) {
                *users.entry(pool.key.user.clone()).or_default() += count;
            }
        }
        if users.is_empty() {
            for pool in pools {
                self.retire_all(pool, Reason::Hold);
            }
        }
        users
    }

    /// The statement's transaction has ended, or its process.
    pub(super) fn hold_ended(&mut self, number: u32) {
        let Some(at) = self.holds.iter().position(|hold| hold.number == number) else {
            return;
        };
        let database = self.holds.swap_remove(at).database;
        // Another database may have this name now.
        self.act(Action::ForgetAllGreetings);
        for pool in self.pools_of(&database) {
            self.mark_dirty(pool);
        }
    }

    fn pools_of(&self, database: &[u8]) -> Vec<u32> {
        let is_of = |number: &u32| {
            let pool = self.pool(*number);
            pool.is_some_and(|pool| pool.key.database == database)
        };
        self.existing.iter().filter(is_of).collect()
    }

    /// Is the database of this pool held?
    pub fn is_held(&self, number: u32) -> bool {
        !self.holds.is_empty()
            && self.pool(number).is_some_and(|pool| {
                let mut holds = self.holds.iter();
                holds.any(|hold| hold.database == pool.key.database)
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
                .any(|hold| hold.forced && hold.own != id && hold.database == pool.key.database)
        })
    }

    /// Has it been greeted? One that waits for that would wait for the
    /// server's lock.
    fn is_in_database(&self, id: SessionId, words: &impl Words) -> bool {
        let held = matches!(self.locate(id, words), Some(Location::Held(_)));
        held || (self.sessions.get(id)).is_some_and(|session| !session.is_ungreeted())
    }

    /// Ends those that no backend holds; the server ends the backends, and
    /// with them the others.
    pub(super) fn end_forced(&mut self, number: u32, words: &impl Words) {
        let Some(hold) = self.holds.iter().find(|hold| hold.number == number) else {
            return;
        };
        let own = hold.own;
        let pools = self.pools_of(&hold.database);
        let ids: Vec<SessionId> = (pools.iter())
            .flat_map(|pool| self.sessions.of_pool(*pool))
            .collect();
        for id in ids {
            if id != own && self.is_in_database(id, words) && self.is_ours(id, words) {
                self.end(id, Why::Administrator);
            }
        }
    }
}
