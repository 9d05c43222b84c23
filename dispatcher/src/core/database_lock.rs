//! Databases that a statement wants for itself (DROP DATABASE and its like).
//!
//! The process that executes the statement holds the database by an open connection. The hold lasts
//! from before the server counts the other users of the database up to the end of the statement's
//! transaction, when the server's lock on the database goes as well. While it is held the pool
//! starts no backend there, and greets no session: a client that logs in waits until a backend can
//! be started, as it would wait for that lock, and gets the server's own answer then. If there is
//! no session in the database, its idle backends leave. The statement asks again every 100 ms
//! (database_access.c).
//!
//! If its sessions are ended (WITH (FORCE)), its pools hand out no session any more, their ready
//! queues are emptied, and all sessions are looked at (shutdown.rs). When the statement has ended
//! that is done once more, as backends have given sessions back since; the hold lasts until it is
//! done.

use super::lifecycle::Reason;
use super::sessions::Location;
use super::{Action, Core, SessionId, Then, Words};

/// Backends of a held database that are told to leave when the statement asks: a system call each.
const RETIRED_AT_ONCE: usize = 128;

/// Number of sessions by the role's OID, as its name may be another role's by now. A role may be
/// listed several times.
pub type Roles = Vec<(u32, u32)>;

/// One database that is held.
pub struct Hold {
    /// Its holder's number. None: the holder has gone, and sessions are still looked at.
    number: Option<u32>,
    /// The OID, as a name may be another database's by now.
    database_oid: u32,
    /// Its sessions are ended.
    forced: bool,
    /// The holder waits to be told which sessions are there.
    is_asked: bool,
    /// The session that executes the statement; 0 if it is none of the pool's.
    own: SessionId,
    /// Sessions that no backend had when the holder went.
    #[cfg(test)]
    to_end: Vec<SessionId>,
}

