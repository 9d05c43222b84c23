//! Limits of a role in a database, as ALTER ROLE and ALTER DATABASE set them.
//!
//! Pools of one role and database (startup options split them) are a *group* and
//! have their limits together (groups.rs). What these are the launcher is asked when the
//! first of them is made, and again when settings change; until it has answered
//! each has one backend.

use super::ids::GroupKey;
use super::pool_changes::Reason;
use super::room::DEFAULT_WEIGHT;
use super::{Core, PoolKey, Words};

/// pg_baton.pool_mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolMode {
    /// Sessions share backends.
    #[default]
    Shared,
    /// Each keeps the one that has served it.
    Dedicated,
    /// Each is a connection of the server's own.
    Native,
}

impl PoolMode {
    /// As the launcher sends it (BATON_MODE_*).
    fn of(number: i32) -> PoolMode {
        match number {
            1 => PoolMode::Dedicated,
            2 => PoolMode::Native,
            _ => PoolMode::Shared,
        }
    }

    /// As it is set.
    pub fn name(number: i32) -> &'static str {
        match PoolMode::of(number) {
            PoolMode::Shared => "shared",
            PoolMode::Dedicated => "dedicated",
            PoolMode::Native => "native",
        }
    }
}

/// The parameters pg_baton.pool_*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLimits {
    pub max_backends: Option<usize>,
    pub min_backends: Option<usize>,
    pub max_sessions: Option<usize>,
    pub mode: PoolMode,
    /// None: as all.
    pub weight: Option<u64>,
    /// Backends that go for no other pool.
    pub reserve: usize,
    /// Bytes of its sessions' contexts.
    pub memory: Option<i64>,
}

/// The values that the limits are, as the launcher sends them, and where each comes
/// from (BATON_SOURCE_*). For those who ask; nothing is decided by it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolSettings {
    pub values: [i32; 7],
    pub sources: [u32; 7],
}

pub fn group_of(key: &PoolKey) -> GroupKey {
    (key.role_oid, key.database_oid)
}

impl PoolLimits {
    /// As the launcher sends them: max_backends, min_backends, max_sessions (-1:
    /// none), mode, weight, reserve, memory (kB; -1: none).
    pub fn of(values: [i32; 7]) -> PoolLimits {
        let [max_backends, min_backends, max_sessions, mode, weight, reserve, memory] = values;
        PoolLimits {
            // None at all could serve nobody.
            max_backends: usize::try_from(max_backends).ok().map(|most| most.max(1)),
            min_backends: usize::try_from(min_backends).ok(),
            max_sessions: usize::try_from(max_sessions).ok(),
            mode: PoolMode::of(mode),
            weight: u64::try_from(weight).ok().filter(|weight| *weight > 0),
            reserve: usize::try_from(reserve).unwrap_or(0),
            memory: (memory >= 0).then(|| i64::from(memory) * 1024),
        }
    }
}

impl Core {
    pub(super) fn weight(&self, number: u32) -> u64 {
        let limits = self.limits_of(number);
        let own = limits.and_then(|limits| limits.weight);
        own.unwrap_or(DEFAULT_WEIGHT)
    }

    /// So many of a pool's backends go for no other, as they are counted with those of all
    /// others.
    pub(super) fn reserved(&self, number: u32) -> usize {
        self.backends.reserve_of(number)
    }

    /// Of all pools together: a quarter of what there is, at least one, is for
    /// whoever waits. One that a transaction holds is for nobody: all others may be
    /// held by transactions that wait for one of those who wait for a backend.
    pub(super) fn most_reserved(&self) -> usize {
        let all = self.backends.shared_and_not_held();
        all - (all / 4).max(1).min(all)
    }

    /// So many more may be.
    pub(super) fn reserves_left(&self) -> usize {
        (self.most_reserved()).saturating_sub(self.backends.reserved())
    }

