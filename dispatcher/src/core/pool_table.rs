//! The table of pools: making them, letting them go.

use super::pools::Pool;
use super::tally::Tally;
use super::{Action, Core, PoolKey};
use std::sync::Arc;

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

    /// A new pool; None if there can be no more, which takes more pools with
    /// sessions or backends than there can be sessions and backends.
    pub(super) fn create_pool(&mut self, key: PoolKey) -> Option<u32> {
        let number = self.pools.add(key)?;
        self.count_use(number);
        Some(number)
    }

    /// A pool is new, or a tenant or a backend of it has come or gone.
    pub(super) fn count_use(&mut self, number: u32) {
        match self.has_neither(number) {
            true => self.unused.insert(number),
            false => self.unused.remove(number),
        }
    }

    /// Tenant nor backend.
    pub(super) fn has_neither(&self, number: u32) -> bool {
        let pool = self.pool(number);
        pool.is_some_and(|pool| pool.together.all().is_empty() && !pool.has_backends())
    }

    /// There are as many as there may be: some have neither. The next of these
    /// goes, from where it stopped the last time. Passed over are those to which something
    /// has happened in this round.
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

    /// A pool that nobody uses goes.
    pub(super) fn drop_if_unused(&mut self, number: u32) {
        if !self.unused.contains(number) || self.dirty.contains(number) {
            return;
        }
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

    /// Those that are not dedicated.
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
