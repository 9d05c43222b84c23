//! Limits of a role in a database, as ALTER ROLE and ALTER DATABASE set them.
//!
//! Tenants of one role and database (startup options split them) are a *group* and
//! have their limits together (limits.rs). What these are the launcher is asked when the
//! first of them is made, and again when settings change; until it has answered
//! one of the group's sessions is served at a time.

use super::event::GroupKey;
use super::scan::Cursor;
use super::sessions::DEFAULT_WEIGHT;
use super::tables::PoolSet;
use super::{Action, Core, SessionId, TenantKey};
#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::{BTreeSet, HashMap, VecDeque};

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

// ----------------------------------------------------------------------------
// Tenants of one role and database, which have their limits together: one, as a rule, or one
// for each choice of startup options.
//
// The limits are held once for all of them: each tenant has its group's number, and what
// is decided for it looks there (`Core::limits_of`). So limits count for all tenants from
// the moment in which they are known. What is kept for each tenant follows when the round
// ends, for so many in a round: what is reserved, what backends are told of its mode and of
// the memory that is left; and its pool is served, as more sessions may be served, or fewer.
// A tenant follows at once if a session comes into it.

/// Groups that the launcher is asked about in a round: a message each.
pub(super) const ASKED_AT_ONCE: usize = 256;
/// Tenants that follow their groups in a round: some 10 microseconds, and an action each.
pub(super) const FOLLOWING_AT_ONCE: usize = 256;

/// Which mark tells of settings of this database and role; 0 means all.
pub type MarkOf = fn(database: u32, role: u32) -> usize;

/// The mark of what is set for nobody in particular. No other has it.
const MARK_OF_ALL: usize = 0;

/// Tenants of one role and database.
#[derive(Default)]
pub struct Group {
    key: GroupKey,
    /// None: the launcher has been asked.
    limits: Option<PoolLimits>,
    settings: PoolSettings,
    tenants: BTreeSet<u32>,
    /// Tenants that are still to follow the limits and the memory.
    following: Cursor,
    /// Of their sessions' contexts (limits.rs).
    pub memory_bytes: i64,
    /// Of counted ones, sessions that are being served (served.rs).
    served: usize,
}

impl Group {
    pub fn limits(&self) -> Option<&PoolLimits> {
        self.limits.as_ref()
    }

    pub fn tenants(&self) -> &BTreeSet<u32> {
        &self.tenants
    }

    #[cfg(test)]
    pub fn is_following(&self) -> bool {
        self.following.is_running()
    }
}

/// All groups; one without a tenant is forgotten.
pub struct Groups {
    /// By number.
    table: Vec<Group>,
    /// Numbers that no group has.
    free: Vec<u32>,
    by_key: HashMap<GroupKey, u32>,
    /// By the marks of its settings, that of all included; a bit a group, by its number:
    /// many may share one, and of these many change at once.
    by_mark: HashMap<usize, PoolSet>,
    mark_of: MarkOf,
    /// So many groups there may be: as many as tenants.
    most: usize,
    /// The launcher is to be asked about these, as their settings have changed.
    changed: PoolSet,
    /// Groups of which tenants are still to follow.
    following: VecDeque<GroupKey>,
    /// The one to begin with: those behind have their turn though the first ones change
    /// all the time.
    next_changed: u32,
}

impl Groups {
    pub fn new(most: usize, mark_of: MarkOf) -> Groups {
        Groups {
            table: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            by_mark: HashMap::new(),
            mark_of,
            most,
            changed: PoolSet::new(most),
            following: VecDeque::new(),
            next_changed: 0,
        }
    }

    pub fn get(&self, key: GroupKey) -> Option<&Group> {
        self.table.get(*self.by_key.get(&key)? as usize)
    }

    pub fn get_mut(&mut self, key: GroupKey) -> Option<&mut Group> {
        self.table.get_mut(*self.by_key.get(&key)? as usize)
    }

    /// The limits of one by its number, as tenants have it.
    pub fn limits(&self, group: u32) -> Option<&PoolLimits> {
        self.table.get(group as usize)?.limits()
    }

    /// Of one by its number, sessions that are being served.
    pub fn served(&self, group: u32) -> usize {
        self.table
            .get(group as usize)
            .map_or(0, |group| group.served)
    }

