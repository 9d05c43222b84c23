//! What the contexts of a role's sessions in a database take together, and may:
//! pg_baton.pool_memory.
//!
//! Each session counts with what its own context accounts for (`context_bytes` in
//! the views), whoever else has the same: so no role's limit depends on what others
//! do. Backends are shown how much is left, and one whose session has more news than
//! that keeps it; so the limit is exceeded by what several send at the same moment,
//! and by greetings. New sessions are native meanwhile. Nobody else notices.
//!
//! A session that was kept is shared again when there is room: its backend looks
//! after each transaction, and is woken where others have given some back. (Without
//! that most would look all the same, up to 10 s after their last transaction: the
//! server wakes a backend then that has not reported its statistics, pgstat_report_stat
//! in pgstat.c. But not those that have reported them at once.)

use super::pool_limits::GroupKey;
use super::{Action, Core, SessionId};

/// No limit.
const UNLIMITED: i64 = i64::MAX;
/// A backend may be about to say what it keeps its session for as the others are
/// woken: they are once more.
const WAKES: u8 = 2;

/// A pool's.
#[derive(Default)]
pub struct Memory {
    /// Of the contexts of its sessions, as far as they are stored.
    bytes: i64,
    /// What its backends have been shown to be left.
    shown: Option<i64>,
}

impl Memory {
    pub fn grow(&mut self, bytes: i64) {
        self.bytes += bytes;
    }

    #[cfg(test)]
    pub fn shown(&self) -> Option<i64> {
        self.shown
    }
}

impl Core {
    /// So much more, or less, of a session's context is stored.
    pub(super) fn stored(&mut self, id: SessionId, grown: i64) {
        let Some(number) = self.sessions.context_grows(id, grown) else {
            return;
        };
        if let Some(pool) = self.pool_mut(number) {
            pool.memory.grow(grown);
        }
        // Each change of a context comes here; few roles have such a limit.
        if self.pool_memory(number).1.is_none() {
            return;
        }
        if let Some(group) = self.group_of(number) {
            self.show_memory_left(group);
        }
    }

    /// A session is about to end.
    pub(super) fn nothing_is_stored(&mut self, id: SessionId) {
        let bytes = self.sessions.get(id).map(|session| session.context_bytes());
        self.stored(id, -bytes.unwrap_or(0));
    }

    fn memory_left(&self, group: GroupKey) -> Option<i64> {
        let group = self.groups.get(group)?;
        let most = group.limits()?.memory?;
        let pools = group.pools().filter_map(|number| self.pool(number));
        Some(most - pools.map(|pool| pool.memory.bytes).sum::<i64>())
    }

    /// What is left, or the limit, may have changed.
    pub(super) fn show_memory_left(&mut self, key: GroupKey) {
        let left = self.memory_left(key).unwrap_or(UNLIMITED);
        let pools = self.groups.get(key).map(|group| group.pools().collect());
        let pools: Vec<u32> = pools.unwrap_or_default();
        for number in pools {
            if self.show_left(number, left) {
                self.groups.wake(key, WAKES);
            }
        }
    }

    /// A new pool of the group, whose sessions have stored nothing yet.
    pub(super) fn show_memory_left_to(&mut self, number: u32, key: GroupKey) {
        let left = self.memory_left(key).unwrap_or(UNLIMITED);
        self.show_left(number, left);
    }

    /// True if it is more than before.
    fn show_left(&mut self, number: u32, left: i64) -> bool {
        let pool = self.pool_mut(number);
        let Some(before) = pool.map(|pool| pool.memory.shown.replace(left)) else {
            return false;
        };
        if before != Some(left) {
            self.act(Action::ShowMemoryLeft { pool: number, left });
        }
        before.is_some_and(|before| before < left)
    }

    /// Once a second.
    pub(super) fn wake_for_memory(&mut self) {
        for number in self.groups.next_woken() {
            if self.pool_dedicated(number) > 0 {
                self.act(Action::WakeForMemory(number));
            }
        }
    }

    /// Would the contexts of so many bytes more exceed what this role's may take in
    /// this database?
    pub fn has_no_memory_for(&self, group: GroupKey, bytes: usize) -> bool {
        let left = self.memory_left(group);
        left.is_some_and(|left| left < i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// What the contexts of a pool's sessions take, and how much they may with those
    /// of the other pools of its role and database.
    pub fn pool_memory(&self, number: u32) -> (i64, Option<i64>) {
        self.pool(number).map_or((0, None), |pool| {
            let most = pool.limits.and_then(|limits| limits.memory);
            (pool.memory.bytes, most)
        })
    }

    /// Each session is counted where it is, and backends see what is left.
    #[cfg(test)]
    pub(super) fn check_memory(&self) {
        for number in self.pools() {
            let sessions = self.sessions.of_pool(number);
            let bytes = |id| {
                self.sessions
                    .get(id)
                    .map_or(0, |found| found.context_bytes())
            };
            let sum: i64 = sessions.into_iter().map(bytes).sum();
            let pool = self
                .pool(number)
                .map(|pool| (pool.memory.bytes, pool.memory.shown));
            let left = self
                .group_of(number)
                .and_then(|group| self.memory_left(group));
            assert_eq!(
                pool,
                Some((sum, Some(left.unwrap_or(UNLIMITED)))),
                "pool {number}"
            );
        }
    }
}
