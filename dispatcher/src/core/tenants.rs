//! Tenants: a role's sessions in one pool, for which limits, shares and memory are counted.
//!
//! A pool's backends serve any of its tenants' sessions (docs/design/pools.md). A tenant starts and
//! ends no process. It exists from its first session until a second after its last.

use super::dedicated::TENANTS_LOOKED_AT;
use super::event::GroupKey;
use super::limits::{group_of, Memory};
use super::pools::PoolKey;
use super::sessions::DEFAULT_WEIGHT;
use super::tables::Keyed;
use super::{Action, Core, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// If a table is full, at most this number of tenants without a session are dropped for a new one.
const MOST_DROPPED: usize = 64;

/// The role, database and options of the sessions of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TenantKey {
    /// Names as of the login; by now they may be others'.
    pub user: Vec<u8>,
    pub database: Vec<u8>,
    pub role_oid: u32,
    pub database_oid: u32,
    /// Was the role a superuser when its clients logged in?
    pub superuser: bool,
    /// Options that only a starting backend can take, sorted by name.
    pub options: Vec<(Vec<u8>, Vec<u8>)>,
    /// The backends that serve it serve no other role: it has libraries of its own that are loaded
    /// as a backend starts, or the server's release cannot change a backend's role.
    pub is_apart: bool,
}

impl TenantKey {
    pub fn pool(&self) -> PoolKey {
        PoolKey {
            database: self.database.clone(),
            database_oid: self.database_oid,
            options: self.options.clone(),
            role_oid: self.is_apart.then_some(self.role_oid),
        }
    }
}

/// The role as which a backend starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartsAs {
    /// The name as of a login; by now it may be another role's.
    pub user: Vec<u8>,
    pub role_oid: u32,
}

/// The tenant's limits that count for its pool, as long as the tenant has sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    is_there: bool,
    reserve: usize,
    /// None: the general min_backends.
    least: Option<usize>,
    weight: u64,
}

impl Counted {
    /// Backends reserved beyond those that serve it.
    fn owed(&self, served: usize) -> usize {
        match self.is_there {
            true => self.reserve.saturating_sub(served),
            false => 0,
        }
    }
}

/// One tenant.
pub struct Tenant {
    key: Arc<TenantKey>,
    pool: u32,
    /// Its group's number, by which its limits are found (limits.rs).
    group: Option<u32>,
    counted: Counted,
    /// How many of its sessions are served, and how many backends are reserved beyond these, as its
    /// pool counts them.
    in_pool: (usize, usize),
    pub memory: Memory,
    /// Its mode says so, and backends are told.
    pub keeps_sessions: bool,
    /// Backends are to report when its sessions come back (served.rs).
    pub is_counted: bool,
    /// If counted: sessions that have been handed out and have not been seen to be back.
    pub served: Vec<SessionId>,
    /// When one of its sessions was handed out last.
    pub handed_out_us: u64,
    /// Its sessions get no backend (pause.rs).
    pub is_paused: bool,
    /// When its last pause ended.
    pub resumed_us: u64,
}

impl Keyed for Tenant {
    type Key = TenantKey;

    fn key(&self) -> &Arc<TenantKey> {
        &self.key
    }

    fn database_of(key: &TenantKey) -> u32 {
        key.database_oid
    }
}

impl Tenant {
    fn new(key: Arc<TenantKey>, pool: u32) -> Tenant {
        Tenant {
            key,
            pool,
            group: None,
            counted: Counted::default(),
            in_pool: (0, 0),
            memory: Memory::default(),
            keeps_sessions: false,
            is_counted: false,
            served: Vec::new(),
            handed_out_us: 0,
            is_paused: false,
            resumed_us: 0,
        }
    }

    pub fn key(&self) -> &Arc<TenantKey> {
        &self.key
    }

    pub fn pool(&self) -> u32 {
        self.pool
    }

    pub fn group(&self) -> Option<u32> {
        self.group
    }

    pub fn joins(&mut self, group: u32) {
        self.group = Some(group);
    }

    /// How many backends are reserved for it beyond those that serve it.
    pub fn is_owed(&self) -> usize {
        self.in_pool.1
    }
}

