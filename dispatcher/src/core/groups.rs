//! Pools of one role and database, which have their limits together.
//!
//! The limits are held once for all of them: each pool has its group's number, and what
//! is decided for it looks there (`Core::limits_of`). So limits count for all pools from
//! the moment in which they are known. What is kept for each pool follows, for so many
//! in the event and in each round after it, as there may be very many: what is reserved,
//! what its backends are told of its mode; and it is looked at, as it may start more, or
//! fewer. It does before its turn if a session comes into it.

use super::ids::GroupKey;
use super::lap::Lap;
use super::pool_limits::{group_of, PoolLimits, PoolSettings};
use super::pool_memory::GroupMemory;
use super::{Action, Core, PoolKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Groups that the launcher is asked about in a round, where it is asked about all.
const ASKED_AT_ONCE: usize = if cfg!(test) { 8 } else { 256 };
/// Pools that follow new limits of their group in one go: some 100 microseconds.
const FOLLOWING_AT_ONCE: usize = 256;

/// Pools of one role and database.
#[derive(Default)]
pub struct Group {
    /// None: the launcher has been asked.
    limits: Option<PoolLimits>,
    settings: PoolSettings,
    /// One, as a rule, and those that are outdated; or one for each choice of startup
    /// options.
    pools: BTreeSet<u32>,
    memory: GroupMemory,
    /// Of pools that are still to follow the limits.
    following: Lap,
}

impl Group {
    pub fn limits(&self) -> Option<&PoolLimits> {
        self.limits.as_ref()
    }

    pub fn memory(&self) -> &GroupMemory {
        &self.memory
    }

    /// With the pools that have it together.
    pub fn memory_mut(&mut self) -> (&mut GroupMemory, &BTreeSet<u32>) {
        (&mut self.memory, &self.pools)
    }

    #[cfg(test)]
    pub fn pools(&self) -> &BTreeSet<u32> {
        &self.pools
    }

    /// From this one on, round to those before it.
    pub fn pools_from(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        let before = self.pools.range(..number);
        self.pools.range(number..).chain(before).copied()
    }

    fn has_another(&mut self, is_new: bool) {
        self.memory.has_another(self.pools.len(), is_new);
        self.following.has_another(self.pools.len(), is_new);
    }
}

/// All groups; one without a pool is forgotten.
pub struct Groups {
    /// By number.
    table: Vec<Group>,
    /// Numbers that no group has.
    free: Vec<u32>,
    /// In order: the launcher is asked in the same one each time.
    by_key: BTreeMap<GroupKey, u32>,
    /// The launcher is to be asked again, from this one on.
    to_ask_from: Option<GroupKey>,
    at_once: usize,
    /// Groups of which pools are still to follow. One that is no more, or of which all
    /// have, is passed over.
    following: VecDeque<GroupKey>,
    /// Keeps its room.
    some: Vec<u32>,
}

impl Default for Groups {
    fn default() -> Groups {
        Groups {
            table: Vec::new(),
            free: Vec::new(),
            by_key: BTreeMap::new(),
            to_ask_from: None,
            at_once: FOLLOWING_AT_ONCE,
            following: VecDeque::new(),
            some: Vec::new(),
        }
    }
}

impl Groups {
    pub fn get(&self, key: GroupKey) -> Option<&Group> {
        self.table.get(*self.by_key.get(&key)? as usize)
    }

    pub fn get_mut(&mut self, key: GroupKey) -> Option<&mut Group> {
        self.table.get_mut(*self.by_key.get(&key)? as usize)
    }

    /// The limits of one by its number, as pools have it.
    pub fn limits(&self, group: u32) -> Option<&PoolLimits> {
        self.table.get(group as usize)?.limits()
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (&GroupKey, &Group)> {
        let of = |number: u32| &self.table[number as usize];
        self.by_key
            .iter()
            .map(move |(key, number)| (key, of(*number)))
    }

    /// The group's number; and whether this is the first of its pools.
    fn add(&mut self, key: GroupKey, pool: u32) -> (u32, bool) {
        let (table, free) = (&mut self.table, &mut self.free);
        let number = *self.by_key.entry(key).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                table.push(Group::default());
                table.len() as u32 - 1
            })
        });
        let group = &mut self.table[number as usize];
        let is_first = group.pools.is_empty();
        group.pools.insert(pool);
        group.has_another(true);
        (number, is_first)
    }

    fn remove(&mut self, key: GroupKey, pool: u32) {
        let Some(number) = self.by_key.get(&key).copied() else {
            return;
        };
        let group = &mut self.table[number as usize];
        group.pools.remove(&pool);
        group.has_another(false);
        if group.pools.is_empty() {
            *group = Group::default();
            self.by_key.remove(&key);
            self.free.push(number);
        }
    }

    pub fn are_to_be_asked_for(&self) -> bool {
        self.to_ask_from.is_some()
    }

    /// Are pools still to follow the limits of their group?
    pub fn are_followed(&self) -> bool {
        !self.following.is_empty()
    }

    /// What comes in between comes in between.
    #[cfg(test)]
    pub fn follow_few(&mut self, at_once: usize) {
        self.at_once = at_once;
    }

    /// So many, and no others, until it is begun anew.
    fn next_to_ask(&mut self, most: usize) -> Vec<GroupKey> {
        let Some(from) = self.to_ask_from.take() else {
            return Vec::new();
        };
        let mut rest = self.by_key.range(from..).map(|(key, _)| *key);
        let some = rest.by_ref().take(most).collect();
        self.to_ask_from = rest.next();
        some
    }
}