    /// A pool's limits are others now, or it has its first session, or no more: without one
    /// nothing is reserved for it.
    pub(super) fn count_reserve(&mut self, number: u32) {
        let reserve = self.limits_of(number).map_or(0, |limits| limits.reserve);
        let has_sessions = self.sessions.members(number) > 0;
        (self.backends).reserve(number, reserve * usize::from(has_sessions));
    }

    pub(super) fn min_backends(&self, number: u32) -> usize {
        let limits = self.limits_of(number);
        let own = limits.and_then(|limits| limits.min_backends);
        own.unwrap_or(self.limits.min_backends)
    }

    /// Backends that count for a pool's limit: not dedicated ones.
    fn group_backends(&self, number: u32) -> usize {
        let pool = self.pool(number);
        pool.map_or(0, |pool| self.pools.backends_of_group(group_of(pool.key())))
    }

    /// How many more backends a pool may have by its own limit.
    pub(super) fn group_room(&self, number: u32) -> usize {
        let most = match self.limits_of(number) {
            Some(limits) => limits.max_backends,
            // Not known yet.
            None => Some(1),
        };
        most.map_or(usize::MAX, |most| {
            most.saturating_sub(self.group_backends(number))
        })
    }

    /// Sessions wait, and their group has all the backends it may: one of
    /// another of its pools goes, if this one has none.
    pub(super) fn make_room_in_group(&mut self, number: u32, words: &impl Words) {
        let has_one = self
            .pool(number)
            .is_some_and(|pool| !pool.shared().is_empty());
        let is_going = self.backends.somebody_goes_for(number);
        let Some(group) = self.group_of(number).filter(|_| !has_one && !is_going) else {
            return;
        };
        let others = self.pools.with_backends_of_group(group);
        let others = others.filter(|other| *other != number);
        let others = others.take(self.holdings.at_once());
        let largest = others.max_by_key(|other| self.serving_backends(*other));
        let first = largest.and_then(|other| self.first_to_go(other, words).first().copied());
        if let Some(slot) = first {
            self.retire_for(slot, number, Reason::RoomWithinPoolLimit(number));
        }
    }

    /// Shared backends of a pool: those that are free, and then the newest. Of very many
    /// those that came last.
    fn first_to_go(&self, number: u32, words: &impl Words) -> Vec<u32> {
        let slots = self.pool_backends(number);
        let some = slots.iter().rev().take(self.holdings.at_once()).copied();
        let mut shared: Vec<u32> = some.filter(|slot| self.backends.is_shared(*slot)).collect();
        shared.sort_by_cached_key(|slot| {
            let since_us = self
                .backends
                .get(*slot)
                .map(|backend| backend.attached_us());
            std::cmp::Reverse((words.backend(*slot).is_free(), since_us))
        });
        shared
    }

    /// More backends than a lowered limit allows go at their next boundary.
    pub(super) fn shrink_to_limit(&mut self, number: u32, words: &impl Words) {
        let limits = self.limits_of(number);
        let Some(most) = limits.and_then(|limits| limits.max_backends) else {
            return;
        };
        let leaving = |number: u32| self.pool(number).map_or(0, |pool| pool.shared().len());
        let going = leaving(number) - self.serving_backends(number).min(leaving(number));
        let excess = self.group_backends(number).saturating_sub(most + going);
        let most = excess.min(self.serving_backends(number).saturating_sub(1));
        if most == 0 {
            return;
        }
        for slot in self.first_to_go(number, words).into_iter().take(most) {
            self.retire(slot, Reason::BeyondLimit);
        }
    }

    /// More backends than its own limit: true after one too many is opened.
    #[cfg(test)]
    pub(super) fn group_is_overdrawn(&self, number: u32) -> bool {
        let limits = self.limits_of(number);
        let most = limits.map_or(Some(1), |limits| limits.max_backends);
        most.is_some_and(|most| self.group_backends(number) > most)
    }
}
