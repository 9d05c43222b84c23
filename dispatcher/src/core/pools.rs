//! All pools (tables.rs), and which of them have backends.
//!
//! Only this file changes these together: a pool is among those with backends exactly as long as it
//! has one. A question about one database looks only at that database's pools.

mod parts;

use super::reclaim::{First, Lack};
use super::scan::Cursor;
use super::tables::{Keyed, PoolSet, Table};
use super::tenants::Together;
use super::{Action, Core, Tally};
pub use parts::counter_is_wrong;
use parts::{ReadyQueue, Starts, StealRate};
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Pools {
    table: Table<Pool>,
    /// Pools that have a backend, in whatever state, and hence a ready queue.
    with_backends: PoolSet,
}

impl Pools {
    pub fn new(most: usize) -> Pools {
        Pools {
            table: Table::new(most),
            with_backends: PoolSet::new(most),
        }
    }

    pub fn get(&self, number: u32) -> Option<&Pool> {
        self.table.get(number)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Pool> {
        self.table.get_mut(number)
    }

    /// The pool of sessions with this key.
    pub fn find(&self, key: &PoolKey) -> Option<u32> {
        self.table.find(key)
    }

    pub fn existing(&self) -> &PoolSet {
        self.table.existing()
    }

    pub fn with_backends(&self) -> &PoolSet {
        &self.with_backends
    }

    /// The pools of a database, by its OID, from this number on.
    pub fn in_database(&self, database: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        self.table.in_database(database, from)
    }

    pub fn is_full(&self) -> bool {
        self.table.is_full()
    }

    // ---- coming and going --------------------------------------------------

    /// Creates a pool; None if the table is full.
    pub fn add(&mut self, key: PoolKey) -> Option<u32> {
        self.table.add(key, Pool::new)
    }

    /// Removes a pool that has no backend any more.
    pub fn remove(&mut self, number: u32) -> Option<Box<Pool>> {
        ensure!(self.get(number).is_none_or(|pool| !pool.has_backends()));
        self.table.remove(number)
    }

    // ---- backends ----------------------------------------------------------

    pub fn add_backend(&mut self, number: u32, slot: u32) {
        self.change_backends(number, |pool| pool.add_backend(slot));
        self.with_backends.insert(number);
    }

    pub fn set_dedicated(&mut self, number: u32, slot: u32, dedicated: bool) {
        self.change_backends(number, |pool| pool.set_dedicated(slot, dedicated));
    }

    /// True if that was its last backend.
    pub fn forget_backend(&mut self, number: u32, slot: u32, now_us: u64) -> bool {
        self.change_backends(number, |pool| pool.forget_backend(slot, now_us));
        let is_last = self.get(number).is_some_and(|pool| !pool.has_backends());
        if is_last {
            self.with_backends.remove(number);
        }
        is_last
    }

    fn change_backends(&mut self, number: u32, change: impl FnOnce(&mut Pool)) {
        if let Some(pool) = self.table.get_mut(number) {
            change(pool);
        }
    }

    #[cfg(test)]
    pub fn check(&self) {
        self.table.check();
        let has_some = |number: &u32| self.get(*number).is_some_and(Pool::has_backends);
        let with_backends = self.existing().iter().filter(has_some);
        assert!(self.with_backends.iter().eq(with_backends), "with backends");
    }
}

// ----------------------------------------------------------------------------
// One pool: its backends, and what is known of it.
//
// A pool is a database, and the startup options that only a starting backend can take. Its backends
// serve any of its sessions, whatever their roles (tenants.rs). Sessions that need a backend wait
// in lists, whose length the number of sessions bounds ([`Sessions`](crate::core::sessions) has
// them).
//
// Only the table of pools changes what it finds a pool by: the pool's key and its backends.

/// What identifies a pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// The name at the first login; by now it may be another database's.
    pub database: Vec<u8>,
    pub database_oid: u32,
    /// Options that only a starting backend can take, sorted by name.
    pub options: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its backends serve this role alone (`TenantKey::is_apart`).
    pub role_oid: Option<u32>,
}

