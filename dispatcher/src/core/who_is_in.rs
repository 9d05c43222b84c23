//! Who is in a database that a statement wants for itself: counted some at a time.
//!
//! There may be as many tenants in it as sessions, and it is asked again every 100 ms
//! (database_access.c). So some are counted in each round, and the rows are told as they
//! are found: of a role there may be several, which add up.
//!
//! Backends are looked at first, for who is just being greeted, and then tenants, for who
//! has been. So nobody is missed whose greeting ends in between. Who is greeted of a tenant
//! that has been counted is counted then. Who ends may be one too many, until it is asked
//! again.
//!
//! Nobody is greeted for whom a backend would have to start (growth), but those that
//! are there go on and greet who logs in meanwhile. So where nobody was found all are
//! looked at once more, and the backends are told to go as they are: after that
//! nobody can come in, and if the tenants are found empty then, they stay so.

use super::pool_changes::Reason;
use super::{Action, Core, SessionId, Words};
use std::collections::{BTreeMap, VecDeque};

/// What one event does, in units of a look at a backend: 256 tenants, or 512 backends that
/// go. Where the simulator runs so little that what comes in between comes in between.
const AT_ONCE: usize = if cfg!(test) { 64 } else { 8192 };
/// A backend is looked at; is told to go; a tenant is counted.
const LOOK: usize = 1;
const RETIRE: usize = 16;
const COUNT: usize = 32;

/// Sessions, by the role's OID: a name may be another role's by now.
pub type Roles = BTreeMap<u32, u32>;

/// For one hold.
struct Counting {
    /// Its holder's number.
    number: u32,
    database_oid: u32,
    /// The session that executes the statement.
    own: SessionId,
    /// The first that have not been looked at. Tenants are when all backends have been.
    next_slot: u32,
    next_tenant: u32,
    /// Found, and not told yet.
    roles: Roles,
    is_empty: bool,
    /// It is the second time: backends are told to go.
    is_last: bool,
    #[cfg(test)]
    told: Roles,
    #[cfg(test)]
    events: usize,
}

impl Counting {
    fn add(&mut self, role: u32, count: usize) {
        if count > 0 {
            *self.roles.entry(role).or_default() += count as u32;
            self.is_empty = false;
        }
    }
}

/// Those that are under way, one after the other; bounded by the holds.
#[derive(Default)]
pub struct WhoIsIn(VecDeque<Counting>);

impl WhoIsIn {
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// It begins, anew if it is under way.
    pub fn begin(&mut self, number: u32, database_oid: u32, own: SessionId) {
        self.end(number);
        self.0.push_back(Counting {
            number,
            database_oid,
            own,
            next_slot: 0,
            next_tenant: 0,
            roles: Roles::new(),
            is_empty: true,
            is_last: false,
            #[cfg(test)]
            told: Roles::new(),
            #[cfg(test)]
            events: 0,
        });
    }

    /// Nobody wants to know any more.
    pub fn end(&mut self, number: u32) {
        self.0.retain(|counting| counting.number != number);
    }
}

impl Core {
    /// In each round: goes on counting.
    pub(super) fn count_who_is_in(&mut self, words: &impl Words) {
        let mut left = AT_ONCE;
        while left > 0 {
            let Some(mut counting) = self.who_is_in.0.pop_front() else {
                return;
            };
            let is_all = self.count_on(&mut counting, &mut left, words);
            let roles = std::mem::take(&mut counting.roles);
            #[cfg(test)]
            self.check_who_is_in(&mut counting, &roles, is_all, words);
            if is_all || !roles.is_empty() {
                self.act(Action::TellWhoIsIn {
                    number: counting.number,
                    roles,
                    is_all,
                });
            }
            if !is_all {
                self.who_is_in.0.push_front(counting);
            }
        }
    }

