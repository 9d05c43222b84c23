//! Databases that a statement wants for itself (DROP DATABASE and its like).
//!
//! The process that executes it holds the database by an open connection,
//! from before the server counts who else is there up to its transaction's
//! end, when the server's lock on the database goes as well. As long as it is
//! held the pool starts no backend there, and greets nobody: who logs in waits
//! until a backend can be started, as he would wait for that lock, and gets
//! the server's own answer then. When no session is there, neither stay its
//! idle backends.

use crate::dispatcher::event_loop::Dispatcher;
use crate::dispatcher::link::control::Peer;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::wire::{Malformed, Reader, Writer};
use crate::dispatcher::sessions::{index_of, SessionId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use tracing::debug;

/// One database that is held.
pub struct Hold {
    connection: u32,
    database: Vec<u8>,
    /// Its sessions are ended.
    forced: bool,
    /// The session that executes the statement, 0 if it is none of the pool's.
    own: SessionId,
}

impl Dispatcher {
    /// Takes or confirms a hold, and answers who is there: a row a user.
    pub fn hold_database(
        &mut self,
        number: u32,
        own: SessionId,
        reader: &mut Reader<'_>,
    ) -> Result<(), Malformed> {
        let forced = reader.u8()? != 0;
        let database = reader.string()?.to_vec();
        self.holds.retain(|hold| hold.connection != number);
        let hold = Hold {
            connection: number,
            database,
            forced,
            own,
        };
        if forced {
            self.end_sessions_in(&hold);
        }
        let mut users: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for id in self.sessions.ids().filter(|id| *id != hold.own) {
            if let Some(user) = self.user_in(id, &hold.database) {
                *users.entry(user).or_default() += 1;
            }
        }
        if users.is_empty() {
            self.leave_database(&hold.database);
        }
        self.holds.push(hold);
        if let Some(connection) = self.connections.get_mut(number) {
            connection.peer = Peer::Holder;
            for (user, count) in users {
                let row = Writer::new(MSG_ROW, 0).u32(2).string(&user);
                let row = row.string(count.to_string().as_bytes());
                connection.unsent.push_back(row.finish());
            }
            let done = Writer::new(MSG_DONE, 0).finish();
            connection.unsent.push_back(done);
        }
        self.send_unsent(number);
        Ok(())
    }

    /// The statement's transaction has ended, or its process.
    pub fn hold_ended(&mut self, number: u32) {
        let Some(at) = self.holds.iter().position(|hold| hold.connection == number) else {
            return;
        };
        let database = self.holds.swap_remove(at).database;
        // Another database may have this name now.
        self.greetings.forget_all();
        for number in self.pools_of(&database) {
            self.mark_dirty(number);
        }
    }

    fn pools_of(&self, database: &[u8]) -> Vec<u32> {
        (0..self.pools.len() as u32)
            .filter(|number| {
                self.pools[*number as usize]
                    .as_ref()
                    .is_some_and(|pool| pool.key.database == database)
            })
            .collect()
    }

    /// Is the database of this pool held?
    pub fn is_held(&self, number: u32) -> bool {
        !self.holds.is_empty()
            && self.pools[number as usize].as_ref().is_some_and(|pool| {
                self.holds
                    .iter()
                    .any(|hold| hold.database == pool.key.database)
            })
    }

    /// Shall this session end because its database is dropped by force?
    pub fn is_forced_out(&self, id: SessionId) -> bool {
        !self.holds.is_empty()
            && self.holds.iter().any(|hold| {
                hold.forced && hold.own != id && self.user_in(id, &hold.database).is_some()
            })
    }

    /// The user of a session that has been greeted in this database; one that
    /// waits for its greeting would wait for the server's lock.
    fn user_in(&self, id: SessionId, database: &[u8]) -> Option<Vec<u8>> {
        let session = self.sessions.get(id)?;
        let owner = &self.control.sessions[index_of(id) as usize].owner;
        if session.greet && owner.load(SeqCst) == 0 {
            return None;
        }
        let pool = self.pools[session.pool as usize].as_ref()?;
        (pool.key.database == database).then(|| pool.key.user.clone())
    }

    /// Ends those that no backend holds; the server ends the backends, and
    /// with them the others.
    fn end_sessions_in(&mut self, hold: &Hold) {
        for number in self.pools_of(&hold.database) {
            self.drain_queue(number);
        }
        let ids: Vec<SessionId> = self.sessions.ids().filter(|id| *id != hold.own).collect();
        for id in ids {
            if self.user_in(id, &hold.database).is_some() && self.is_ours(id) {
                self.end_by_administrator(id);
            }
        }
    }

    fn leave_database(&mut self, database: &[u8]) {
        for number in self.pools_of(database) {
            let Some(pool) = self.pools[number as usize].as_ref() else {
                continue;
            };
            for slot in pool.all_backends().collect::<Vec<_>>() {
                debug!("backend {slot} leaves a database that is wanted");
                self.retire_backend(slot);
            }
        }
    }
}
