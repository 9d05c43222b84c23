//! The table of pools: which there are, and by what they are found.
//!
//! Each list and count here says what the table says, and only what is in this file
//! changes them together: a pool is found by its key or is outdated, is in its
//! database, under the marks of its settings, and among those with backends exactly as
//! long as it has one. What is asked for one database, one role's settings, or one
//! group looks at these pools only, and at no others.

mod look;
mod pool;
mod ready_queue;
mod starts;
mod takings;
mod walk;

pub use pool::{Oldest, Pool, PoolKey};
pub use ready_queue::counter_is_wrong;

use super::ids::GroupKey;
use super::pool_limits::group_of;
use super::pool_set::PoolSet;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Which mark tells of settings of this database and role; 0 means all.
pub type MarkOf = fn(database: u32, role: u32) -> usize;

/// The mark of what is set for nobody in particular. No other has it.
const MARK_OF_ALL: usize = 0;

/// Backends that count for the limit of a role in a database.
#[derive(Default)]
struct GroupBackends {
    count: usize,
    /// Pools that have some.
    pools: BTreeSet<u32>,
}

pub struct Pools {
    /// By number.
    table: Vec<Option<Box<Pool>>>,
    /// Numbers that no pool has; the lowest last.
    free: Vec<u32>,
    /// Pools that sessions come into.
    current: HashMap<Arc<PoolKey>, u32>,
    /// Those whose sessions are to move when another of their key has a backend.
    outdated: HashMap<Arc<PoolKey>, Vec<u32>>,
    /// By the database's OID.
    in_database: HashMap<u32, BTreeSet<u32>>,
    /// A bit a pool: many may share one, and of these many change at once.
    by_mark: HashMap<usize, PoolSet>,
    mark_of: MarkOf,
    existing: PoolSet,
    /// Those that have a backend, of whatever state, and hence a ready queue.
    with_backends: PoolSet,
    /// Those that a change of settings concerns, as long as it is only known (outdate.rs).
    changed: PoolSet,
    /// Of these, those whose limits it concerns, too.
    limits_changed: PoolSet,
    /// Of pools that are not outdated; who has none is not in it.
    of_group: HashMap<GroupKey, GroupBackends>,
    next_serial: u64,
    settings_generation: u64,
}

impl Pools {
    pub fn new(most: usize, mark_of: MarkOf) -> Pools {
        Pools {
            table: (0..most).map(|_| None).collect(),
            free: (0..most as u32).rev().collect(),
            current: HashMap::new(),
            outdated: HashMap::new(),
            in_database: HashMap::new(),
            by_mark: HashMap::new(),
            mark_of,
            existing: PoolSet::new(most),
            with_backends: PoolSet::new(most),
            changed: PoolSet::new(most),
            limits_changed: PoolSet::new(most),
            of_group: HashMap::new(),
            next_serial: 0,
            settings_generation: 0,
        }
    }

