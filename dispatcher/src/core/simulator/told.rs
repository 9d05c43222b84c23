//! What the scheduling log is told of pools is what happens to them, and why.

use super::shell::Shell;
use crate::core::backends::Life;
use crate::core::pool_changes::{PoolChange, Reason};
use crate::core::{Action, Core};
use std::collections::BTreeMap;

/// Backends that pools have by what was told: their pools, by slot.
#[derive(Default)]
pub struct Told {
    slots: BTreeMap<u32, u32>,
    /// How often each reason was given, by its text.
    pub reasons: BTreeMap<&'static str, u64>,
}

impl Told {
    fn tell(&mut self, change: &PoolChange) {
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
    /// A reason is one that there can be.
    fn check_reason(&self, change: &PoolChange) {
        let pool = self.pool(change.pool).expect("it is there");
        let limits = &self.limits;
        let is_possible = match change.why {
            Reason::Waiting | Reason::Outdated | Reason::RoomForOthers => true,
            Reason::Stall => self.backends.held() > 0 && limits.max_extra != Some(0),
            Reason::Least => self.min_backends(change.pool) > 0,
            Reason::ForcedMigration => limits.force_migration,
            Reason::Idle => limits.backend_idle_timeout_us > 0,
            Reason::Old => limits.backend_lifetime_us > 0,
            // Of what there was before: a session may have become dedicated since.
            Reason::Surplus => true,
            Reason::BeyondLimit => pool
                .limits
                .is_some_and(|limits| limits.max_backends.is_some()),
            Reason::RoomFor(other)
            | Reason::RoomWithinPoolLimit(other)
            | Reason::RoomWithinConnectionLimit(other) => other != change.pool,
            Reason::Hold => self.is_held(change.pool),
            Reason::Stops => self.stopping,
            // No process here leaves anything behind: none goes of itself.
            Reason::Unclean => false,
            // The shell knows.
            Reason::Ended | Reason::NotStarted => true,
        };
        assert!(is_possible, "{change:?}");
    }

    /// Backends, by slot, and their pools; those that go left out. One that was told to
    /// go as it started, and then became stale, is let in no more either.
    fn staying(&self) -> BTreeMap<u32, u32> {
        let staying = self.backends.iter().filter(|(_, backend)| {
            let life = backend.life();
            !(life.is_leaving() || life == Life::Stale && backend.is_told_lost())
        });
        staying
            .map(|(slot, backend)| (slot, backend.pool()))
            .collect()
    }
}

impl Shell {
    /// Nobody goes on meanwhile: so seeds stay what they are, however often that is.
    pub fn is_only_looked_at(&mut self, action: &Action) -> bool {
        match action {
            Action::TellPool(change) => self.told(change),
            Action::TellWhoIsIn {
                number,
                users,
                is_all,
            } => {
                let waits = self.unanswered.contains(number);
                assert!(waits, "who is in a database is told to nobody");
                self.found += users.values().sum::<u32>();
                if *is_all {
                    self.unanswered.remove(number);
                }
            }
            Action::CheckQueue(pool) => {
                let is_empty = self.world.pools[*pool as usize].queue.is_empty();
                self.core.check_queue(*pool, is_empty, &self.world);
            }
            _ => return false,
        }
        true
    }

    fn told(&mut self, change: &PoolChange) {
        self.core.check_reason(change);
        let process = self.processes[change.slot as usize].as_ref();
        match change.why {
            Reason::Ended => assert!(process.is_some_and(|process| process.has_ended)),
            Reason::NotStarted => assert!(process.is_none()),
            _ => {}
        }
        self.told.tell(change);
    }

    /// A pool's lines add up to the backends that it has and keeps.
    pub fn check_told(&self) {
        assert_eq!(self.told.slots, self.core.staying(), "told, and there");
    }
}
