//! Once a second: backends that have been idle for long and old ones go, as do pools and
//! tenants that are not used, and all sessions are looked at.

use super::pool_changes::Reason;
use super::scan::Cursor;
use super::{Action, Core, Words};
use std::cmp::Reverse;

/// Pools with backends that are looked at in a round: a system call each.
const POOLS_AT_ONCE: usize = 256;
/// Sessions that are looked at in a round: some 100 microseconds.
const SESSIONS_AT_ONCE: usize = 1024;
/// Idle backends that go in a round: a system call each.
const RETIRED_AT_ONCE: usize = 128;
/// Tenants, and pools, that go in a sweep.
const DROPPED_AT_ONCE: usize = 1024;

/// What is still to be looked at in this sweep.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Pools with backends.
    pools: Cursor,
    sessions: Cursor,
}

impl Sweep {
    pub fn is_running(&self) -> bool {
        self.has_pools() || self.sessions.is_running()
    }

    pub fn has_pools(&self) -> bool {
        self.pools.is_running()
    }
}

impl Core {
    /// Once a second.
    pub(super) fn sweep(&mut self, words: &impl Words) {
        self.room.look_for_surplus();
        self.wake_for_memory();
        for tenant in self.unused_tenants.iter().take(DROPPED_AT_ONCE) {
            self.drop_tenant_if_unused(tenant);
        }
        for number in self.unused.iter().take(DROPPED_AT_ONCE) {
            self.drop_if_unused(number);
        }
        for number in self.pools.existing().iter() {
            if self.lacks_backends(number) {
                self.mark_dirty(number);
            }
        }
        self.sweeping.pools.begin();
        self.sweeping.sessions.begin();
        // Last: what is told of it names its pool, which may then be used by nobody.
        self.give_up_starting(words);
    }

    /// In each round: the next pools and sessions.
    pub(super) fn sweep_on(&mut self, words: &impl Words) {
        let pools = &mut self.sweeping.pools;
        let with_backends = self.pools.with_backends();
        let mut may_retire = RETIRED_AT_ONCE;
        for number in pools.take(POOLS_AT_ONCE, |from| with_backends.first_from(from)) {
            self.act(Action::CheckQueue(number));
            may_retire -= self.retire_long_idle(number, may_retire, words);
            self.retire_oldest(number);
        }
        for _ in 0..SESSIONS_AT_ONCE {
            let sessions = &mut self.sweeping.sessions;
            let Some(index) = sessions.next_below(self.sessions.slots_used()) else {
                return;
            };
            self.sweep_session(index, words);
        }
    }

    /// Has the pool fewer backends than it is to keep?
    pub(super) fn lacks_backends(&self, number: u32) -> bool {
        let least = self.min_backends(number);
        least > 0 && self.pool_backends(number).len() < least
    }

    /// Those of a pool's backends that have been idle for long go, the newest last; so many at
    /// most. How many those are.
    fn retire_long_idle(&mut self, number: u32, most: usize, words: &impl Words) -> usize {
        if self.limits.backend_idle_timeout_us == 0 {
            return 0;
        }
        let mut retire = self.long_idle(number, words);
        let serving = self.serving_backends(number);
        retire.truncate(serving.saturating_sub(self.min_backends(number)).min(most));
        for slot in &retire {
            self.retire(*slot, Reason::Idle);
        }
        retire.len()
    }

    /// Those of a pool's backends that have had nothing to do for so long.
    pub(super) fn long_idle(&self, number: u32, words: &impl Words) -> Vec<u32> {
        if self.waiting_in(number, words) > 0 {
            return Vec::new();
        }
        let limit_us = self.limits.backend_idle_timeout_us;
        let is_idle = |slot: &u32| {
            self.backends.is_shared(*slot)
                && words.backend(*slot).is_free()
                && self.now.passed_us(words.backend_since_us(*slot)) > limit_us
        };
        let slots = self.pool_backends(number).iter().copied();
        slots.filter(is_idle).collect()
    }

    /// The oldest of a pool's backends goes if its time is over, one in each sweep,
    /// at the end of a transaction.
    fn retire_oldest(&mut self, number: u32) {
        let limit_us = self.limits.backend_lifetime_us;
        if limit_us == 0 {
            return;
        }
        let slots = self.pool_backends(number).iter().copied();
        let shared = slots.filter(|slot| self.backends.is_shared(*slot));
        let with_age = shared.filter_map(|slot| {
            let backend = self.backends.get(slot)?;
            Some((Reverse(backend.attached_us()), slot))
        });
        let Some((Reverse(attached_us), slot)) = with_age.max() else {
            return;
        };
        if self.now.us.saturating_sub(attached_us) > limit_us {
            self.retire(slot, Reason::Old);
        }
    }

    /// Backends of a pool that its sessions can count on.
    pub(super) fn serving_backends(&self, number: u32) -> usize {
        self.backends.lives(number).shared()
    }
}
