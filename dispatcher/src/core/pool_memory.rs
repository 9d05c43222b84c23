//! What the contexts of a role's sessions in a database take together, and may:
//! pg_baton.pool_memory.
//!
//! Each session counts with what its own context accounts for (`context_bytes` in
//! the views), whoever else has the same: so no role's limit depends on what others
//! do. The sum of a group's tenants is kept, as each context changes. Backends are shown how
//! much is left, and one whose session has more news than that keeps it; so the limit is
//! exceeded by what several send at the same moment, and by greetings. New sessions are
//! native meanwhile. Nobody else notices.
//!
//! What is left is shown to a group's tenants at the end of the round in which it changes, to
//! so many in a round (groups.rs). A new tenant is shown at once.
//!
//! A session that was kept is shared again when there is room: its backend looks
//! after each transaction, and is woken where others have given some back. (Without
//! that most would look all the same, up to 10 s after their last transaction: the
//! server wakes a backend then that has not reported its statistics, pgstat_report_stat
//! in pgstat.c. But not those that have reported them at once.)

use super::ids::GroupKey;
use super::{Action, Core, SessionId};
#[cfg(test)]
use std::collections::BTreeMap;

/// No limit.
const UNLIMITED: i64 = i64::MAX;
/// A backend may be about to say what it keeps its session for as the others are
/// woken: they are once more.
const WAKES: u8 = 2;

/// A tenant's.
#[derive(Default)]
pub struct Memory {
    /// Of the contexts of its sessions, as far as they are stored.
    bytes: i64,
    /// What backends have been shown to be left.
    shown: Option<i64>,
}

impl Memory {
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
        let Some(key) = self.group_of(number) else {
            return;
        };
        if let Some(tenant) = self.tenant_mut(number) {
            tenant.memory.bytes += grown;
        }
        if let Some(group) = self.groups.get_mut(key) {
            group.memory_bytes += grown;
        }
        // Each change of a context comes here; few roles have such a limit.
        if self.tenant_memory(number).1.is_some() {
            self.groups.follow(key);
        }
    }

    /// A session is about to end.
    pub(super) fn nothing_is_stored(&mut self, id: SessionId) {
        let bytes = self.sessions.get(id).map(|session| session.context_bytes());
        self.stored(id, -bytes.unwrap_or(0));
    }

    fn memory_left(&self, key: GroupKey) -> Option<i64> {
        let group = self.groups.get(key)?;
        Some(group.limits()?.memory? - group.memory_bytes)
    }

    // ---- what backends see -------------------------------------------------

    /// To a tenant; its group is noted if it has more than before.
    pub(super) fn show_memory_left(&mut self, number: u32) {
        let Some(key) = self.group_of(number) else {
            return;
        };
        let left = self.memory_left(key).unwrap_or(UNLIMITED);
        if self.show_left(number, left) {
            self.memory_to_wake.insert(key, WAKES);
        }
    }

    /// True if it is more than before.
    fn show_left(&mut self, number: u32, left: i64) -> bool {
        let tenant = self.tenant_mut(number);
        let Some(before) = tenant.map(|tenant| tenant.memory.shown.replace(left)) else {
            return false;
        };
        if before != Some(left) {
            let tenant = number;
            self.act(Action::ShowMemoryLeft { tenant, left });
        }
        before.is_some_and(|before| before < left)
    }

    // ---- who is woken ------------------------------------------------------

    /// Once a second.
    pub(super) fn wake_for_memory(&mut self) {
        for (key, times) in std::mem::take(&mut self.memory_to_wake) {
            let tenants = self.groups.get(key).map(|group| group.tenants().clone());
            for number in tenants.into_iter().flatten() {
                let pool = self.pool_of_tenant(number);
                if let Some(pool) = pool.filter(|pool| self.pool_dedicated(*pool) > 0) {
                    self.act(Action::WakeForMemory(pool));
                }
            }
            if times > 1 {
                self.memory_to_wake.insert(key, times - 1);
            }
        }
    }

    // ---- questions from outside --------------------------------------------

    /// Would the contexts of so many bytes more exceed what this role's may take in
    /// this database?
    pub fn has_no_memory_for(&self, group: GroupKey, bytes: usize) -> bool {
        let left = self.memory_left(group);
        left.is_some_and(|left| left < i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// What the contexts of a tenant's sessions take, and how much they may with those
    /// of the other tenants of its role and database.
    pub fn tenant_memory(&self, number: u32) -> (i64, Option<i64>) {
        self.tenant(number).map_or((0, None), |tenant| {
            let most = self.limits_of(number).and_then(|limits| limits.memory);
            (tenant.memory.bytes, most)
        })
    }

    /// Each session is counted where it is, and backends see what is left, but those that
    /// are still to be shown.
    #[cfg(test)]
    pub(super) fn check_memory(&self) {
        let shown = |number: u32| self.tenant(number).and_then(|it| it.memory.shown);
        let mut bytes: BTreeMap<u32, i64> = BTreeMap::new();
        for id in self.sessions.ids() {
            let session = self.sessions.get(id).expect("it is listed");
            *bytes.entry(session.tenant()).or_default() += session.context_bytes();
        }
        for (key, group) in self.groups.iter() {
            let mut sum = 0;
            for number in group.tenants() {
                let bytes = bytes.get(number).copied().unwrap_or(0);
                assert_eq!(self.tenant_memory(*number).0, bytes, "tenant {number}");
                sum += bytes;
            }
            assert_eq!(group.memory_bytes, sum, "of {key:?} together");
            if group.is_following() {
                continue;
            }
            let left = self.memory_left(*key).unwrap_or(UNLIMITED);
            for number in group.tenants().iter().copied() {
                assert_eq!(shown(number), Some(left), "tenant {number}");
            }
        }
    }
}
