//! Backends that have had nothing to do for long go, and old ones.

use super::pool_changes::Reason;
use super::pools::{Oldest, Pool};
use super::{Core, Words};
use std::cmp::Reverse;

impl Core {
    /// Those of a pool's backends that have been idle for long go, the newest last.
    pub(super) fn shrink(&mut self, number: u32, slots: &[u32], words: &impl Words) {
        if self.limits.backend_idle_timeout_us == 0 {
            return;
        }
        let mut retire = self.long_idle(number, slots, words);
        let serving = self.serving_backends(number);
        retire.truncate(serving.saturating_sub(self.min_backends(number)));
        for slot in retire {
            self.retire(slot, Reason::Idle);
        }
    }

    /// Which of these backends is the oldest of their pool in this sweep, so far?
    pub(super) fn look_for_old(&mut self, number: u32, slots: &[u32]) {
        if self.limits.backend_lifetime_us == 0 {
            return;
        }
        let shared = slots.iter().filter(|slot| self.backends.is_shared(**slot));
        let with_age = shared.filter_map(|slot| {
            let backend = self.backends.get(*slot)?;
            Some(Oldest {
                attached_us: Reverse(backend.attached_us()),
                slot: *slot,
                serial: backend.serial(),
            })
        });
        let oldest = with_age.max();
        if let Some(pool) = self.pool_mut(number) {
            pool.has_seen(oldest);
        }
    }

    /// The oldest of a pool's backends goes if its time is over, one in each sweep,
    /// at the end of a transaction.
    pub(super) fn retire_old(&mut self, number: u32) {
        let limit_us = self.limits.backend_lifetime_us;
        let oldest = self.pool_mut(number).and_then(Pool::ends_sweep);
        let Some(oldest) = oldest.filter(|_| limit_us > 0) else {
            return;
        };
        let backend = self.backends.get(oldest.slot);
        let is_still = backend.is_some_and(|backend| backend.serial() == oldest.serial)
            && self.backends.is_shared(oldest.slot);
        let age_us = self.now.us.saturating_sub(oldest.attached_us.0);
        if is_still && age_us > limit_us {
            self.retire(oldest.slot, Reason::Old);
        }
    }

    /// Those of a pool's backends that have had nothing to do for so long.
    pub(super) fn long_idle(&self, number: u32, slots: &[u32], words: &impl Words) -> Vec<u32> {
        let limit_us = self.limits.backend_idle_timeout_us;
        let is_idle = |slot: &&u32| {
            self.backends.is_shared(**slot)
                && words.backend(**slot).is_free()
                && self.now.passed_us(words.backend_since_us(**slot)) > limit_us
        };
        if self.waiting_in(number, words) > 0 {
            return Vec::new();
        }
        slots.iter().filter(is_idle).copied().collect()
    }

    /// Backends of a pool that its sessions can count on.
    pub(super) fn serving_backends(&self, number: u32) -> usize {
        self.backends.lives(number).shared()
    }
}
