//! Limits of a role in a database, as ALTER ROLE and ALTER DATABASE set them.
//!
//! Tenants of one role and database (startup options split them) are a *group* and share their
//! limits. The launcher is asked for these when the group's first tenant is created, and again when
//! settings change. Until it has answered, the group's sessions are served one at a time.

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
    /// Each session keeps the backend that has served it.
    Dedicated,
    /// Each session is a connection of the server's own.
    Native,
}

impl PoolMode {
    /// The mode for the number that the launcher sends (BATON_MODE_*).
    fn of(number: i32) -> PoolMode {
        match number {
            1 => PoolMode::Dedicated,
            2 => PoolMode::Native,
            _ => PoolMode::Shared,
        }
    }

    /// The mode's name in the configuration.
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
    /// The most sessions that are served at a time (served.rs).
    pub max_backends: Option<usize>,
    pub min_backends: Option<usize>,
    pub max_sessions: Option<usize>,
    pub mode: PoolMode,
    /// None: the default weight.
    pub weight: Option<u64>,
    /// Backends that leave for no other tenant and no other pool.
    pub reserve: usize,
    /// Bytes of its sessions' contexts.
    pub memory: Option<i64>,
}

/// The values of the limits, as the launcher sends them, and the source of each (BATON_SOURCE_*).
/// They are for display only; no decision depends on them.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolSettings {
    pub values: [i32; 7],
    pub sources: [u32; 7],
}

pub fn group_of(key: &TenantKey) -> GroupKey {
    (key.role_oid, key.database_oid)
}

