//! Limits of a role in a database, as ALTER ROLE and ALTER DATABASE set them.
//!
//! Tenants of one role and database (startup options split them) are a *group* and
//! have their limits together (groups.rs). What these are the launcher is asked when the
//! first of them is made, and again when settings change; until it has answered
//! one of the group's sessions is served at a time.

use super::ids::GroupKey;
use super::sessions::DEFAULT_WEIGHT;
use super::{Core, TenantKey};

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
    /// Of sessions that are served at a time (served.rs).
    pub max_backends: Option<usize>,
    pub min_backends: Option<usize>,
    pub max_sessions: Option<usize>,
    pub mode: PoolMode,
    /// None: as all.
    pub weight: Option<u64>,
    /// Backends that go for no other tenant and no other pool.
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

pub fn group_of(key: &TenantKey) -> GroupKey {
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
        (self.pool(number)).map_or(DEFAULT_WEIGHT, |pool| pool.together.weight())
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

    pub(super) fn min_backends(&self, number: u32) -> usize {
        let pool = self.pool(number);
        pool.map_or(0, |pool| pool.together.least(self.limits.min_backends))
    }

    #[cfg(test)]
    pub(super) fn has_own_limits(&self) -> bool {
        let mut limits = self.groups.iter().filter_map(|(_, group)| group.limits());
        limits.any(|limits| limits.max_backends.is_some())
    }
}
