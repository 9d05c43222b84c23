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
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::layout::Item;
use std::collections::HashMap;

/// With so many changes at once their items are found by an index: a scan for
/// each would hold up every other session.
const INDEX_FROM: usize = 16;
/// Stands where an item was that has been deleted.
const NO_ENTRY: u32 = u32::MAX;

/// Where in a context the item of a kind and key is.
type Index = HashMap<(u16, Vec<u8>), usize>;

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

    /// An index of what is loaded, if it pays for that many changes.
    fn index(&self, changes: usize) -> Option<Index> {
        (changes >= INDEX_FROM).then(|| {
            let places = self.scratch.iter().enumerate().map(|(position, item)| {
                let content = self.arena.content(item.entry);
                ((content.kind, content.key.to_vec()), position)
            });
            places.collect()
        })
    }

    fn find(&self, index: Option<&Index>, kind: u16, key: &[u8]) -> Option<usize> {
        match index {
            Some(index) => index.get(&(kind, key.to_vec())).copied(),
            None => self.scratch.iter().position(|item| {
                let content = self.arena.content(item.entry);
                content.kind == kind && content.key == key
            }),
        }
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
        let mut places = self.index(staged.changes.len());
        for change in &staged.changes {
            match change {
                Change::Put {
                    entry,
                    counter,
                    aux,
                } => {
                    let content = self.arena.content(*entry);
                    let found = self.find(places.as_ref(), content.kind, content.key);
                    if let (None, Some(places)) = (found, &mut places) {
                        places.insert((content.kind, content.key.to_vec()), self.scratch.len());
                    }
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
                    match found {
                        Some(position) => {
                            dropped.push(std::mem::replace(&mut self.scratch[position], item));
                        }
                        None => self.scratch.push(item),
                    }
                }
                Change::Delete { kind, key } => {
                    let Some(position) = self.find(places.as_ref(), *kind, key) else {
                        continue;
                    };
                    dropped.push(match &mut places {
                        Some(places) => {
                            places.remove(&(*kind, key.clone()));
                            let gone = Item {
                                entry: NO_ENTRY,
                                ..self.scratch[position]
                            };
                            std::mem::replace(&mut self.scratch[position], gone)
                        }
                        None => self.scratch.remove(position),
                    });
                }
            }
        }
        self.scratch.retain(|item| item.entry != NO_ENTRY);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::sys::memory::{self, SharedMapping};
    use std::os::fd::AsRawFd;

    fn contexts() -> Contexts {
        let bytes = 1 << 20;
        let memory = Box::leak(vec![0; bytes].into_boxed_slice());
        let (control, _) = memory::create(1 << 16).unwrap();
        let mapping = SharedMapping::open(control.as_raw_fd()).unwrap();
        let control = Control {
            header: &mapping.slice(0, 1).unwrap()[0],
            backends: &[],
            pools: &[],
            sessions: &[],
            counters: &[],
        };
        Contexts::new(Arena::new(memory, 2, bytes, 1), control, 0)
    }

    fn shown(contexts: &Contexts, index: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let contents = contexts
            .items(index)
            .map(|item| contexts.arena.content(item.entry));
        contents
            .map(|content| (content.key.to_vec(), content.value.to_vec()))
            .collect()
    }

    /// The first session gets all changes at once (by index), the second each
    /// by itself (by scanning).
    #[test]
    fn many_changes_at_once_do_what_each_by_itself_does() {
        let mut contexts = contexts();
        for index in 0..2 {
            contexts.begin(index, &[], 0).unwrap();
        }
        let mut at_once = Staged::default();
        for number in 0_u32..500 {
            let key = format!("key {}", number.wrapping_mul(2_654_435_761) % 37);
            let value = number.to_string();
            let content = Content {
                kind: 3,
                key: key.as_bytes(),
                value: value.as_bytes(),
            };
            let mut alone = Staged::default();
            for staged in [&mut at_once, &mut alone] {
                if number % 3 == 0 {
                    contexts.stage_delete(staged, 3, key.as_bytes());
                } else {
                    contexts.stage_put(staged, content, false, 0);
                }
            }
            contexts.apply(1, &mut alone, false).unwrap();
        }
        contexts.apply(0, &mut at_once, false).unwrap();
        assert!(!shown(&contexts, 0).is_empty());
        assert_eq!(shown(&contexts, 0), shown(&contexts, 1));
        contexts.end(0);
        contexts.end(1);
        assert_eq!(contexts.arena.entries(), 0);
    }
}
