//! Tables of things with a number, found by key and by database: pools and tenants.
//!
//! Each index agrees with the table, and only this file changes them together.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// An entry of such a table.
pub trait Keyed {
    type Key: Eq + Hash;

    fn key(&self) -> &Arc<Self::Key>;

    /// The OID of its database.
    fn database_of(key: &Self::Key) -> u32;
}

pub struct Table<T: Keyed> {
    by_number: Vec<Option<Box<T>>>,
    /// Unused numbers; the lowest last.
    free: Vec<u32>,
    by_key: HashMap<Arc<T::Key>, u32>,
    /// By the database's OID.
    in_database: HashMap<u32, BTreeSet<u32>>,
    existing: PoolSet,
}

impl<T: Keyed> Table<T> {
    pub fn new(most: usize) -> Table<T> {
        Table {
            by_number: (0..most).map(|_| None).collect(),
            free: (0..most as u32).rev().collect(),
            by_key: HashMap::new(),
            in_database: HashMap::new(),
            existing: PoolSet::new(most),
        }
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.by_number.get(number as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.by_number.get_mut(number as usize)?.as_deref_mut()
    }

    pub fn find(&self, key: &T::Key) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    pub fn existing(&self) -> &PoolSet {
        &self.existing
    }

    /// The entries of a database, by its OID, from this number on.
    pub fn in_database(&self, database: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        let some = self.in_database.get(&database).into_iter();
        some.flat_map(move |some| some.range(from..).copied())
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Creates an entry; None if the table is full.
    pub fn add(&mut self, key: T::Key, make: impl FnOnce(Arc<T::Key>) -> T) -> Option<u32> {
        let number = self.free.pop()?;
        let key = Arc::new(key);
        self.existing.insert(number);
        let of_database = self.in_database.entry(T::database_of(&key));
        of_database.or_default().insert(number);
        self.by_number[number as usize] = Some(Box::new(make(key.clone())));
        self.by_key.insert(key, number);
        Some(number)
    }

    pub fn remove(&mut self, number: u32) -> Option<Box<T>> {
        let found = self.by_number.get_mut(number as usize)?.take()?;
        self.by_key.remove(found.key());
        let database = T::database_of(found.key());
        if let Some(in_database) = self.in_database.get_mut(&database) {
            in_database.remove(&number);
            if in_database.is_empty() {
                self.in_database.remove(&database);
            }
        }
        self.existing.remove(number);
        self.free.push(number);
        Some(found)
    }

    /// Checks that all indexes agree with the table.
    #[cfg(test)]
    pub fn check(&self) {
        let there: Vec<u32> = (0..self.by_number.len() as u32)
            .filter(|number| self.get(*number).is_some())
            .collect();
        assert!(self.existing.iter().eq(there.iter().copied()));
        assert_eq!(self.free.len() + there.len(), self.by_number.len());
        for number in &there {
            let key = self.get(*number).expect("it is there").key();
            assert!(self.in_database[&T::database_of(key)].contains(number));
            assert_eq!(self.find(key), Some(*number), "found by its key");
        }
        let found: usize = self.in_database.values().map(BTreeSet::len).sum();
        assert_eq!(found, there.len(), "found by what is past");
        assert_eq!(self.by_key.len(), there.len(), "found by what is past");
    }
}

// ----------------------------------------------------------------------------
// A set of pools, by number.

/// One bit for each pool.
pub struct PoolSet {
    bits: Vec<u64>,
    count: usize,
}

impl PoolSet {
    pub fn new(pools: usize) -> PoolSet {
        PoolSet {
            bits: vec![0; pools.div_ceil(64)],
            count: 0,
        }
    }

    pub fn insert(&mut self, pool: u32) {
        self.count += usize::from(!self.contains(pool));
        self.bits[pool as usize / 64] |= 1 << (pool % 64);
    }

    /// Adds all members of the other set.
    pub fn insert_all(&mut self, other: &PoolSet) {
        for (word, new) in self.bits.iter_mut().zip(&other.bits) {
            self.count += (new & !*word).count_ones() as usize;
            *word |= new;
        }
    }

    pub fn remove(&mut self, pool: u32) {
        self.count -= usize::from(self.contains(pool));
        self.bits[pool as usize / 64] &= !(1 << (pool % 64));
    }

    pub fn clear(&mut self) {
        self.bits.fill(0);
        self.count = 0;
    }

    pub fn contains(&self, pool: u32) -> bool {
        self.bits[pool as usize / 64] & (1 << (pool % 64)) != 0
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Replaces the contents of `some` by at most `most` members: those from `first` on, then the
    /// lowest ones.
    pub fn some_from(&self, first: u32, most: usize, some: &mut Vec<u32>) {
        some.clear();
        let most = most.min(self.count);
        let words = self.bits.len();
        let first_word = first as usize / 64;
        // The first word comes once more at the end, for the bits below the first.
        for nth in 0..=words {
            let at = (first_word + nth) % words.max(1);
            let mut word = self.bits.get(at).copied().unwrap_or(0);
            let below = (1u64 << (first % 64)) - 1;
            if first_word < words && nth == 0 {
                word &= !below;
            } else if first_word < words && nth == words {
                word &= below;
            } else if nth == words {
                return;
            }
            while word != 0 && some.len() < most {
                some.push(at as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
            if some.len() == most {
                return;
            }
        }
    }

    /// The first member from this number on.
    pub fn first_from(&self, first: u32) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let at = first as usize / 64;
        let word = self.bits.get(at)? & !((1 << (first % 64)) - 1);
        let rest = self.bits.iter().copied().enumerate().skip(at + 1);
        let (at, word) = std::iter::once((at, word))
            .chain(rest)
            .find(|(_, word)| *word != 0)?;
        Some(at as u32 * 64 + word.trailing_zeros())
    }

    /// The next member from this number on, around the end; `from` moves behind it.
    pub fn next_from(&self, from: &mut u32) -> Option<u32> {
        let next = self.first_from(*from).or_else(|| self.first_from(0))?;
        *from = next + 1;
        Some(next)
    }

    /// The members at this moment; later changes are not seen.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words: Vec<(u32, u64)> = (self.bits.iter().enumerate())
            .filter(|(_, word)| **word != 0)
            .map(|(at, word)| (at as u32 * 64, *word))
            .collect();
        words.into_iter().flat_map(|(first, word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| first + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_and_not_taken_out_is_in_it() {
        let mut set = PoolSet::new(130);
        assert!(set.is_empty());
        for pool in [0, 63, 64, 129, 64] {
            set.insert(pool);
        }
        set.remove(63);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 64, 129]);
        assert_eq!(set.count, 3);
    }

    #[test]
    fn what_is_in_another_one_is_put_in_once() {
        let (mut set, mut other) = (PoolSet::new(130), PoolSet::new(130));
        [1, 64, 129].iter().for_each(|pool| set.insert(*pool));
        [0, 64, 65].iter().for_each(|pool| other.insert(*pool));
        set.insert_all(&other);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 64, 65, 129]);
        assert_eq!((set.len(), other.len()), (5, 3));
    }

    #[test]
    fn some_of_it_are_those_from_a_number_on_and_then_the_first() {
        let mut set = PoolSet::new(200);
        let mut some = vec![7];
        set.some_from(5, 10, &mut some);
        assert!(some.is_empty());
        let all = [0, 5, 63, 64, 129, 130, 199];
        all.iter().for_each(|pool| set.insert(*pool));
        for first in 0..300 {
            let behind = all.iter().filter(|pool| **pool >= first);
            let order: Vec<u32> = (behind.chain(all.iter().filter(|pool| **pool < first)))
                .copied()
                .collect();
            for most in 0..9 {
                set.some_from(first, most, &mut some);
                assert_eq!(some, order[..most.min(7)], "{most} from {first}");
            }
            let behind = all.iter().find(|pool| **pool >= first);
            assert_eq!(set.first_from(first), behind.copied(), "from {first}");
        }
    }
}