    pub fn get(&self, number: u32) -> Option<&Pool> {
        self.table.get(number as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Pool> {
        self.table.get_mut(number as usize)?.as_deref_mut()
    }

    /// The one that sessions of this key come into.
    pub fn find(&self, key: &PoolKey) -> Option<u32> {
        self.current.get(key).copied()
    }

    pub fn existing(&self) -> &PoolSet {
        &self.existing
    }

    pub fn with_backends(&self) -> &PoolSet {
        &self.with_backends
    }

    /// Those of a database, by its OID, from this number on.
    pub fn in_database(&self, database: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        let pools = self.in_database.get(&database);
        let pools = pools.into_iter();
        pools.flat_map(move |pools| pools.range(from..).copied())
    }

    /// Of the last one that was made.
    #[cfg(test)]
    pub fn last_serial(&self) -> u64 {
        self.next_serial
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    // ---- coming and going --------------------------------------------------

    /// Makes one; None if there can be no more.
    pub fn add(&mut self, key: PoolKey) -> Option<u32> {
        let number = self.free.pop()?;
        let key = Arc::new(key);
        self.next_serial += 1;
        self.existing.insert(number);
        for mark in self.marks_of(&key) {
            let of_mark = self.by_mark.entry(mark);
            let of_mark = of_mark.or_insert_with(|| PoolSet::new(self.table.len()));
            of_mark.insert(number);
        }
        let of_database = self.in_database.entry(key.database_oid);
        of_database.or_default().insert(number);
        let pool = Pool::new(key.clone(), self.next_serial, self.settings_generation);
        self.table[number as usize] = Some(Box::new(pool));
        self.current.insert(key, number);
        Some(number)
    }

    /// One that has no backend any more goes.
    pub fn remove(&mut self, number: u32) -> Option<Box<Pool>> {
        let pool = self.table.get_mut(number as usize)?.take()?;
        debug_assert!(!pool.has_backends());
        // Backends of a pool before may outlive it; what they had in hand is further on.
        self.leads_to(number, pool.moved_to, None);
        for before in &pool.moved_from {
            self.leads_to(*before, Some(number), pool.moved_to);
        }
        if self.find(pool.key()) == Some(number) {
            self.current.remove(pool.key());
        }
        if let Some(outdated) = self.outdated.get_mut(pool.key()) {
            outdated.retain(|other| *other != number);
            if outdated.is_empty() {
                self.outdated.remove(pool.key());
            }
        }
        for mark in self.marks_of(pool.key()) {
            if let Some(of_mark) = self.by_mark.get_mut(&mark) {
                of_mark.remove(number);
                if of_mark.is_empty() {
                    self.by_mark.remove(&mark);
                }
            }
        }
        let database = pool.key().database_oid;
        if let Some(in_database) = self.in_database.get_mut(&database) {
            in_database.remove(&number);
            if in_database.is_empty() {
                self.in_database.remove(&database);
            }
        }
        self.existing.remove(number);
        self.take_change(number);
        self.free.push(number);
        Some(pool)
    }

    /// All sessions of one have moved to the other.
    pub fn have_moved(&mut self, old: u32, new: u32) {
        let of = |pools: &Self, number| pools.get(number).and_then(Pool::moved_to);
        // Back here, if they had left.
        self.leads_to(new, of(self, new), None);
        self.leads_to(old, of(self, old), Some(new));
    }

    fn leads_to(&mut self, number: u32, before: Option<u32>, now: Option<u32>) {
        if let Some(pool) = before.and_then(|before| self.get_mut(before)) {
            pool.moved_from.retain(|other| *other != number);
        }
        if let Some(pool) = now.and_then(|now| self.get_mut(now)) {
            pool.moved_from.push(number);
        }
        if let Some(pool) = self.get_mut(number) {
            pool.moved_to = now;
        }
    }

    // ---- settings ----------------------------------------------------------

    /// Beside that of all.
    fn marks_of(&self, key: &PoolKey) -> [usize; 3] {
        let (database, role) = (key.database_oid, key.role_oid);
        [(database, 0), (0, role), (database, role)].map(|(db, role)| (self.mark_of)(db, role))
    }

    /// Settings of which these marks tell have changed. That is noted for the pools that
    /// they concern, and nothing else.
    pub fn settings_changed(&mut self, marks: &[usize]) {
        if marks.contains(&MARK_OF_ALL) {
            self.changed.insert_all(&self.existing);
            self.limits_changed.insert_all(&self.existing);
            return;
        }
        for concerned in marks.iter().filter_map(|mark| self.by_mark.get(mark)) {
            self.changed.insert_all(concerned);
            self.limits_changed.insert_all(concerned);
        }
    }

    /// What all starting backends read has, and no limits: it is noted likewise.
    pub fn starts_changed(&mut self) {
        self.changed.insert_all(&self.existing);
    }

    pub fn changed(&self) -> &PoolSet {
        &self.changed
    }

    /// It is noted no more. Whether it was; and whether limits may be others.
    pub fn take_change(&mut self, number: u32) -> (bool, bool) {
        let was = (
            self.changed.contains(number),
            self.limits_changed.contains(number),
        );
        self.changed.remove(number);
        self.limits_changed.remove(number);
        was
    }

    pub fn settings_generation(&self) -> u64 {
        self.settings_generation
    }

    pub fn set_settings_generation(&mut self, generation: u64) {
        self.settings_generation = generation;
    }

    /// Its backends have all been started since the last change, or will be.
    pub fn is_up_to_date(&mut self, number: u32) {
        let generation = self.settings_generation;
        if let Some(pool) = self.get_mut(number) {
            pool.set_settings_generation(generation);
        }
    }

    /// No new session comes into this pool.
    pub fn outdate(&mut self, number: u32) {
        let Some(pool) = self.get_mut(number).filter(|pool| !pool.is_outdated()) else {
            return;
        };
        pool.outdate();
        let key = pool.key().clone();
        let shared = pool.shared().len();
        self.current.remove(&key);
        self.outdated.entry(key.clone()).or_default().push(number);
        if let Some(group) = self.of_group.get_mut(&group_of(&key)) {
            group.count -= shared;
            group.pools.remove(&number);
            if group.count == 0 {
                self.of_group.remove(&group_of(&key));
            }
        }
    }

    /// Outdated pools whose sessions may move into this one, which has a backend. Each is
    /// named once.
    pub fn take_outdated(&mut self, number: u32) -> Vec<u32> {
        let Some(Some(pool)) = self.table.get(number as usize) else {
            return Vec::new();
        };
        match pool.is_outdated() {
            true => Vec::new(),
            false => self.outdated.remove(pool.key()).unwrap_or_default(),
        }
    }

    // ---- backends ----------------------------------------------------------

    pub fn add_backend(&mut self, number: u32, slot: u32) {
        self.change_backends(number, |pool| pool.add_backend(slot));
        self.with_backends.insert(number);
    }

    pub fn set_dedicated(&mut self, number: u32, slot: u32, dedicated: bool) {
        self.change_backends(number, |pool| pool.set_dedicated(slot, dedicated));
    }

    /// True if that was its last one.
    pub fn forget_backend(&mut self, number: u32, slot: u32, now_us: u64) -> bool {
        self.change_backends(number, |pool| pool.forget_backend(slot, now_us));
        let is_last = self.get(number).is_some_and(|pool| !pool.has_backends());
        if is_last {
            self.with_backends.remove(number);
        }
        is_last
    }

    fn change_backends(&mut self, number: u32, change: impl FnOnce(&mut Pool)) {
        let Some(Some(pool)) = self.table.get_mut(number as usize) else {
            return;
        };
        let before = pool.shared().len();
        change(pool);
        let (now, key) = (pool.shared().len(), group_of(pool.key()));
        if pool.is_outdated() {
            return;
        }
        let group = self.of_group.entry(key).or_default();
        group.count = group.count + now - before;
        match now {
            0 => group.pools.remove(&number),
            _ => group.pools.insert(number),
        };
        if group.count == 0 {
            self.of_group.remove(&key);
        }
    }

    /// The next backend of the pools in a set, of one pool after the other; a pool that has
    /// no more to name is taken out of it. None: that is all, or `left` is 0, which each
    /// look at a pool lowers.
    pub fn next_of(
        &mut self,
        set: &mut PoolSet,
        left: &mut usize,
        next: impl Fn(u32, &mut Pool) -> Option<u32>,
    ) -> Option<u32> {
        while *left > 0 {
            let number = set.first_from(0)?;
            *left -= 1;
            let pool = self.get_mut(number);
            if let Some(slot) = pool.and_then(|pool| next(number, pool)) {
                return Some(slot);
            }
            set.remove(number);
        }
        None
    }

    /// Backends of a role in a database that count for its limit: not dedicated ones,
    /// nor those of outdated pools.
    pub fn backends_of_group(&self, group: GroupKey) -> usize {
        self.of_group.get(&group).map_or(0, |group| group.count)
    }

    /// Pools that have some of those.
    pub fn with_backends_of_group(&self, group: GroupKey) -> impl Iterator<Item = u32> + '_ {
        let group = self.of_group.get(&group);
        group
            .into_iter()
            .flat_map(|group| group.pools.iter().copied())
    }

    /// All that is found by something is what the table says.
    #[cfg(test)]
    pub fn check(&self) {
        let there: Vec<u32> = (0..self.table.len() as u32)
            .filter(|number| self.get(*number).is_some())
            .collect();
        assert!(self.existing.iter().eq(there.iter().copied()));
        assert_eq!(self.free.len() + there.len(), self.table.len());
        let has_some = |number: &&u32| self.get(**number).is_some_and(Pool::has_backends);
        let with_backends = there.iter().filter(has_some).copied();
        assert!(self.with_backends.iter().eq(with_backends), "with backends");
        let (mut in_database, mut by_mark) = (0, 0);
        let mut of_group: HashMap<GroupKey, usize> = HashMap::new();
        for number in there {
            let pool = self.get(number).expect("it is there");
            assert!(self.in_database[&pool.key().database_oid].contains(&number));
            in_database += 1;
            let marks: BTreeSet<usize> = self.marks_of(pool.key()).into_iter().collect();
            assert!(marks.iter().all(|mark| self.by_mark[mark].contains(number)));
            by_mark += marks.len();
            let is_current = self.find(pool.key()) == Some(number);
            assert_eq!(is_current, !pool.is_outdated(), "found by its key");
            if !pool.is_outdated() && !pool.shared().is_empty() {
                *of_group.entry(group_of(pool.key())).or_default() += pool.shared().len();
                assert!(self.of_group[&group_of(pool.key())].pools.contains(&number));
            }
        }
        let are_there = |set: &PoolSet| set.iter().all(|number| self.get(number).is_some());
        assert!(are_there(&self.changed), "a change of what is no more");
        let mut limits = self.limits_changed.iter();
        assert!(limits.all(|number| self.changed.contains(number)));
        let sum = |sets: usize, all: usize| assert_eq!(sets, all, "found by what is past");
        sum(
            self.in_database.values().map(BTreeSet::len).sum(),
            in_database,
        );
        sum(self.by_mark.values().map(PoolSet::len).sum(), by_mark);
        let counted: HashMap<GroupKey, usize> = (self.of_group.iter())
            .map(|(key, group)| (*key, group.count))
            .collect();
        assert_eq!(counted, of_group, "backends of groups");
        for (key, numbers) in &self.outdated {
            for number in numbers {
                let pool = self.get(*number).expect("it is there");
                assert!(pool.is_outdated() && pool.key() == key, "outdated");
            }
        }
    }
}

#[cfg(test)]
mod tests;