/// What a pool's tenants want together.
#[derive(Debug, Default)]
pub struct Together {
    all: BTreeSet<u32>,
    /// Tenants of superusers.
    superusers: BTreeSet<u32>,
    /// Of tenants that have sessions: the backends reserved for them,
    reserve: usize,
    /// the sum of their own minimums,
    least: usize,
    /// how many have no minimum of their own,
    without_least: usize,
    /// and their weights, with the number of tenants of each.
    weights: BTreeMap<u64, usize>,
    /// Tenants that have reserves.
    reserving: BTreeSet<u32>,
    /// Of counted tenants: sessions that are being served,
    served: usize,
    /// and backends that are reserved beyond these.
    owed: usize,
}

impl Together {
    pub fn all(&self) -> &BTreeSet<u32> {
        &self.all
    }

    pub fn superusers(&self) -> &BTreeSet<u32> {
        &self.superusers
    }

    pub fn reserve(&self) -> usize {
        self.reserve
    }

    pub fn reserving(&self) -> &BTreeSet<u32> {
        &self.reserving
    }

    pub fn served(&self) -> usize {
        self.served
    }

    pub fn owed(&self) -> usize {
        self.owed
    }

    /// How many backends the pool must have; `least`: for tenants that have no minimum of their
    /// own.
    pub fn least(&self, least: usize) -> usize {
        self.least.max(match self.without_least {
            0 => 0,
            _ => least,
        })
    }

    /// The weight of the heaviest tenant.
    pub fn weight(&self) -> u64 {
        let heaviest = self.weights.last_key_value();
        heaviest.map_or(DEFAULT_WEIGHT, |(weight, _)| *weight)
    }

    fn change(&mut self, was: Counted, is: Counted) {
        if is.is_there {
            self.reserve += is.reserve;
            self.least += is.least.unwrap_or(0);
            self.without_least += usize::from(is.least.is_none());
            *self.weights.entry(is.weight).or_default() += 1;
        }
        if was.is_there {
            self.reserve -= was.reserve;
            self.least -= was.least.unwrap_or(0);
            self.without_least -= usize::from(was.least.is_none());
            if let Some(many) = self.weights.get_mut(&was.weight) {
                *many -= 1;
                if *many == 0 {
                    self.weights.remove(&was.weight);
                }
            }
        }
    }
}

impl Core {
    pub(super) fn tenant(&self, number: u32) -> Option<&Tenant> {
        self.tenants.get(number)
    }

    pub(super) fn tenant_mut(&mut self, number: u32) -> Option<&mut Tenant> {
        self.tenants.get_mut(number)
    }

    /// The tenant that sessions of this key belong to.
    pub fn find_tenant(&self, key: &TenantKey) -> Option<u32> {
        self.tenants.find(key)
    }

    /// Creates a tenant, and its pool if there is none. None if a table is full, which takes more
    /// tenants with sessions than there can be sessions.
    pub fn create_tenant(&mut self, key: TenantKey) -> Option<u32> {
        let pool_key = key.pool();
        for _ in 0..MOST_DROPPED {
            let has_pool = self.find_pool(&pool_key).is_some();
            if !has_pool && self.pools.is_full() {
                self.drop_one_unused();
            }
            let has_place = has_pool || !self.pools.is_full();
            if has_place && !self.tenants.is_full() {
                break;
            }
            self.drop_one_unused_tenant();
        }
        let pool = self.find_pool(&pool_key);
        let pool = pool.or_else(|| self.create_pool(pool_key))?;
        let is_superuser = key.superuser;
        let Some(number) = self.tenants.add(key, |key| Tenant::new(key, pool)) else {
            self.count_use(pool);
            return None;
        };
        self.unused_tenants.insert(number);
        self.sessions.add_tenant(number, pool);
        if let Some(pool) = self.pool_mut(pool) {
            pool.together.all.insert(number);
            if is_superuser {
                pool.together.superusers.insert(number);
            }
        }
        self.count_use(pool);
        self.joins_group(number);
        self.follow_pauses(number);
        Some(number)
    }

    /// The tenant's first session has come, its last one has gone, or its limits have changed:
    /// updates what counts for its pool.
    pub(super) fn count_limits(&mut self, number: u32) {
        let members = self.sessions.members_of_tenant(number);
        match members {
            0 => self.unused_tenants.insert(number),
            _ => self.unused_tenants.remove(number),
        }
        let limits = self.limits_of(number).cloned().unwrap_or_default();
        let is = Counted {
            is_there: members > 0,
            reserve: limits.reserve,
            least: limits.min_backends,
            weight: limits.weight.unwrap_or(DEFAULT_WEIGHT),
        };
        let Some(tenant) = self.tenants.get_mut(number) else {
            return;
        };
        let was = std::mem::replace(&mut tenant.counted, is);
        if was == is {
            return;
        }
        let number_of_pool = tenant.pool;
        self.sessions.set_weight(number, is.weight);
        if let Some(pool) = self.pools.get_mut(number_of_pool) {
            pool.together.change(was, is);
            match is.is_there && is.reserve > 0 {
                true => pool.together.reserving.insert(number),
                false => pool.together.reserving.remove(&number),
            };
            (self.backends).reserve(number_of_pool, pool.together.reserve());
        }
        self.count_served(number);
    }

