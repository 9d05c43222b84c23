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
//! A group may have very many tenants, as startup options split them. 256 are shown in a
//! round what is left; of more the next ones in the next round, round the group's end: what
//! backends see is no older than it takes to go round all of them, a round for each 256.
//! So much may be sent beyond the limit meanwhile. A new tenant is shown at once.
//!
//! A session that was kept is shared again when there is room: its backend looks
//! after each transaction, and is woken where others have given some back. (Without
//! that most would look all the same, up to 10 s after their last transaction: the
//! server wakes a backend then that has not reported its statistics, pgstat_report_stat
//! in pgstat.c. But not those that have reported them at once.)

use super::ids::GroupKey;
use super::lap::Lap;
use super::{Action, Core, SessionId};
#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::VecDeque;

/// No limit.
const UNLIMITED: i64 = i64::MAX;
/// A backend may be about to say what it keeps its session for as the others are
/// woken: they are once more.
const WAKES: u8 = 2;
/// Tenants that are shown in a round what is left, and as many whose pools' backends are woken:
/// some 10 microseconds.
const AT_ONCE: usize = 256;

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

/// A group's.
#[derive(Default)]
pub struct GroupMemory {
    /// Of all its tenants.
    bytes: i64,
    to_show: Lap,
    to_wake: Lap,
    /// So often those are still to be woken that want memory.
    wakes: u8,
}

impl GroupMemory {
    /// There is a tenant more in the group, or one less, of so many now.
    pub fn has_another(&mut self, all: usize, is_new: bool) {
        self.to_show.has_another(all, is_new);
        self.to_wake.has_another(all, is_new);
    }
}

/// Groups that are gone through: one that is no more, or has nothing left to do, is
/// passed over.
pub struct MemoryLaps {
    at_once: usize,
    /// So many more may be shown in this round.
    may_show: usize,
    to_show: VecDeque<GroupKey>,
    to_wake: VecDeque<GroupKey>,
    /// Of these so many of the first in this sweep.
    wake_now: usize,
    /// Keeps its room.
    some: Vec<u32>,
}

impl Default for MemoryLaps {
    fn default() -> MemoryLaps {
        MemoryLaps {
            at_once: AT_ONCE,
            may_show: AT_ONCE,
            to_show: VecDeque::new(),
            to_wake: VecDeque::new(),
            wake_now: 0,
            some: Vec::new(),
        }
    }
}

impl MemoryLaps {
    pub fn has_more(&self) -> bool {
        !self.to_show.is_empty() || self.wake_now > 0
    }

    /// What comes in between comes in between.
    #[cfg(test)]
    pub fn look_at_few(&mut self, at_once: usize) {
        (self.at_once, self.may_show) = (at_once, at_once);
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
            group.memory_mut().0.bytes += grown;
        }
        // Each change of a context comes here; few roles have such a limit.
        if self.tenant_memory(number).1.is_some() {
            self.show_memory_left(key);
        }
    }

    /// A session is about to end.
    pub(super) fn nothing_is_stored(&mut self, id: SessionId) {
        let bytes = self.sessions.get(id).map(|session| session.context_bytes());
        self.stored(id, -bytes.unwrap_or(0));
    }

    fn memory_left(&self, key: GroupKey) -> Option<i64> {
        let group = self.groups.get(key)?;
        Some(group.limits()?.memory? - group.memory().bytes)
    }

    // ---- what backends see -------------------------------------------------

    /// What is left, or the limit, may have changed.
    pub(super) fn show_memory_left(&mut self, key: GroupKey) {
        let Some((memory, tenants)) = self.groups.get_mut(key).map(|group| group.memory_mut())
        else {
            return;
        };
        if !memory.to_show.is_on() {
            self.memory_laps.to_show.push_back(key);
        }
        memory.to_show.begin(tenants.len());
        self.show_memory_left_on();
    }

    /// In each round.
    pub(super) fn show_memory_left_anew(&mut self) {
        self.memory_laps.may_show = self.memory_laps.at_once;
        self.show_memory_left_on();
    }

    /// As many as may be in this round, of one group after the other.
    fn show_memory_left_on(&mut self) {
        let mut some = std::mem::take(&mut self.memory_laps.some);
        while self.memory_laps.may_show > 0 {
            let Some(key) = self.memory_laps.to_show.pop_front() else {
                break;
            };
            let Some(group) = self.groups.get_mut(key) else {
                continue;
            };
            let (memory, all) = group.memory_mut();
            let shown = (memory.to_show).next(all, self.memory_laps.may_show, &mut some);
            self.memory_laps.may_show -= shown;
            if memory.to_show.is_on() {
                self.memory_laps.to_show.push_back(key);
            }
            let left = self.memory_left(key).unwrap_or(UNLIMITED);
            for number in some.drain(..) {
                if self.show_left(number, left) {
                    self.is_to_be_woken(key);
                }
            }
        }
        self.memory_laps.some = some;
    }

    /// A new tenant of the group, whose sessions have stored nothing yet.
    pub(super) fn show_memory_left_to(&mut self, number: u32, key: GroupKey) {
        let left = self.memory_left(key).unwrap_or(UNLIMITED);
        self.show_left(number, left);
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

    fn is_to_be_woken(&mut self, key: GroupKey) {
        let Some((memory, _)) = self.groups.get_mut(key).map(|group| group.memory_mut()) else {
            return;
        };
        if memory.wakes == 0 {
            self.memory_laps.to_wake.push_back(key);
        }
        memory.wakes = WAKES;
    }

    /// Once a second.
    pub(super) fn wake_for_memory(&mut self) {
        self.memory_laps.wake_now = self.memory_laps.to_wake.len();
        self.wake_for_memory_on();
    }

    /// In each round as well: the next ones.
    pub(super) fn wake_for_memory_on(&mut self) {
        let laps = &mut self.memory_laps;
        let (mut may_wake, mut some) = (laps.at_once, std::mem::take(&mut laps.some));
        while may_wake > 0 && laps.wake_now > 0 {
            let Some(key) = laps.to_wake.pop_front() else {
                break;
            };
            let group = self.groups.get_mut(key).map(|group| group.memory_mut());
            let Some((memory, all)) = group.filter(|(memory, _)| memory.wakes > 0) else {
                laps.wake_now -= 1;
                continue;
            };
            if !memory.to_wake.is_on() {
                memory.to_wake.begin(all.len());
            }
            may_wake -= memory.to_wake.next(all, may_wake, &mut some);
            if memory.to_wake.is_on() {
                laps.to_wake.push_front(key);
                break;
            }
            laps.wake_now -= 1;
            memory.wakes -= 1;
            if memory.wakes > 0 {
                laps.to_wake.push_back(key);
            }
        }
        for number in some.drain(..) {
            let pool = self.pool_of_tenant(number);
            if let Some(pool) = pool.filter(|pool| self.pool_dedicated(*pool) > 0) {
                self.act(Action::WakeForMemory(pool));
            }
        }
        self.memory_laps.some = some;
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
            assert_eq!(group.memory().bytes, sum, "of {key:?} together");
            let memory = group.memory();
            let is_listed = |list: &VecDeque<GroupKey>| list.contains(key);
            assert!(!memory.to_show.is_on() || is_listed(&self.memory_laps.to_show));
            assert!(memory.wakes == 0 || is_listed(&self.memory_laps.to_wake));
            let left = self.memory_left(*key).unwrap_or(UNLIMITED);
            for number in memory.to_show.passed(group.tenants()) {
                assert_eq!(shown(number), Some(left), "tenant {number}");
            }
        }
    }
}
