//! What a backend has said of a session's context and not yet finished: changes that
//! become the context together.
//!
//! A long list is kept sorted from its 257th change on, so that what is left to be
//! done when it is finished is a merge ([`super::merge`]), and so that a session that
//! changes the same item again and again does not have us keep all of that.

use super::arena::Arena;
use crate::shell::link::backend_message::Counters;
use std::collections::{btree_map, BTreeMap};

/// One change that waits to be applied.
#[derive(Debug)]
pub enum Change {
    /// It owns a reference to the entry.
    Put {
        entry: u32,
        counters: Option<Counters>,
        aux: i64,
    },
    Delete {
        kind: u16,
        key: Box<[u8]>,
    },
}

impl Change {
    pub fn entry(&self) -> Option<u32> {
        match self {
            Change::Put { entry, .. } => Some(*entry),
            Change::Delete { .. } => None,
        }
    }

    /// Kind and key.
    pub fn place<'a>(&'a self, arena: &'a Arena) -> (u16, &'a [u8]) {
        match self {
            Change::Put { entry, .. } => {
                let content = arena.content(*entry);
                (content.kind, content.key)
            }
            Change::Delete { kind, key } => (*kind, key),
        }
    }
}

/// As many stand in the order in which they came.
pub const FEW: usize = 256;

/// Changes of one session.
#[derive(Debug, Default)]
pub struct Changes {
    few: Vec<Change>,
    /// All of them, if there are more: the last of each kind and key.
    many: BTreeMap<(u16, Box<[u8]>), Change>,
}

impl Changes {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    /// One more. What it supersedes is returned.
    pub fn push(&mut self, change: Change, arena: &Arena) -> Vec<Change> {
        if self.many.is_empty() && self.few.len() < FEW {
            self.few.push(change);
            return Vec::new();
        }
        let mut superseded = Vec::new();
        for change in self.few.drain(..).chain([change]) {
            let (kind, key) = change.place(arena);
            let before = self.many.insert((kind, key.into()), change);
            superseded.extend(before);
        }
        superseded
    }

    /// By kind and key, the last of each; what that supersedes is returned as well.
    pub fn sort(mut self, arena: &Arena) -> (Sorted, Vec<Change>) {
        if !self.many.is_empty() {
            return (Sorted::Many(self.many.into_values()), Vec::new());
        }
        let mut superseded = Vec::new();
        (self.few).sort_by(|one, other| one.place(arena).cmp(&other.place(arena)));
        let mut sorted: Vec<Change> = Vec::with_capacity(self.few.len());
        for change in self.few {
            match sorted.last_mut() {
                Some(last) if last.place(arena) == change.place(arena) => {
                    superseded.push(std::mem::replace(last, change));
                }
                _ => sorted.push(change),
            }
        }
        (Sorted::Few(sorted.into_iter()), superseded)
    }

    /// To be released, in any order.
    pub fn into_any_order(self) -> Sorted {
        match self.many.is_empty() {
            true => Sorted::Few(self.few.into_iter()),
            false => Sorted::Many(self.many.into_values()),
        }
    }
}

/// The changes that are left.
#[derive(Debug)]
pub enum Sorted {
    Few(std::vec::IntoIter<Change>),
    Many(btree_map::IntoValues<(u16, Box<[u8]>), Change>),
}

impl Sorted {
    /// If they are few.
    pub fn as_slice(&self) -> Option<&[Change]> {
        match self {
            Sorted::Few(changes) => Some(changes.as_slice()),
            Sorted::Many(_) => None,
        }
    }
}

impl Iterator for Sorted {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        match self {
            Sorted::Few(changes) => changes.next(),
            Sorted::Many(changes) => changes.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Sorted::Few(changes) => changes.size_hint(),
            Sorted::Many(changes) => changes.size_hint(),
        }
    }
}

/// What a backend has staged.
#[derive(Debug, Default)]
pub struct Staged {
    pub session: u64,
    pub(super) changes: Changes,
    /// What they took, whether or not others have the same.
    pub(super) bytes: usize,
    /// A change did not fit: the context must not be applied.
    pub(super) overflow: bool,
}
