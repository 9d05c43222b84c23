//! Session contexts at rest.
//!
//! A context is a list of items in the arena, named by the session's record.
//! Backends send changes; they are *staged* (each entry interned at once, so
//! that the bytes need not be kept) and become the session's context together
//! when the session is given back or has been greeted. A staged reference is
//! owned by the [`Staged`] list; [`Contexts::apply`] hands it to the context.
//!
//! Each change gives the record a version that no context had before.

use super::arena::{Arena, Content, Full};
use super::control::{Control, CounterPool, NO_COUNTER};
use crate::dispatcher::layout::shared::*;
use crate::dispatcher::layout::Item;

/// One change that waits to be applied.
#[derive(Debug)]
pub enum Change {
    Put { entry: u32, counter: bool, aux: i64 },
    Delete { kind: u16, key: Vec<u8> },
}

/// Changes of one session, in the order they came.
#[derive(Debug, Default)]
pub struct Staged {
    pub session: u64,
    changes: Vec<Change>,
    /// A change did not fit: the context must not be applied.
    pub overflow: bool,
}

/// All contexts; owns the arena and the statement counters.
pub struct Contexts {
    pub arena: Arena,
    counters: CounterPool,
    control: Control,
    next_version: u64,
    scratch: Vec<Item>,
}

impl Contexts {
    pub fn new(arena: Arena, control: Control, version_base: u64) -> Contexts {
        Contexts {
            arena,
            counters: CounterPool::new(control.counters.len() as u32),
            control,
            next_version: version_base,
            scratch: Vec::new(),
        }
    }

    /// Stages a PUT.
    pub fn stage_put(
        &mut self,
        staged: &mut Staged,
        content: Content<'_>,
        counter: bool,
        aux: i64,
    ) {
        match self.arena.intern(content) {
            Ok(entry) => staged.changes.push(Change::Put {
                entry,
                counter,
                aux,
            }),
            Err(Full) => staged.overflow = true,
        }
    }

    /// Stages a DELETE.
    pub fn stage_delete(&mut self, staged: &mut Staged, kind: u16, key: &[u8]) {
        staged.changes.push(Change::Delete {
            kind,
            key: key.to_vec(),
        });
    }

    /// Forgets what is staged.
    pub fn discard(&mut self, staged: &mut Staged) {
        for change in staged.changes.drain(..) {
            if let Change::Put { entry, .. } = change {
                self.arena.release(entry);
            }
        }
        staged.overflow = false;
        staged.session = 0;
    }

    fn load(&mut self, index: u32) {
        let (place, count) = self.arena.record_items(index);
        self.scratch.clear();
        for position in 0..count as usize {
            self.scratch.push(self.arena.item(place, position));
        }
    }

    fn find(&self, kind: u16, key: &[u8]) -> Option<usize> {
        self.scratch.iter().position(|item| {
            let content = self.arena.content(item.entry);
            content.kind == kind && content.key == key
        })
    }

    /// Makes what is staged the context of session `index`. STARTUP items go
    /// if `greeted`. On `Full` the context is what it was before.
    pub fn apply(&mut self, index: u32, staged: &mut Staged, greeted: bool) -> Result<(), Full> {
        if staged.overflow {
            self.discard(staged);
            return Err(Full);
        }
        self.load(index);
        let mut dropped: Vec<Item> = Vec::new();
        let mut allotted: Vec<u32> = Vec::new();
        if greeted {
            let arena = &self.arena;
            let (gone, kept): (Vec<Item>, Vec<Item>) = self
                .scratch
                .iter()
                .partition(|item| u32::from(arena.content(item.entry).kind) == KIND_STARTUP);
            dropped = gone;
            self.scratch = kept;
        }
        let mut entries_taken = Vec::with_capacity(staged.changes.len());
        for change in &staged.changes {
            match change {
                Change::Put {
                    entry,
                    counter,
                    aux,
                } => {
                    let content = self.arena.content(*entry);
                    let found = self.find(content.kind, content.key);
                    let mut number = NO_COUNTER;
                    if *counter {
                        if let Some(new) = self.counters.allot() {
                            self.control.reset_counter(new);
                            allotted.push(new);
                            number = new;
                        }
                    }
                    let item = Item {
                        entry: *entry,
                        counter: number,
                        aux: *aux,
                    };
                    entries_taken.push(*entry);
                    match found {
                        Some(position) => {
                            dropped.push(std::mem::replace(&mut self.scratch[position], item));
                        }
                        None => self.scratch.push(item),
                    }
                }
                Change::Delete { kind, key } => {
                    if let Some(position) = self.find(*kind, key) {
                        dropped.push(self.scratch.remove(position));
                    }
                }
            }
        }
        let items = std::mem::take(&mut self.scratch);
        let stored = self.arena.store_items(&items);
        let count = items.len() as u32;
        self.scratch = items;
        let Ok(place) = stored else {
            for counter in allotted {
                self.counters.release(counter);
            }
            self.discard(staged);
            return Err(Full);
        };
        let (old_place, old_count) = self.arena.record_items(index);
        self.arena.release_items(old_place, old_count as usize);
        for item in dropped {
            self.counters.release(item.counter);
            self.arena.release(item.entry);
        }
        staged.changes.clear();
        staged.session = 0;
        let version = self.version();
        self.arena
            .put_record_context(index, version, place, count, 0);
        Ok(())
    }

    fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    /// The context of a new session: `items` with a reference each, which the
    /// context takes over. On `Full` the references are released.
    pub fn begin(&mut self, index: u32, items: &[Item], flags: u32) -> Result<(), Full> {
        match self.arena.store_items(items) {
            Ok(place) => {
                let version = self.version();
                self.arena
                    .put_record_context(index, version, place, items.len() as u32, flags);
                Ok(())
            }
            Err(Full) => {
                items.iter().for_each(|item| self.arena.release(item.entry));
                Err(Full)
            }
        }
    }

    /// The session has ended.
    pub fn end(&mut self, index: u32) {
        self.load(index);
        let (place, count) = self.arena.record_items(index);
        self.arena.release_items(place, count as usize);
        for item in std::mem::take(&mut self.scratch) {
            self.counters.release(item.counter);
            self.arena.release(item.entry);
        }
        self.arena.put_record_context(index, 0, 0, 0, 0);
    }

    /// The items of a session.
    pub fn items(&self, index: u32) -> impl Iterator<Item = Item> + '_ {
        let (place, count) = self.arena.record_items(index);
        (0..count as usize).map(move |position| self.arena.item(place, position))
    }

    /// The value of one item of a session.
    pub fn value(&self, index: u32, kind: u32, key: &[u8]) -> Option<&[u8]> {
        self.items(index)
            .map(|item| self.arena.content(item.entry))
            .find(|content| {
                u32::from(content.kind) == kind && content.key.eq_ignore_ascii_case(key)
            })
            .map(|content| content.value)
    }

    /// Bytes that a session's context accounts for.
    pub fn bytes(&self, index: u32) -> usize {
        self.items(index)
            .map(|item| {
                let content = self.arena.content(item.entry);
                (ITEM_SIZE + ENTRY_HEADER_SIZE) as usize + content.key.len() + content.value.len()
            })
            .sum()
    }
}