    /// Updates the pool's and the group's counts of what is served and reserved for this tenant.
    pub(super) fn count_served(&mut self, number: u32) {
        let Some(tenant) = self.tenants.get_mut(number) else {
            return;
        };
        let served = tenant.served.len();
        let is = (served, tenant.counted.owed(served));
        let was = std::mem::replace(&mut tenant.in_pool, is);
        if let Some(pool) = self.pools.get_mut(tenant.pool) {
            let together = &mut pool.together;
            together.served = together.served + is.0 - was.0;
            together.owed = together.owed + is.1 - was.1;
        }
        if let Some(group) = tenant.group {
            self.groups.count_served(group, was.0, is.0);
        }
    }

    /// The table is full: drops the next tenant without a session, from where the last call
    /// stopped.
    fn drop_one_unused_tenant(&mut self) {
        let from = &mut self.unused_tenants_from;
        if let Some(number) = self.unused_tenants.next_from(from) {
            self.drop_tenant_if_unused(number);
        }
    }

    pub(super) fn drop_tenant_if_unused(&mut self, number: u32) {
        if !self.unused_tenants.contains(number) {
            return;
        }
        let Some(tenant) = self.tenants.remove(number) else {
            return;
        };
        ensure!(self.sessions.members_of_tenant(number) == 0);
        self.unused_tenants.remove(number);
        if let Some(pool) = self.pools.get_mut(tenant.pool) {
            pool.together.all.remove(&number);
            pool.together.superusers.remove(&number);
            pool.together.served -= tenant.in_pool.0;
            pool.together.owed -= tenant.in_pool.1;
            pool.without_room.remove(&number);
        }
        self.sessions.set_room(number, None);
        self.leaves_group(number, tenant.key());
        self.count_use(tenant.pool);
        self.act(Action::TenantDropped(number));
    }

    // ---- questions from outside -------------------------------------------

    /// The only user whose sessions a pool's backends serve; None: any.
    pub fn only_user(&self, number: u32) -> Option<&[u8]> {
        let pool = self.pool(number)?;
        pool.key().role_oid?;
        let tenant = pool.together.all().first()?;
        Some(&self.tenant_key(*tenant)?.user)
    }

    /// The role as which a backend of this pool starts: the tenant whose turn it is, or any tenant.
    pub fn starts_as(&self, number: u32) -> Option<StartsAs> {
        let together = &self.pool(number)?.together;
        let superusers = together.superusers().iter().copied();
        let in_need = superusers
            .take(TENANTS_LOOKED_AT)
            .find(|tenant| self.sessions.waiting_of_tenant(*tenant) > 0);
        let next = in_need.or_else(|| self.sessions.tenants_in_turn(number).next());
        let tenant = next.or_else(|| together.all().first().copied())?;
        let key = self.tenant_key(tenant)?;
        Some(StartsAs {
            user: key.user.clone(),
            role_oid: key.role_oid,
        })
    }

    pub fn tenant_key(&self, number: u32) -> Option<&Arc<TenantKey>> {
        self.tenant(number).map(Tenant::key)
    }

    /// The tenant of a session; None if there is none.
    pub(super) fn tenant_of(&self, id: SessionId) -> Option<&Tenant> {
        self.tenant(self.sessions.get(id)?.tenant())
    }

    /// The key of a session's tenant.
    pub fn key_of(&self, id: SessionId) -> Option<&Arc<TenantKey>> {
        self.tenant_of(id).map(Tenant::key)
    }

    /// The pool that serves a tenant.
    pub fn pool_of_tenant(&self, number: u32) -> Option<u32> {
        self.tenant(number).map(Tenant::pool)
    }

