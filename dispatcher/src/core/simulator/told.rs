//! The scheduling log reports what happens to pools, and why.

use crate::core::lifecycle::Reason;
use crate::core::{Core, PoolChange};
use std::collections::BTreeMap;

/// The backends of pools according to the log: their pools, by slot.
#[derive(Default)]
pub struct Told {
    pub slots: BTreeMap<u32, u32>,
    /// How often each reason was given, by its text.
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Told {
    pub fn tell(&mut self, change: &PoolChange) {
        *self.reasons.entry(change.why.text()).or_default() += 1;
        let PoolChange { slot, pool, .. } = *change;
        let had = if change.why.is_growth() {
            self.slots.insert(slot, pool)
        } else {
            self.slots.remove(&slot)
        };
        let expected = (!change.why.is_growth()).then_some(pool);
        assert_eq!(had, expected, "told of twice, or never: {change:?}");
        let backends = self.slots.values().filter(|other| **other == pool);
        assert_eq!(backends.count() as u32, change.backends, "{change:?}");
    }
}

impl Core {
    /// The reason is a possible one.
    pub(super) fn check_reason(&self, change: &PoolChange) {
        assert!(self.pool(change.pool).is_some(), "it is there");
        let limits = &self.limits;
        let is_possible = match change.why {
            Reason::Waiting | Reason::Outdated | Reason::RoomForOthers => true,
            Reason::Stall => limits.max_extra != Some(0) || self.has_superusers(change.pool),
            Reason::Least => self.is_some_least_set(),
            Reason::Steals => !limits.force_migration && limits.backends_for_steals > 0,
            Reason::ForcedMigration => limits.force_migration,
            Reason::Idle => limits.backend_idle_timeout_us > 0,
            Reason::Old => limits.backend_lifetime_us > 0,
            Reason::Reconnect => {
                let pool = self.pool(change.pool);
                pool.is_some_and(|pool| pool.reconnected_us() > 0)
            }
            // Of the state before: a session may have become dedicated since.
            Reason::Surplus => true,
            Reason::RoomFor(other) | Reason::RoomWithinConnectionLimit(other) => {
                other != change.pool
            }
            // Its place may be for another role's session of the same pool.
            Reason::RoomFromIdle(_) => limits.extra_idle_timeout_us > 0,
            Reason::Hold => self.is_held(change.pool),
            Reason::Stops => self.stopping,
            // No simulated process leaves anything behind: none leaves by itself.
            Reason::Unclean => false,
            Reason::Adopted | Reason::Replaced => true,
            // Only the shell knows.
            Reason::Ended | Reason::NotStarted => true,
        };
        assert!(is_possible, "{change:?}");
    }

    /// The tenants of a pool that have sessions may have changed since.
    fn is_some_least_set(&self) -> bool {
        let own = self.groups.iter().filter_map(|(_, group)| group.limits());
        let mut own = own.filter_map(|limits| limits.min_backends);
        // For some tenants the earlier settings count until they have followed.
        let do_some_follow = self.groups.are_followed();
        self.limits.min_backends > 0 || own.any(|least| least > 0) || do_some_follow
    }

    pub(super) fn has_superusers(&self, pool: u32) -> bool {
        let pool = self.pool(pool);
        pool.is_some_and(|pool| !pool.together.superusers().is_empty())
    }

    /// Backends, by slot, and their pools; without leaving ones.
    pub(super) fn staying(&self) -> BTreeMap<u32, u32> {
        let all = self.backends.iter();
        let staying = all.filter(|(_, backend)| !backend.life().is_leaving());
        staying
            .map(|(slot, backend)| (slot, backend.pool()))
            .collect()
    }
}