    pub fn count_served(&mut self, group: u32, was: usize, is: usize) {
        if let Some(group) = self.table.get_mut(group as usize) {
            group.served = group.served + is - was;
        }
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (&GroupKey, &Group)> {
        let of = |number: u32| &self.table[number as usize];
        self.by_key
            .iter()
            .map(move |(key, number)| (key, of(*number)))
    }

    /// The group's number; and whether this is the first of its tenants.
    fn add(&mut self, key: GroupKey, tenant: u32) -> (u32, bool) {
        let (table, free) = (&mut self.table, &mut self.free);
        let number = *self.by_key.entry(key).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                table.push(Group::default());
                table.len() as u32 - 1
            })
        });
        let group = &mut self.table[number as usize];
        let is_first = group.tenants.is_empty();
        group.key = key;
        group.tenants.insert(tenant);
        if is_first {
            for mark in self.marks_of(key) {
                let of_mark = self.by_mark.entry(mark);
                let of_mark = of_mark.or_insert_with(|| PoolSet::new(self.most));
                of_mark.insert(number);
            }
        }
        (number, is_first)
    }

    fn remove(&mut self, key: GroupKey, tenant: u32) {
        let Some(number) = self.by_key.get(&key).copied() else {
            return;
        };
        let group = &mut self.table[number as usize];
        group.tenants.remove(&tenant);
        if group.tenants.is_empty() {
            *group = Group::default();
            self.by_key.remove(&key);
            self.free.push(number);
            self.changed.remove(number);
            for mark in self.marks_of(key) {
                if let Some(of_mark) = self.by_mark.get_mut(&mark) {
                    of_mark.remove(number);
                    if of_mark.is_empty() {
                        self.by_mark.remove(&mark);
                    }
                }
            }
        }
    }

    fn marks_of(&self, (role, database): GroupKey) -> [usize; 4] {
        let of = self.mark_of;
        [
            MARK_OF_ALL,
            of(database, 0),
            of(0, role),
            of(database, role),
        ]
    }

    /// Settings of which these marks tell have changed: the launcher is to be asked about
    /// whom they concern, some in each round.
    fn settings_changed(&mut self, marks: &[usize]) {
        for concerned in marks.iter().filter_map(|mark| self.by_mark.get(mark)) {
            self.changed.insert_all(concerned);
        }
    }

    pub fn are_to_be_asked_for(&self) -> bool {
        !self.changed.is_empty()
    }

    pub fn are_followed(&self) -> bool {
        !self.following.is_empty()
    }

    /// All tenants of a group are to follow its limits and its memory.
    pub fn follow(&mut self, key: GroupKey) {
        let Some(group) = self.get_mut(key) else {
            return;
        };
        let was_running = group.following.is_running();
        group.following.begin();
        if !was_running {
            self.following.push_back(key);
        }
    }

    /// The next tenants that follow, of one group after the other.
    fn next_to_follow(&mut self, most: usize) -> Vec<u32> {
        let mut some = Vec::new();
        while some.len() < most {
            let Some(key) = self.following.pop_front() else {
                break;
            };
            let Some(group) = self.get_mut(key) else {
                continue;
            };
            let all = &group.tenants;
            let left = most - some.len();
            some.extend((group.following).take(left, |from| all.range(from..).next().copied()));
            if group.following.is_running() {
                self.following.push_back(key);
            }
        }
        ensure!(some.len() <= most);
        some
    }

    fn next_to_ask(&mut self, most: usize) -> Vec<GroupKey> {
        let mut some = Vec::new();
        self.changed.some_from(self.next_changed, most, &mut some);
        self.next_changed = some.last().map_or(0, |last| last + 1);
        let key_of = |number: &u32| self.table[*number as usize].key;
        let keys = some.iter().map(key_of).collect();
        some.iter().for_each(|number| self.changed.remove(*number));
        keys
    }
}

impl Core {
    pub(super) fn group_of(&self, number: u32) -> Option<GroupKey> {
        Some(group_of(self.tenant(number)?.key()))
    }

    /// Of a tenant's group; None: not known yet.
    pub(super) fn limits_of(&self, number: u32) -> Option<&PoolLimits> {
        self.groups.limits(self.tenant(number)?.group()?)
    }

    /// A tenant is new.
    pub(super) fn joins_group(&mut self, number: u32) {
        let Some(key) = self.group_of(number) else {
            return;
        };
        let (group, is_first) = self.groups.add(key, number);
        if is_first {
            self.ask_limits(key);
        }
        if let Some(tenant) = self.tenant_mut(number) {
            tenant.joins(group);
        }
        self.follow_limits(number);
        self.show_memory_left(number);
    }

    /// A tenant is no more.
    pub(super) fn leaves_group(&mut self, number: u32, key: &TenantKey) {
        self.groups.remove(group_of(key), number);
    }

    // ---- what the launcher says ---------------------------------------------

    pub(super) fn ask_limits(&mut self, (role, database): GroupKey) {
        self.act(Action::AskLimits { role, database });
    }

    /// Settings of roles or databases have changed, those of which these marks tell.
    pub fn settings_changed(&mut self, marks: &[usize]) {
        self.groups.settings_changed(marks);
    }

    /// Of all groups, some in each round; what is known counts until then.
    pub fn ask_limits_again(&mut self) {
        self.groups.settings_changed(&[MARK_OF_ALL]);
    }

