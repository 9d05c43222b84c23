//! What has a number, and is found by its key and by its database: pools, and tenants.
//!
//! Each list says what the table says, and only what is in this file changes them together.

use super::pool_set::PoolSet;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// What is kept in such a table.
pub trait Keyed {
    type Key: Eq + Hash;

    fn key(&self) -> &Arc<Self::Key>;

    /// The OID of its database.
    fn database_of(key: &Self::Key) -> u32;
}

pub struct Table<T: Keyed> {
    by_number: Vec<Option<Box<T>>>,
    /// Numbers that nobody has; the lowest last.
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

    /// Those of a database, by its OID, from this number on.
    pub fn in_database(&self, database: u32, from: u32) -> impl Iterator<Item = u32> + '_ {
        let some = self.in_database.get(&database).into_iter();
        some.flat_map(move |some| some.range(from..).copied())
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Makes one; None if there can be no more.
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

    /// All that is found by something is what the table says.
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