    /// True: that was all.
    fn count_on(&mut self, it: &mut Counting, left: &mut usize, words: &impl Words) -> bool {
        loop {
            while it.next_slot < self.backends.end() {
                if *left == 0 {
                    return false;
                }
                let cost = self.look_at_backend(it, it.next_slot, words);
                *left = left.saturating_sub(cost);
                it.next_slot += 1;
            }
            let tenants = self.tenants.in_database(it.database_oid, it.next_tenant);
            let tenants: Vec<u32> = tenants.take(left.div_ceil(COUNT) + 1).collect();
            for number in tenants {
                if *left == 0 {
                    return false;
                }
                self.count_tenant(it, number);
                *left = left.saturating_sub(COUNT);
                it.next_tenant = number + 1;
            }
            if it.is_last || !it.is_empty {
                return true;
            }
            it.is_last = true;
            (it.next_slot, it.next_tenant) = (0, 0);
        }
    }

    /// Is somebody being greeted there? If nobody was found at all, it goes.
    fn look_at_backend(&mut self, it: &mut Counting, slot: u32, words: &impl Words) -> usize {
        let pool_of_slot = (self.backends.get(slot)).and_then(|it| self.pool(it.pool()));
        if pool_of_slot.is_none_or(|pool| pool.key().database_oid != it.database_oid) {
            return LOOK;
        }
        let id = words.backend_session(slot);
        if id != it.own && self.is_ungreeted(id) && self.is_in_database(id, words) {
            if let Some(key) = self.key_of(id) {
                it.add(key.role_oid, 1);
            }
        }
        if it.is_last && it.is_empty {
            self.retire(slot, Reason::Hold);
            return RETIRE;
        }
        LOOK
    }

    fn count_tenant(&self, it: &mut Counting, number: u32) {
        let Some(tenant) = self.tenant(number) else {
            return;
        };
        let own = self.sessions.get(it.own);
        let own_is_in = own.is_some_and(|own| own.tenant() == number && !own.is_ungreeted());
        let count = self.sessions.greeted_members(number) - usize::from(own_is_in);
        it.add(tenant.key().role_oid, count);
    }

    /// A session has been greeted.
    pub(super) fn greeted(&mut self, id: SessionId) {
        self.sessions.greeted(id);
        if self.who_is_in.has_more() {
            self.comes_into(id);
        }
    }

    /// A session is in its database now: that is to be known where that has been counted.
    fn comes_into(&mut self, id: SessionId) {
        let session = self.sessions.get(id).filter(|it| !it.is_ungreeted());
        let Some((number, tenant)) = session
            .map(|session| session.tenant())
            .and_then(|number| Some((number, self.tenants.get(number)?)))
        else {
            return;
        };
        let key = tenant.key();
        for counting in &mut self.who_is_in.0 {
            let is_counted = number < counting.next_tenant;
            let concerns = key.database_oid == counting.database_oid && id != counting.own;
            if concerns && is_counted {
                counting.add(key.role_oid, 1);
            }
        }
    }

    /// Each who has been greeted is told of; and in one event as all are, looked at one by
    /// one.
    #[cfg(test)]
    fn check_who_is_in(
        &self,
        counting: &mut Counting,
        roles: &Roles,
        is_all: bool,
        words: &impl Words,
    ) {
        counting.events += 1;
        for (role, count) in roles {
            *counting.told.entry(*role).or_default() += count;
        }
        if !is_all {
            return;
        }
        let (mut greeted, mut found) = (Roles::new(), Roles::new());
        for id in self.sessions.ids() {
            let key = self.key_of(id).expect("it has a tenant");
            if key.database_oid != counting.database_oid || id == counting.own {
                continue;
            }
            if self.is_in_database(id, words) {
                *found.entry(key.role_oid).or_default() += 1;
            }
            if !self.is_ungreeted(id) {
                *greeted.entry(key.role_oid).or_default() += 1;
            }
        }
        let told = &counting.told;
        let is_told = |(role, count): (&u32, &u32)| told.get(role) >= Some(count);
        assert!(greeted.iter().all(is_told), "{told:?} of {greeted:?}");
        assert!(
            counting.events > 1 || *told == found,
            "who is in a database"
        );
    }
}