impl Core {
    pub(super) fn group_of(&self, number: u32) -> Option<GroupKey> {
        Some(group_of(self.pool(number)?.key()))
    }

    /// Of its group; None: not known yet.
    pub(super) fn limits_of(&self, number: u32) -> Option<&PoolLimits> {
        self.groups.limits(self.pool(number)?.group()?)
    }

    /// A pool has been made.
    pub(super) fn joins_group(&mut self, number: u32) {
        let Some(key) = self.group_of(number) else {
            return;
        };
        let (group, is_first) = self.groups.add(key, number);
        if is_first {
            self.ask_limits(key);
        }
        if let Some(pool) = self.pool_mut(number) {
            pool.joins(group);
        }
        self.mode_may_differ(number);
        self.show_memory_left_to(number, key);
    }

    /// A pool is no more.
    pub(super) fn leaves_group(&mut self, number: u32, key: &PoolKey) {
        self.groups.remove(group_of(key), number);
    }

    // ---- what the launcher says ---------------------------------------------

    pub(super) fn ask_limits(&mut self, (role, database): GroupKey) {
        self.act(Action::AskLimits { role, database });
    }

    /// Of all groups, some in each round; what is known counts until then.
    pub fn ask_limits_again(&mut self) {
        self.groups.to_ask_from = Some((0, 0));
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
        let was_on = group.following.is_on();
        group.following.begin(group.pools.len());
        if self.follow_some(key, self.groups.at_once).1 && !was_on {
            self.groups.following.push_back(key);
        }
        self.show_memory_left(key);
    }

    /// In each round: the next ones that follow, of one group after the other.
    pub(super) fn follow_limits_on(&mut self) {
        let mut left = self.groups.at_once;
        while left > 0 {
            let Some(key) = self.groups.following.pop_front() else {
                return;
            };
            let (followed, is_on) = self.follow_some(key, left);
            left -= followed;
            if is_on {
                self.groups.following.push_front(key);
            }
        }
    }

    /// So many pools of a group, at most. How many those were; and whether there are more.
    fn follow_some(&mut self, key: GroupKey, most: usize) -> (usize, bool) {
        let mut some = std::mem::take(&mut self.groups.some);
        let (mut followed, mut is_on) = (0, false);
        if let Some(group) = self.groups.get_mut(key) {
            followed = group.following.next(&group.pools, most, &mut some);
            is_on = group.following.is_on();
        }
        for number in some.drain(..) {
            self.follow_limits(number);
            self.mark_dirty(number);
        }
        self.groups.some = some;
        (followed, is_on)
    }

    /// What is kept of a pool is as its limits say.
    pub(super) fn follow_limits(&mut self, number: u32) {
        self.count_reserve(number);
        self.mode_may_differ(number);
    }

    /// What these limits are to be shown as.
    pub fn keep_settings(&mut self, group: GroupKey, settings: PoolSettings) {
        if let Some(known) = self.groups.get_mut(group) {
            known.settings = settings;
        }
    }

    /// What is set for a pool's role and database; of each it is the first pool that
    /// says so. None before the launcher has.
    pub fn settings(&self, number: u32) -> Option<&PoolSettings> {
        let group = self.groups.get(self.group_of(number)?)?;
        let is_known = group.limits.is_some() && group.pools.first() == Some(&number);
        is_known.then_some(&group.settings)
    }

    /// Each pool is in its group, once, and no group is without. Those that have had
    /// their turn are as the limits say.
    #[cfg(test)]
    pub(super) fn check_groups(&self, pools: &[u32]) {
        let mut listed = Vec::new();
        for (key, group) in self.groups.iter() {
            assert!(!group.pools.is_empty(), "a group without a pool");
            for number in &group.pools {
                assert_eq!(self.group_of(*number), Some(*key));
                let limits = self.limits_of(*number);
                assert_eq!(limits, group.limits(), "of its group");
                listed.push(*number);
            }
            let is_listed = self.groups.following.contains(key);
            assert!(!group.following.is_on() || is_listed, "nobody goes on");
            for number in group.following.passed(&group.pools) {
                let reserve = group.limits().map_or(0, |limits| limits.reserve);
                let reserve = reserve * usize::from(self.sessions.members(number) > 0);
                assert_eq!(self.reserved(number), reserve, "what is reserved");
            }
        }
        listed.sort_unstable();
        assert_eq!(listed, pools);
        let free = self.groups.free.len();
        assert_eq!(free + self.groups.by_key.len(), self.groups.table.len());
    }

    /// Has this pool still to follow the limits of its group?
    #[cfg(test)]
    pub(super) fn is_to_follow(&self, number: u32) -> bool {
        let group = self.group_of(number).and_then(|key| self.groups.get(key));
        let mut passed = group.map(|group| group.following.passed(&group.pools));
        !passed
            .as_mut()
            .is_some_and(|passed| passed.any(|it| it == number))
    }

    #[cfg(test)]
    pub(super) fn has_own_limits(&self) -> bool {
        let mut limits = self.groups.iter().filter_map(|(_, group)| group.limits());
        limits.any(|limits| limits.max_backends.is_some())
    }
}
