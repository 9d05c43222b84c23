//! The table of pools: which there are, and by what they are found.
//!
//! Each list and count here says what the table says, and only what is in this file
//! changes them together: a pool is found by its key, is in its database, and among those
//! with backends exactly as long as it has one. What is asked for one database looks at
//! these pools only, and at no others.

mod look;
mod pool;
mod ready_queue;
mod starts;
mod takings;
mod walk;

pub use pool::{Oldest, Pool, PoolKey};
pub use ready_queue::counter_is_wrong;

use super::pool_set::PoolSet;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

pub struct Pools {
    /// By number.
    table: Vec<Option<Box<Pool>>>,
    /// Numbers that no pool has; the lowest last.
    free: Vec<u32>,
    by_key: HashMap<Arc<PoolKey>, u32>,
    /// By the database's OID.
    in_database: HashMap<u32, BTreeSet<u32>>,
    existing: PoolSet,
    /// Those that have a backend, of whatever state, and hence a ready queue.
    with_backends: PoolSet,
    next_serial: u64,
}

impl Pools {
    pub fn new(most: usize) -> Pools {
        Pools {
            table: (0..most).map(|_| None).collect(),
            free: (0..most as u32).rev().collect(),
            by_key: HashMap::new(),
            in_database: HashMap::new(),
            existing: PoolSet::new(most),
            with_backends: PoolSet::new(most),
            next_serial: 0,
        }
    }

    pub fn get(&self, number: u32) -> Option<&Pool> {
        self.table.get(number as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Pool> {
        self.table.get_mut(number as usize)?.as_deref_mut()
    }

    /// The one that sessions of this key come into.
    pub fn find(&self, key: &PoolKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    pub fn existing(&self) -> &PoolSet {
        &self.existing
    }

    pub fn with_backends(&self) -> &PoolSet {
        &self.with_backends
    }

    /// Those of a database, by its OID, from this number on.
    pub fn in_database(&self, database: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        let pools = self.in_database.get(&database).into_iter();
        pools.flat_map(move |pools| pools.range(from..).copied())
    }

    /// Of the last one that was made.
    #[cfg(test)]
    pub fn last_serial(&self) -> u64 {
        self.next_serial
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    // ---- coming and going --------------------------------------------------

    /// Makes one; None if there can be no more.
    pub fn add(&mut self, key: PoolKey) -> Option<u32> {
        let number = self.free.pop()?;
        let key = Arc::new(key);
        self.next_serial += 1;
        self.existing.insert(number);
        let of_database = self.in_database.entry(key.database_oid);
        of_database.or_default().insert(number);
        let pool = Pool::new(key.clone(), self.next_serial);
        self.table[number as usize] = Some(Box::new(pool));
        self.by_key.insert(key, number);
        Some(number)
    }

    /// One that has no backend any more goes.
    pub fn remove(&mut self, number: u32) -> Option<Box<Pool>> {
        let pool = self.table.get_mut(number as usize)?.take()?;
        debug_assert!(!pool.has_backends());
        self.by_key.remove(pool.key());
        let database = pool.key().database_oid;
        if let Some(in_database) = self.in_database.get_mut(&database) {
            in_database.remove(&number);
            if in_database.is_empty() {
                self.in_database.remove(&database);
            }
        }
        self.existing.remove(number);
        self.free.push(number);
        Some(pool)
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
        if let Some(Some(pool)) = self.table.get_mut(number as usize) {
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

    /// All that is found by something is what the table says.
    #[cfg(test)]
    pub fn check(&self) {
        let there: Vec<u32> = (0..self.table.len() as u32)
            .filter(|number| self.get(*number).is_some())
            .collect();
        assert!(self.existing.iter().eq(there.iter().copied()));
        assert_eq!(self.free.len() + there.len(), self.table.len());
        let has_some = |number: &&u32| self.get(**number).is_some_and(Pool::has_backends);
        let with_backends = there.iter().filter(has_some).copied();
        assert!(self.with_backends.iter().eq(with_backends), "with backends");
        for number in &there {
            let key = self.get(*number).expect("it is there").key();
            assert!(self.in_database[&key.database_oid].contains(number));
            assert_eq!(self.find(key), Some(*number), "found by its key");
        }
        let found: usize = self.in_database.values().map(BTreeSet::len).sum();
        assert_eq!(found, there.len(), "found by what is past");
        assert_eq!(self.by_key.len(), there.len(), "found by what is past");
    }
}

#[cfg(test)]
mod tests;