    #[cfg(test)]
    pub(super) fn check_tenants(&self) {
        self.tenants.check();
        for number in self.tenants.existing().iter() {
            let tenant = self.tenant(number).expect("it exists");
            let pool = self.pool(tenant.pool).expect("a tenant has a pool");
            assert_eq!(**pool.key(), tenant.key.pool());
            assert!(pool.together.all.contains(&number));
            let members = self.sessions.members_of_tenant(number);
            assert_eq!(self.unused_tenants.contains(number), members == 0);
            assert_eq!(tenant.counted.is_there, members > 0);
        }
        for number in self.pools.existing().iter() {
            let together = &self.pool(number).expect("it exists").together;
            let mut again = Together::default();
            for number in together.all.iter().copied() {
                let tenant = self.tenant(number).expect("it is listed");
                again.change(Counted::default(), tenant.counted);
                again.served += tenant.served.len();
                again.owed += tenant.counted.owed(tenant.served.len());
                if tenant.counted.is_there && tenant.counted.reserve > 0 {
                    again.reserving.insert(number);
                }
                let room = self.sessions.room(number);
                let is_barred = self
                    .pool(tenant.pool)
                    .expect("it has one")
                    .without_room
                    .contains(&number);
                assert!(room != Some(0) || is_barred, "nobody looks for room");
                assert!(tenant.is_counted || tenant.served.is_empty());
            }
            assert_eq!(together.reserving, again.reserving);
            assert_eq!((together.served, together.owed), (again.served, again.owed));
            assert_eq!(together.weights, again.weights);
            assert_eq!(
                (together.reserve, together.least, together.without_least),
                (again.reserve, again.least, again.without_least)
            );
            assert_eq!(self.reserved(number), together.reserve, "what is reserved");
        }
        self.sessions.check_turns();
    }
}

// ----------------------------------------------------------------------------
// How many sessions a role has, and how many are in a database: what CONNECTION LIMIT and
// max_sessions_per_user count, whatever the number of tenants.

/// A role or database without sessions has no entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    of_role: HashMap<u32, usize>,
    in_database: HashMap<u32, usize>,
    /// Of a role in a database.
    of_group: HashMap<GroupKey, usize>,
}

impl Tally {
    /// Adds sessions of this tenant.
    pub fn add(&mut self, key: &TenantKey, many: usize) {
        if many > 0 {
            *self.of_role.entry(key.role_oid).or_default() += many;
            *self.in_database.entry(key.database_oid).or_default() += many;
            *self.of_group.entry(group_of(key)).or_default() += many;
        }
    }

    /// Subtracts sessions of this tenant.
    pub fn take(&mut self, key: &TenantKey, many: usize) {
        take(&mut self.of_role, key.role_oid, many);
        take(&mut self.in_database, key.database_oid, many);
        take(&mut self.of_group, group_of(key), many);
    }

    pub fn of_role(&self, role: u32) -> usize {
        self.of_role.get(&role).copied().unwrap_or(0)
    }

    pub fn in_database(&self, database: u32) -> usize {
        self.in_database.get(&database).copied().unwrap_or(0)
    }

    pub fn of_group(&self, group: GroupKey) -> usize {
        self.of_group.get(&group).copied().unwrap_or(0)
    }
}

fn take<K: Hash + Eq>(counts: &mut HashMap<K, usize>, of: K, many: usize) {
    if let Some(count) = counts.get_mut(&of) {
        ensure!(*count >= many, "more go than there are");
        *count = count.saturating_sub(many);
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(role_oid: u32, database_oid: u32) -> TenantKey {
        TenantKey {
            user: Vec::new(),
            database: Vec::new(),
            role_oid,
            database_oid,
            superuser: false,
            options: Vec::new(),
            is_apart: false,
        }
    }

    #[test]
    fn role_counts_in_all_databases_and_database_with_all_roles() {
        let mut tally = Tally::default();
        for (role, database) in [(1, 7), (1, 8), (2, 7)] {
            tally.add(&key(role, database), 2);
        }
        assert_eq!((tally.of_role(1), tally.of_role(2)), (4, 2));
        assert_eq!((tally.in_database(7), tally.in_database(8)), (4, 2));
        assert_eq!((tally.of_group((1, 7)), tally.of_group((2, 8))), (2, 0));
        assert_eq!((tally.of_role(7), tally.in_database(1)), (0, 0));
    }

    #[test]
    fn tally_forgets_roles_and_databases_that_count_none() {
        let mut tally = Tally::default();
        tally.add(&key(1, 7), 3);
        tally.add(&key(2, 7), 0);
        tally.take(&key(1, 7), 2);
        assert_eq!((tally.of_role(1), tally.in_database(7)), (1, 1));
        tally.take(&key(1, 7), 1);
        assert_eq!(tally, Tally::default());
    }
}
