//! Tenants of one role and database, which have their limits together: one, as a rule, or one
//! for each choice of startup options.
//!
//! The limits are held once for all of them: each tenant has its group's number, and what
//! is decided for it looks there (`Core::limits_of`). So limits count for all tenants from
//! the moment in which they are known. What is kept for each tenant follows when the round
//! ends, for so many in a round: what is reserved, what backends are told of its mode and of
//! the memory that is left; and its pool is served, as more sessions may be served, or fewer.
//! A tenant follows at once if a session comes into it.

use super::ids::GroupKey;
use super::pool_limits::{group_of, PoolLimits, PoolSettings};
use super::pool_set::PoolSet;
use super::scan::Cursor;
use super::{Action, Core, TenantKey};
use std::collections::{BTreeSet, HashMap, VecDeque};

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
    /// Of their sessions' contexts (pool_memory.rs).
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
