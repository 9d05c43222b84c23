//! The table of pools: making them, replacing them, letting them go.
//!
//! A pool's backends read what ALTER ROLE/DATABASE ... SET and the configuration
//! say once, when they start. When that changes, its pool is *outdated*: who
//! logs in from then on gets another pool, whose backends have the new state.
//! The outdated one keeps its sessions, to which the change does not apply, and
//! its backends, for it may be that no new one could log in. Only when one of
//! the new pool has logged in do the sessions move there, and the old backends
//! go. docs/design/pools.md has the reasons.

use super::backends::Life;
use super::pool_changes::Reason;
use super::pools::Pool;
use super::tally::Tally;
use super::{Action, Core, Identity, PoolKey, Stranger, Words};
use crate::protocol::auth::client::Failure;
use crate::protocol::Report;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Core {
    pub(super) fn pool(&self, number: u32) -> Option<&Pool> {
        self.pools.get(number)
    }

    pub(super) fn pool_mut(&mut self, number: u32) -> Option<&mut Pool> {
        self.pools.get_mut(number)
    }

    /// The pool that sessions of this key come into.
    pub fn find_pool(&self, key: &PoolKey) -> Option<u32> {
        self.pools.find(key)
    }

    /// A new pool; None if there can be no more, which takes more pools with
    /// sessions or backends than there can be sessions and backends.
    pub fn create_pool(&mut self, key: PoolKey) -> Option<u32> {
        if self.pools.is_full() {
            // As many as sessions and backends: some have neither.
            for number in self.pools.existing().iter() {
                self.drop_if_unused(number);
            }
        }
        let number = self.pools.add(key)?;
        self.joins_group(number);
        Some(number)
    }

    /// Settings of roles or databases have changed, those of which these marks tell: of
    /// pools, and their limits.
    pub fn settings_changed(&mut self, generation: u64, marks: &[usize]) {
        self.pools.set_settings_generation(generation);
        let mut groups = BTreeSet::new();
        for number in self.pools.concerned(marks) {
            groups.extend(self.group_of(number));
            self.outdate_pool(number);
        }
        for group in groups {
            self.ask_limits(group);
        }
    }

    /// What all starting backends read has changed.
    pub fn outdate_pools(&mut self) {
        for number in self.pools.existing().iter() {
            self.outdate_pool(number);
        }
    }

    fn outdate_pool(&mut self, number: u32) {
        let Some(pool) = self
            .pools
            .get_mut(number)
            .filter(|pool| !pool.is_outdated())
        else {
            return;
        };
        let lives = self.backends.lives(number);
        if pool.all_backends().count() > lives.starting() {
            self.pools.outdate(number);
            if self.is_left(number) {
                self.retire_all(number, Reason::Outdated);
            }
        } else {
            // Nobody has learnt anything here; who starts is too early.
            for slot in pool.shared() {
                if self.backends.life(*slot) != Some(Life::Stale) {
                    self.backends.turn(*slot, Life::Stale);
                }
            }
            self.pools.is_up_to_date(number);
        }
        self.act(Action::ForgetGreetings(number));
    }

    /// An outdated pool's backends go when it has no session any more.
    pub(super) fn is_left(&self, number: u32) -> bool {
        let is_outdated = self.pool(number).is_some_and(|pool| pool.is_outdated());
        is_outdated && self.sessions.members(number) == 0
    }

    /// A backend of this pool has logged in: others can, so nobody needs the
    /// old ones any more.
    pub(super) fn absorb_outdated(&mut self, number: u32) {
        for old in self.pools.take_outdated(number) {
            self.begin_to_move(old, number);
        }
    }

    /// A backend that logged in for this pool is not the pool's; it has gone.
    pub(super) fn stranger_came(&mut self, number: u32, stranger: Stranger, words: &impl Words) {
        let Some(pool) = self.pool(number) else {
            return;
        };
        let name = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let report = match stranger {
            Stranger::Role => Report::fatal(
                b"28000",
                format!("role \"{}\" does not exist", name(&pool.key().user)),
            )
            .with_detail("It has been renamed or dropped; another role has its name now.")
            .with_hint("Connect again."),
            Stranger::Database => Report::fatal(
                b"3D000",
                format!("database \"{}\" does not exist", name(&pool.key().database)),
            )
            .with_detail("It seems to have just been dropped or renamed."),
            Stranger::Superuser(superuser) => {
                // Sessions whose backends logged in before the change keep
                // them. If there is none left, they go on with backends of the
                // role as it is now: what it may do the server asks of the
                // catalog in any case.
                if self.backends.lives(number).may_serve() > 0 {
                    return self.role_changed(number, words);
                }
                let old = number;
                return self.act(Action::FindPool { old, superuser });
            }
        };
        self.start_failed(number, Failure::ServerError(report), words);
    }

    fn role_changed(&mut self, number: u32, words: &impl Words) {
        let text = "the role has become a superuser or is none any more";
        self.start_failed(number, Failure::Protocol(text.into()), words);
    }

    pub(super) fn replaced(&mut self, old: u32, new: Option<u32>, words: &impl Words) {
        match new {
            Some(new) => self.begin_to_move(old, new),
            None => self.role_changed(old, words),
        }
    }

    /// A pool that nobody uses goes.
    pub(super) fn drop_if_unused(&mut self, number: u32) {
        let is_unused = self.pool(number).is_some_and(|pool| {
            self.sessions.members(number) == 0 && !pool.has_backends() && !pool.dirty
        }) && !self.moves.go_to(number);
        if !is_unused {
            return;
        }
        if let Some(pool) = self.pools.remove(number) {
            self.in_want.remove(number);
            self.leaves_group(number, pool.key());
            self.burial_goes_on(number, pool.moved_to());
            self.moves.forget_from(number);
            let (pool, role) = (number, pool.key().role_oid);
            self.act(Action::PoolDropped { pool, role });
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

    pub fn pool_serial(&self, number: u32) -> Option<u64> {
        self.pool(number).map(Pool::serial)
    }

    /// The settings that its backends have read are not older than this.
    pub fn pool_settings_generation(&self, number: u32) -> u64 {
        self.pool(number)
            .map_or(0, |pool| pool.settings_generation())
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

    /// Backends, starting ones included.
    pub fn backend_tally(&self) -> &Tally {
        &self.backend_tally
    }

    /// Could this identity be one of the pool's backends?
    pub fn is_of_pool(&self, number: u32, identity: Identity) -> bool {
        self.pool(number)
            .is_some_and(|pool| identity.compare(pool.key()).is_none())
    }
}