impl PoolLimits {
    /// From the launcher's numbers: max_backends, min_backends, max_sessions (-1: none), mode,
    /// weight, reserve, memory (kB; -1: none).
    pub fn of(values: [i32; 7]) -> PoolLimits {
        let [max_backends, min_backends, max_sessions, mode, weight, reserve, memory] = values;
        PoolLimits {
            // A limit of 0 could serve no session.
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

    /// How many of a pool's backends leave for no other pool, as counted together with those of all
    /// pools.
    pub(super) fn reserved(&self, number: u32) -> usize {
        self.backends.reserve_of(number)
    }

    /// The most that all pools together may reserve: a quarter of all backends, at least one, stays
    /// open to every waiting session. A held backend is never reserved: transactions that wait for
    /// one of the waiting sessions may hold all others.
    pub(super) fn most_reserved(&self) -> usize {
        let all = self.backends.shared_and_not_held();
        all - (all / 4).max(1).min(all)
    }

    /// How many more backends may be reserved.
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
// Tenants of one role and database, which share their limits: usually one tenant, or one for each
// choice of startup options.
//
// The limits are stored once for all of them: each tenant has its group's number, and decisions for
// it look there (`Core::limits_of`). So limits count for all tenants from the moment they are
// known. What is kept for each tenant follows when the round ends, for a limited number of tenants
// in each round: its reserve, and what backends are told of its mode and of the memory that is
// left. Its pool is served too, as more or fewer sessions may be served. A tenant follows at once
// if a session comes into it.

/// Groups that the launcher is asked about in a round: a message each.
pub(super) const ASKED_AT_ONCE: usize = 256;
/// Tenants that follow their groups in a round: each takes some 10 microseconds, and an action.
pub(super) const FOLLOWING_AT_ONCE: usize = 256;

/// Which mark announces settings of this database and role; 0 means all.
pub type MarkOf = fn(database: u32, role: u32) -> usize;

/// The mark of settings for all roles and databases. Nothing else has it.
const MARK_OF_ALL: usize = 0;

/// Tenants of one role and database.
#[derive(Default)]
pub struct Group {
    key: GroupKey,
    /// None: the launcher has been asked.
    limits: Option<PoolLimits>,
    settings: PoolSettings,
    tenants: BTreeSet<u32>,
    /// Tenants that have not followed the limits and the memory yet.
    following: Cursor,
    /// Of their sessions' contexts.
    pub memory_bytes: i64,
    /// Of counted tenants: sessions that are being served (served.rs).
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

/// All groups; a group without a tenant is forgotten.
pub struct Groups {
    /// By number.
    table: Vec<Group>,
    /// Numbers that no group has.
    free: Vec<u32>,
    by_key: HashMap<GroupKey, u32>,
    /// By the marks of its settings, the mark of all included; one bit for each group, by its
    /// number. Many groups may share a mark, and they change together.
    by_mark: HashMap<usize, PoolSet>,
    mark_of: MarkOf,
    /// The most groups: as many as tenants.
    most: usize,
    /// Groups whose settings have changed: the launcher is to be asked about them.
    changed: PoolSet,
    /// Groups of which some tenants have not followed yet.
    following: VecDeque<GroupKey>,
    /// The next group to ask about. So the later groups have their turn even if the first ones
    /// change all the time.
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

    /// The limits of a group by its number, as tenants have it.
    pub fn limits(&self, group: u32) -> Option<&PoolLimits> {
        self.table.get(group as usize)?.limits()
    }

    /// The sessions of a group that are being served, by the group's number.
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

    /// The group's number; and whether this is its first tenant.
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

    /// Settings that these marks announce have changed: the launcher is to be asked about the
    /// groups they concern, some in each round.
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

    /// The next tenants to follow, of one group after the other.
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

    /// The limits of a tenant's group; None: not known yet.
    pub(super) fn limits_of(&self, number: u32) -> Option<&PoolLimits> {
        self.groups.limits(self.tenant(number)?.group()?)
    }

    /// A new tenant joins its group.
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

    /// A dropped tenant leaves its group.
    pub(super) fn leaves_group(&mut self, number: u32, key: &TenantKey) {
        self.groups.remove(group_of(key), number);
    }

    // ---- what the launcher says ---------------------------------------------

    pub(super) fn ask_limits(&mut self, (role, database): GroupKey) {
        self.act(Action::AskLimits { role, database });
    }

    /// The settings of roles or databases that these marks announce have changed.
    pub fn settings_changed(&mut self, marks: &[usize]) {
        self.groups.settings_changed(marks);
    }

    /// Asks for the limits of all groups, some in each round; until then the known limits count.
    pub fn ask_limits_again(&mut self) {
        self.groups.settings_changed(&[MARK_OF_ALL]);
    }

    /// Asks about the next groups in each round.
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

    /// Lets the next tenants follow in each round.
    pub(super) fn follow_groups(&mut self) {
        for number in self.groups.next_to_follow(FOLLOWING_AT_ONCE) {
            self.follow_limits(number);
            self.show_memory_left(number);
            let Some(pool) = self.pool_of_tenant(number) else {
                continue;
            };
            if let Some(pool) = self.pool_mut(pool) {
                // Its room is computed anew.
                pool.without_room.insert(number);
            }
            if self.in_want.contains(pool) || self.lacks_backends(pool) {
                self.mark_dirty(pool);
            }
        }
    }

    /// Brings what is kept of a tenant in line with its limits.
    pub(super) fn follow_limits(&mut self, number: u32) {
        self.count_limits(number);
        self.count_if_limited(number);
        self.mode_may_differ(number);
    }

    /// Keeps the settings for display.
    pub fn keep_settings(&mut self, group: GroupKey, settings: PoolSettings) {
        if let Some(known) = self.groups.get_mut(group) {
            known.settings = settings;
        }
    }

    /// The settings of a tenant's role and database, for the first tenant of each group only. None
    /// until the launcher has answered.
    pub fn settings(&self, number: u32) -> Option<&PoolSettings> {
        let group = self.groups.get(self.group_of(number)?)?;
        let is_known = group.limits.is_some() && group.tenants.first() == Some(&number);
        is_known.then_some(&group.settings)
    }

    /// Each tenant is in its group once, and no group is without a tenant.
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
// How much memory the contexts of a role's sessions in a database take together, and may take:
// pg_baton.pool_memory.
//
// Each session counts with what its own context accounts for (`context_bytes` in the views), even
// if others have the same content: so no role's limit depends on what others do. The sum of a
// group's tenants is updated as each context changes. Backends are shown how much is left. A
// backend whose session has a larger delta than that keeps the session. So only the deltas that
// several backends send at the same moment, and greetings, exceed the limit. New sessions are
// native meanwhile; other sessions are not affected.
//
// A group's tenants are shown what is left at the end of the round in which it changes, a limited
// number of tenants in a round. A new tenant is shown at once.
//
// A session that was kept is shared again when there is room: its backend checks after each
// transaction, and is woken when other sessions have freed memory. (Without that, most backends
// would still check, up to 10 s after their last transaction: the server then wakes a backend that
// has not reported its statistics, pgstat_report_stat in pgstat.c. But backends that have reported
// them at once would not.)

/// No limit.
const UNLIMITED: i64 = i64::MAX;
/// A backend may be about to report the cause for keeping its session while the others are woken:
/// they are woken a second time.
const WAKES: u8 = 2;

/// The memory of a tenant.
#[derive(Default)]
pub struct Memory {
    /// The stored bytes of its sessions' contexts.
    bytes: i64,
    /// The bytes left that backends have been shown.
    shown: Option<i64>,
}

impl Memory {
    #[cfg(test)]
    pub fn shown(&self) -> Option<i64> {
        self.shown
    }
}

impl Core {
    /// The stored context of a session has grown by `grown` bytes, which may be negative.
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
        // Each change of a context runs this; few roles have such a limit.
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

    /// Shows what is left to a tenant; notes its group if there is more than before.
    pub(super) fn show_memory_left(&mut self, number: u32) {
        let Some(key) = self.group_of(number) else {
            return;
        };
        let left = self.memory_left(key).unwrap_or(UNLIMITED);
        if self.show_left(number, left) {
            self.memory_to_wake.insert(key, WAKES);
        }
    }

    /// True if there is more than before.
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

    // ---- which backends are woken ------------------------------------------

    /// Runs once a second.
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

    /// Would another `bytes` of contexts exceed what this role may take in this database?
    pub fn has_no_memory_for(&self, group: GroupKey, bytes: usize) -> bool {
        let left = self.memory_left(group);
        left.is_some_and(|left| left < i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// The bytes that the contexts of a tenant's sessions take, and the limit for all tenants of
    /// its role and database together.
    pub fn tenant_memory(&self, number: u32) -> (i64, Option<i64>) {
        self.tenant(number).map_or((0, None), |tenant| {
            let most = self.limits_of(number).and_then(|limits| limits.memory);
            (tenant.memory.bytes, most)
        })
    }

    /// Each session is counted in its tenant and group, and backends see what is left, except for
    /// tenants that have not followed yet.
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