    /// In each round: the next ones.
    pub(super) fn ask_limits_on(&mut self) {
        for group in self.groups.next_to_ask(ASKED_AT_ONCE) {
            self.ask_limits(group);
        }
    }

    /// The launcher has answered.
    pub fn set_pool_limits(&mut self, key: GroupKey, limits: PoolLimits) {
        let Some(group) = self.groups.get_mut(key) else {
            return;
        };
        group.limits = Some(limits);
        self.groups.follow(key);
    }

    /// In each round: the next tenants that follow.
    pub(super) fn follow_groups(&mut self) {
        for number in self.groups.next_to_follow(FOLLOWING_AT_ONCE) {
            self.follow_limits(number);
            self.show_memory_left(number);
            let Some(pool) = self.pool_of_tenant(number) else {
                continue;
            };
            if let Some(pool) = self.pool_mut(pool) {
                // Its room is looked at anew.
                pool.without_room.insert(number);
            }
            if self.in_want.contains(pool) || self.lacks_backends(pool) {
                self.mark_dirty(pool);
            }
        }
    }

    /// What is kept of a tenant is as its limits say.
    pub(super) fn follow_limits(&mut self, number: u32) {
        self.count_limits(number);
        self.count_if_limited(number);
        self.mode_may_differ(number);
    }

    /// What these limits are to be shown as.
    pub fn keep_settings(&mut self, group: GroupKey, settings: PoolSettings) {
        if let Some(known) = self.groups.get_mut(group) {
            known.settings = settings;
        }
    }

    /// What is set for a tenant's role and database; of each group it is the first that
    /// says so. None before the launcher has.
    pub fn settings(&self, number: u32) -> Option<&PoolSettings> {
        let group = self.groups.get(self.group_of(number)?)?;
        let is_known = group.limits.is_some() && group.tenants.first() == Some(&number);
        is_known.then_some(&group.settings)
    }

    /// Each tenant is in its group, once, and no group is without.
    #[cfg(test)]
    pub(super) fn check_groups(&self) {
        let mut listed = Vec::new();
        for (key, group) in self.groups.iter() {
            assert!(!group.tenants.is_empty(), "a group without a tenant");
            let served = group
                .tenants
                .iter()
                .filter_map(|number| self.tenant(*number));
            let served: usize = served.map(|tenant| tenant.served.len()).sum();
            assert_eq!(served, group.served, "served of {key:?}");
            for number in &group.tenants {
                assert_eq!(self.group_of(*number), Some(*key));
                let limits = self.limits_of(*number);
                assert_eq!(limits, group.limits(), "of its group");
                listed.push(*number);
            }
        }
        listed.sort_unstable();
        assert!(self.tenants.existing().iter().eq(listed));
        let is_there = |number| self.groups.table[number as usize].tenants.first().is_some();
        for (key, group) in self.groups.iter() {
            let is_listed = self.groups.following.contains(key);
            assert!(
                !group.following.is_running() || is_listed,
                "a group that is not followed"
            );
        }
        assert!(
            self.groups.changed.iter().all(is_there),
            "a change of what is no more"
        );
        for (key, number) in &self.groups.by_key {
            let marks = self.groups.marks_of(*key);
            assert!(marks
                .iter()
                .all(|mark| self.groups.by_mark[mark].contains(*number)));
        }
        let mut by_mark = self.groups.by_mark.values().flat_map(PoolSet::iter);
        assert!(by_mark.all(is_there), "found by what is past");
        let free = self.groups.free.len();
        assert_eq!(free + self.groups.by_key.len(), self.groups.table.len());
    }

    /// Has this tenant still to follow its group?
    #[cfg(test)]
    pub(super) fn is_to_follow(&self, number: u32) -> bool {
        let group = self.group_of(number).and_then(|key| self.groups.get(key));
        group.is_some_and(|group| group.following.is_running())
    }
}

// ----------------------------------------------------------------------------
// What the contexts of a role's sessions in a database take together, and may:
// pg_baton.pool_memory.
//
// Each session counts with what its own context accounts for (`context_bytes` in
// the views), whoever else has the same: so no role's limit depends on what others
// do. The sum of a group's tenants is kept, as each context changes. Backends are shown how
// much is left, and one whose session has more news than that keeps it; so the limit is
// exceeded by what several send at the same moment, and by greetings. New sessions are
// native meanwhile. Nobody else notices.
//
// What is left is shown to a group's tenants at the end of the round in which it changes, to
// so many in a round (limits.rs). A new tenant is shown at once.
//
// A session that was kept is shared again when there is room: its backend looks
// after each transaction, and is woken where others have given some back. (Without
// that most would look all the same, up to 10 s after their last transaction: the
// server wakes a backend then that has not reported its statistics, pgstat_report_stat
// in pgstat.c. But not those that have reported them at once.)

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
