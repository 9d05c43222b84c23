//! All pools (keyed.rs), and which of them have backends.
//!
//! Only what is in this file changes these together: a pool is among those with backends
//! exactly as long as it has one. What is asked for one database looks at its pools only,
//! and at no others.

mod pool;
mod ready_queue;
mod starts;
mod steals;

pub use pool::{Pool, PoolKey};
pub use ready_queue::counter_is_wrong;

use super::keyed::Table;
use super::pool_set::PoolSet;

pub struct Pools {
    table: Table<Pool>,
    /// Those that have a backend, of whatever state, and hence a ready queue.
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

    /// The one that sessions of this key come into.
    pub fn find(&self, key: &PoolKey) -> Option<u32> {
        self.table.find(key)
    }

    pub fn existing(&self) -> &PoolSet {
        self.table.existing()
    }

    pub fn with_backends(&self) -> &PoolSet {
        &self.with_backends
    }

    /// Those of a database, by its OID, from this number on.
    pub fn in_database(&self, database: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        self.table.in_database(database, from)
    }

    pub fn is_full(&self) -> bool {
        self.table.is_full()
    }

    // ---- coming and going --------------------------------------------------

    /// Makes one; None if there can be no more.
    pub fn add(&mut self, key: PoolKey) -> Option<u32> {
        self.table.add(key, Pool::new)
    }

    /// One that has no backend any more goes.
    pub fn remove(&mut self, number: u32) -> Option<Box<Pool>> {
        debug_assert!(self.get(number).is_none_or(|pool| !pool.has_backends()));
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

    /// True if that was its last one.
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