impl Core {
    /// Takes or confirms a hold. The sessions in the database are counted and reported
    /// (`TellWhoIsIn`); if there are none, its idle backends leave.
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
            is_asked: true,
            own,
            #[cfg(test)]
            to_end: Vec::new(),
        });
        if !forced {
            return self.tell_roles_inside(words);
        }
        // Sessions end, and those that are left are counted then.
        let pools: Vec<u32> = self.pools.in_database(database_oid, 0).collect();
        for pool in pools {
            if self.pools.with_backends().contains(pool) {
                self.act(Action::TakeBack(pool));
            }
        }
        self.then(Then::EndSessions);
    }

    /// Ready queues have been emptied: looks at all sessions if the dispatcher stops, and at those
    /// of databases that are held by force.
    pub(super) fn end_sessions(&mut self, words: &impl Words) {
        self.begin_to_end(words);
        self.tell_roles_inside(words);
    }

    /// Answers all holders that ask.
    fn tell_roles_inside(&mut self, words: &impl Words) {
        for at in 0..self.holds.len() {
            let hold = &mut self.holds[at];
            let is_asked = std::mem::take(&mut hold.is_asked);
            let Some(number) = hold.number.filter(|_| is_asked) else {
                continue;
            };
            let (database_oid, own) = (hold.database_oid, hold.own);
            let roles = self.roles_inside(database_oid, own, words);
            #[cfg(test)]
            self.check_roles_inside(database_oid, own, &roles, words);
            if roles.is_empty() {
                self.retire_all_in(database_oid);
            }
            self.act(Action::TellWhoIsIn { number, roles });
        }
    }

    /// Sessions of a database that have been greeted, or that a backend greets just now; without
    /// the statement's own.
    fn roles_inside(&self, database_oid: u32, own: SessionId, words: &impl Words) -> Roles {
        let mut roles = Roles::new();
        for number in self.tenants.in_database(database_oid, 0) {
            let Some(tenant) = self.tenant(number) else {
                continue;
            };
            let own = self.sessions.get(own);
            let own_is_in = own.is_some_and(|own| own.tenant() == number && !own.is_ungreeted());
            let count = self.sessions.greeted_members(number) - usize::from(own_is_in);
            if count > 0 {
                roles.push((tenant.key().role_oid, count as u32));
            }
        }
        for slot in self.backends_in(database_oid) {
            let id = words.backend_session(slot);
            if id != own && self.is_ungreeted(id) && self.is_in_database(id, words) {
                roles.extend(self.key_of(id).map(|key| (key.role_oid, 1)));
            }
        }
        roles
    }

    fn backends_in(&self, database_oid: u32) -> impl Iterator<Item = u32> + '_ {
        let pools = self.pools.in_database(database_oid, 0);
        pools
            .filter_map(|number| self.pool(number))
            .flat_map(|pool| pool.all_backends())
    }

    /// Tells the backends of a database without sessions to leave, a limited number each time.
    fn retire_all_in(&mut self, database_oid: u32) {
        let slots = self.backends_in(database_oid);
        let stays = |slot: &u32| (self.backends.life(*slot)).is_some_and(|it| !it.is_leaving());
        let slots: Vec<u32> = slots.filter(stays).take(RETIRED_AT_ONCE).collect();
        for slot in slots {
            self.retire(slot, Reason::Hold);
        }
    }

    /// A session has been greeted.
    pub(super) fn greeted(&mut self, id: SessionId) {
        self.sessions.greeted(id);
    }

    /// The statement's transaction has ended, or its process.
    pub(super) fn hold_ended(&mut self, number: u32, words: &impl Words) {
        let Some(at) = (self.holds.iter()).position(|hold| hold.number == Some(number)) else {
            return;
        };
        #[cfg(test)]
        self.note_sessions_to_end(at, words);
        let hold = &mut self.holds[at];
        hold.number = None;
        if hold.forced {
            // A session that has not ended by then would live on.
            return self.begin_to_end(words);
        }
        self.release_holds();
    }

    /// Ends holds whose holders have gone, as soon as no session is to end by them.
    pub(super) fn release_holds(&mut self) {
        let is_ending = self.is_ending();
        let before = self.holds.len();
        self.holds.retain(|hold| {
            let stays = hold.number.is_some() || (hold.forced && is_ending);
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
        // Sessions that wait there get backends in the next rounds.
        self.mark_waiting_in_any_case();
    }

    pub(super) fn is_ungreeted(&self, id: SessionId) -> bool {
        (self.sessions.get(id)).is_some_and(|session| session.is_ungreeted())
    }

    /// Holds on the database of this pool.
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

    /// Is the database of this tenant held?
    pub fn is_tenant_held(&self, number: u32) -> bool {
        self.pool_of_tenant(number)
            .is_some_and(|pool| self.is_held(pool))
    }

    /// Is the database of this pool held, and do its sessions end?
    pub(super) fn is_forced(&self, number: u32) -> bool {
        self.holds_on(number).any(|hold| hold.forced)
    }

    /// Is this session to end because its database is dropped by force?
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

    /// Is the session in its database: has it been greeted? An ungreeted session would wait for the
    /// server's lock.
    pub(super) fn is_in_database(&self, id: SessionId, words: &impl Words) -> bool {
        let held = matches!(self.locate(id, words), Some(Location::Held(_)));
        held || (self.sessions.get(id)).is_some_and(|session| !session.is_ungreeted())
    }

    #[cfg(test)]
    fn note_sessions_to_end(&mut self, at: usize, words: &impl Words) {
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

    /// Checks the report against all sessions, looked at one by one.
    #[cfg(test)]
    fn check_roles_inside(
        &self,
        database_oid: u32,
        own: SessionId,
        roles: &Roles,
        words: &impl Words,
    ) {
        let mut told = std::collections::BTreeMap::<u32, u32>::new();
        let mut found = told.clone();
        for (role, count) in roles {
            *told.entry(*role).or_default() += count;
        }
        for id in self.sessions.ids() {
            let key = self.key_of(id).expect("it has a tenant");
            let is_there = key.database_oid == database_oid && id != own;
            if is_there && self.is_in_database(id, words) {
                *found.entry(key.role_oid).or_default() += 1;
            }
        }
        assert_eq!(told, found, "who is in a database");
    }
}
