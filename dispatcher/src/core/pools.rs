//! All pools (keyed.rs), and which of them have backends.
//!
//! Only what is in this file changes these together: a pool is among those with backends
//! exactly as long as it has one. What is asked for one database looks at its pools only,
//! and at no others.

mod look;
mod pool;
mod ready_queue;
mod starts;
mod takings;
mod walk;

pub use pool::{Oldest, Pool, PoolKey};
pub use ready_queue::counter_is_wrong;

use super::keyed::Table;
use super::pool_set::PoolSet;

pub struct Pools {
    table: Table<Pool>,
    /// Those that have a backend, of whatever state, and hence a ready queue.
    with_backends: PoolSet,
    /// So many have been made.
    #[cfg(test)]
    made: u64,
}

impl Pools {
    pub fn new(most: usize) -> Pools {
        Pools {
            table: Table::new(most),
            with_backends: PoolSet::new(most),
            #[cfg(test)]
            made: 0,
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

    #[cfg(test)]
    pub fn made(&self) -> u64 {
        self.made
    }

    pub fn is_full(&self) -> bool {
        self.table.is_full()
    }

    // ---- coming and going --------------------------------------------------

    /// Makes one; None if there can be no more.
    pub fn add(&mut self, key: PoolKey) -> Option<u32> {
        let number = self.table.add(key, Pool::new)?;
        #[cfg(test)]
        {
            self.made += 1;
        }
        Some(number)
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

    /// The next backend of the pools in a set, of one pool after the other; a pool that has
    /// no more to name is taken out of it. None: that is all, or `left` is 0, which each
    /// look at a pool lowers.
    pub fn next_of(
        &mut self,
        set: &mut PoolSet,
        left: &mut usize,
        next: impl Fn(u32, &mut Pool) -> Option<u32>,
    ) -> Option<u32> {
        while *left > 0 {
            let number = set.first_from(0)?;
            *left -= 1;
            let pool = self.get_mut(number);
            if let Some(slot) = pool.and_then(|pool| next(number, pool)) {
                return Some(slot);
            }
            set.remove(number);
        }
        None
    }

    #[cfg(test)]
    pub fn check(&self) {
        self.table.check();
        let has_some = |number: &u32| self.get(*number).is_some_and(Pool::has_backends);
        let with_backends = self.existing().iter().filter(has_some);
        assert!(self.with_backends.iter().eq(with_backends), "with backends");
    }
}

#[cfg(test)]
mod tests;