/// One pool.
pub struct Pool {
    key: Arc<PoolKey>,
    /// Slots of its backends that are not dedicated. Work that is done for each message of a
    /// session goes through these only.
    shared: Vec<u32>,
    /// Slots of its dedicated backends.
    dedicated: Vec<u32>,
    /// All of them that are not reported as lost (lifecycle.rs).
    staying: u32,
    /// When the last backend left that serves the pool's sessions in turn; 0: it has not had any.
    without_since_us: u64,
    /// Backends that attached by then are to leave (`Core::reconnect`); 0: none.
    reconnected_us: u64,

    /// Each of these has rules of its own.
    pub starts: Starts,
    pub queue: ReadyQueue,
    pub steals: StealRate,
    /// Its tenants.
    pub together: Together,
    /// Tenants that have no room (served.rs).
    pub without_room: BTreeSet<u32>,
    /// A slice of these is checked at a time.
    looks_without_room: Cursor,
    /// Does it want one more backend all the time?
    lack: Lack,
    first: First,
}

impl Keyed for Pool {
    type Key = PoolKey;

    fn key(&self) -> &Arc<PoolKey> {
        &self.key
    }

    fn database_of(key: &PoolKey) -> u32 {
        key.database_oid
    }
}

impl Pool {
    pub(super) fn new(key: Arc<PoolKey>) -> Pool {
        Pool {
            key,
            shared: Vec::new(),
            dedicated: Vec::new(),
            staying: 0,
            without_since_us: 0,
            reconnected_us: 0,
            starts: Starts::default(),
            queue: ReadyQueue::default(),
            steals: StealRate::default(),
            together: Together::default(),
            without_room: BTreeSet::new(),
            looks_without_room: Cursor::default(),
            lack: Lack::default(),
            first: First::default(),
        }
    }

    pub fn key(&self) -> &Arc<PoolKey> {
        &self.key
    }

    pub fn reconnects(&mut self, now_us: u64) {
        self.reconnected_us = now_us;
    }

    pub fn reconnected_us(&self) -> u64 {
        self.reconnected_us
    }

    /// The next tenants without room, at most this number of them.
    pub fn next_without_room(&mut self, most: usize) -> Vec<u32> {
        let all = &self.without_room;
        self.looks_without_room.begin();
        (self.looks_without_room).take(most, |from| all.range(from..).next().copied())
    }

    // ---- what it wants -------------------------------------------------------

    pub fn lacks(&mut self, wants: bool, now_us: u64) {
        self.lack.look(wants, now_us);
    }

    pub fn is_lacking(&self) -> bool {
        self.lack.is_lasting()
    }

    /// For how long has the same session waited for longest?
    pub fn look_at_first(&mut self, waits_since_us: u64, now_us: u64) -> u64 {
        self.first.look(waits_since_us, now_us)
    }

    /// A backend of the pool is started; whether that is enough remains to be seen.
    pub fn starts_one(&mut self, together: bool) {
        self.starts.begin(together);
        self.lack = Lack::default();
    }

    // ---- backends ----------------------------------------------------------

    /// Slots of its backends that are not dedicated.
    pub fn shared(&self) -> &[u32] {
        &self.shared
    }

    pub fn dedicated(&self) -> &[u32] {
        &self.dedicated
    }

