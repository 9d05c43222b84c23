//! Pools whose backends have read what has changed since.
//!
//! A pool's backends read what ALTER ROLE/DATABASE ... SET and the configuration
//! say once, when they start. When that changes, its pool is *outdated*: who
//! logs in from then on gets another pool, whose backends have the new state.
//! The outdated one keeps its sessions, to which the change does not apply, and
//! its backends, for it may be that no new one could log in. Only when one of
//! the new pool has logged in do the sessions move there (moves.rs), and the old
//! backends go. docs/design/pools.md has the reasons.
//!
//! A change may concern all pools, and everybody waits while one event is handled. So the
//! event only notes which pools it concerns, a bit for each, and they are *settled* so
//! many in a round; but each before anything for which it counts what has changed:
//! before somebody comes into it, and before a backend of it is started, has logged in,
//! or is forgotten. What is settled later has the backends that it had, and so becomes
//! what it would have become at once. Pools of one role and database have the same
//! changes, and limits together: they are settled together, as far as they are no more
//! than fit into a round.

use super::pool_changes::Reason;
use super::pools::Pool;
use super::Core;

/// Pools settled in a round: some 100 microseconds if they have backends.
const SETTLED_AT_ONCE: usize = 64;

/// How they are settled.
#[derive(Debug)]
pub struct Settling {
    at_once: usize,
    /// The next one is that, or behind it.
    next: u32,
}

impl Default for Settling {
    fn default() -> Settling {
        Settling {
            at_once: SETTLED_AT_ONCE,
            next: 0,
        }
    }
}

impl Settling {
    /// What comes in between comes in between.
    #[cfg(test)]
    pub fn settle_few(&mut self, at_once: usize) {
        self.at_once = at_once;
    }
}

impl Core {
    /// Settings of roles or databases have changed, those of which these marks tell: of
    /// pools, and their limits.
    pub fn settings_changed(&mut self, generation: u64, marks: &[usize]) {
        self.pools.set_settings_generation(generation);
        self.pools.settings_changed(marks);
    }

    /// What all starting backends read has changed.
    pub fn outdate_pools(&mut self) {
        self.pools.starts_changed();
    }

    /// In each round: the next ones.
    pub(super) fn settle_on(&mut self) {
        let mut left = self.settling.at_once;
        while left > 0 {
            let changed = self.pools.changed();
            let next = changed.first_from(self.settling.next);
            let Some(number) = next.or_else(|| changed.first_from(0)) else {
                return;
            };
            self.settling.next = number + 1;
            left -= self.settle_group(number, left);
        }
    }

    /// A change that concerns this pool counts from here on.
    pub(super) fn settle(&mut self, number: u32) {
        if self.pools.changed().contains(number) {
            self.settle_group(number, self.settling.at_once);
        }
    }

    /// This pool and others of its group, so many in all. How many that were.
    fn settle_group(&mut self, number: u32, most: usize) -> usize {
        let Some(group) = self.group_of(number) else {
            return most;
        };
        let of_group = self.groups.get(group).into_iter();
        let pools = of_group.flat_map(|group| group.pools_from(number));
        let pools: Vec<u32> = pools.take(most).collect();
        let mut are_limits_others = false;
        for pool in &pools {
            let (is_changed, limits) = self.pools.take_change(*pool);
            are_limits_others |= limits;
            if is_changed {
                self.outdate(*pool);
            }
        }
        if are_limits_others {
            self.ask_limits(group);
        }
        pools.len()
    }

    fn outdate(&mut self, number: u32) {
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
                self.retire_all(number);
            }
            return;
        }
        // Nobody has learnt anything here; who starts is too early.
        pool.starts.are_stale_up_to(self.backends.last_serial());
        self.pools.is_up_to_date(number);
    }

    /// Is this one still starting, and has what it reads changed since it was started?
    pub(super) fn is_stale(&self, slot: u32) -> bool {
        let backend = self.backends.get(slot);
        backend.is_some_and(|backend| {
            let pool = self.pool(backend.pool());
            let is_past = pool.is_some_and(|pool| pool.starts.is_stale(backend.serial()));
            backend.life().is_starting() && is_past
        })
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

    /// All backends of a pool go, which has no session: some in each round.
    pub(super) fn retire_all(&mut self, number: u32) {
        if self.pool(number).is_some_and(Pool::has_backends) {
            self.retiring.insert(number);
        }
    }

    /// In each round: the next ones. Those of a pool into which somebody has come stay.
    pub(super) fn retire_on(&mut self) {
        let mut left = self.round.at_once();
        loop {
            let sessions = &self.sessions;
            let next = |number, pool: &mut Pool| match sessions.members(number) {
                0 => pool.next_to_retire(),
                _ => None,
            };
            let Some(slot) = (self.pools).next_of(&mut self.retiring, &mut left, next) else {
                return;
            };
            self.retire(slot, Reason::Outdated);
        }
    }
}