    /// The slots of all its backends.
    pub fn all_backends(&self) -> impl Iterator<Item = u32> + '_ {
        self.shared.iter().chain(&self.dedicated).copied()
    }

    pub fn has_backends(&self) -> bool {
        self.all_backends().next().is_some()
    }

    pub fn without_since_us(&self) -> u64 {
        self.without_since_us
    }

    pub(super) fn add_backend(&mut self, slot: u32) {
        self.shared.push(slot);
    }

    pub(super) fn set_dedicated(&mut self, slot: u32, dedicated: bool) {
        self.take_out(slot);
        match dedicated {
            true => self.dedicated.push(slot),
            false => self.shared.push(slot),
        }
    }

    pub(super) fn forget_backend(&mut self, slot: u32, now_us: u64) {
        self.take_out(slot);
        if self.shared.is_empty() {
            self.without_since_us = now_us;
        }
        if !self.has_backends() {
            self.queue.has_room();
        }
    }

    fn take_out(&mut self, slot: u32) {
        self.shared.retain(|other| *other != slot);
        self.dedicated.retain(|other| *other != slot);
    }

    /// Adds `change` to the number of backends that are not reported as lost, and returns it.
    pub fn count_staying(&mut self, change: i32) -> u32 {
        self.staying = self.staying.saturating_add_signed(change);
        self.staying
    }
}

// ----------------------------------------------------------------------------
// The table of pools: how pools are created and dropped.

impl Core {
    pub(super) fn pool(&self, number: u32) -> Option<&Pool> {
        self.pools.get(number)
    }

    pub(super) fn pool_mut(&mut self, number: u32) -> Option<&mut Pool> {
        self.pools.get_mut(number)
    }

    pub(super) fn find_pool(&self, key: &PoolKey) -> Option<u32> {
        self.pools.find(key)
    }

    /// Creates a pool. None if the table is full, which takes more pools with sessions or backends
    /// than there can be sessions and backends.
    pub(super) fn create_pool(&mut self, key: PoolKey) -> Option<u32> {
        let number = self.pools.add(key)?;
        self.count_use(number);
        Some(number)
    }

    /// Updates the set of unused pools: a pool is new, or a tenant or a backend of it has come or
    /// gone.
    pub(super) fn count_use(&mut self, number: u32) {
        match self.has_neither(number) {
            true => self.unused.insert(number),
            false => self.unused.remove(number),
        }
    }

    /// Neither a tenant nor a backend.
    pub(super) fn has_neither(&self, number: u32) -> bool {
        let pool = self.pool(number);
        pool.is_some_and(|pool| pool.together.all().is_empty() && !pool.has_backends())
    }

    /// The table is full: some pools have neither a tenant nor a backend. Drops the next of these,
    /// from where the last call stopped. Passes over pools with an event in this round.
    pub(super) fn drop_one_unused(&mut self) {
        for _ in 0..self.unused.len() {
            let Some(number) = self.unused.next_from(&mut self.unused_from) else {
                return;
            };
            self.drop_if_unused(number);
            if !self.pools.is_full() {
                return;
            }
        }
    }

    /// Drops a pool that is unused.
    pub(super) fn drop_if_unused(&mut self, number: u32) {
        if !self.unused.contains(number) || self.dirty.contains(number) {
            return;
        }
        ensure!(self.sessions.members(number) == 0, "a pool with sessions");
        if self.pools.remove(number).is_some() {
            self.unused.remove(number);
            self.in_want.remove(number);
            self.waking.forget_pool(number);
            self.act(Action::PoolDropped(number));
        }
    }

    // ---- questions from outside -------------------------------------------

    /// Numbers of all pools.
    #[cfg(test)]
    pub fn pools(&self) -> impl Iterator<Item = u32> {
        self.pools.existing().iter()
    }

    pub fn pool_key(&self, number: u32) -> Option<&Arc<PoolKey>> {
        self.pool(number).map(|pool| pool.key())
    }

    /// The pool's backends that are not dedicated.
    pub fn pool_backends(&self, number: u32) -> &[u32] {
        self.pool(number).map_or(&[], Pool::shared)
    }

    pub fn all_pool_backends(&self, number: u32) -> Vec<u32> {
        self.pool(number)
            .map_or_else(Vec::new, |pool| pool.all_backends().collect())
    }

    pub fn pool_dedicated(&self, number: u32) -> usize {
        self.pool(number).map_or(0, |pool| pool.dedicated().len())
    }

    /// Sessions by role and by database, of all pools.
    pub fn session_tally(&self) -> &Tally {
        &self.session_tally
    }
}
