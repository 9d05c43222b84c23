//! Session contexts at rest.
//!
//! A context is a list of items in the arena, named by the session's record.
//! Backends send changes; they are *staged* (each entry interned at once, so
//! that the bytes need not be kept) and become the session's context together
//! when the session is given back or has been greeted. A staged reference is
//! owned by the [`Staged`] list; [`Contexts::apply`] hands it to the context.
//!
//! Items are sorted by kind and key, so that one is found without a look at all,
//! here and by a backend that wants one statement of a thousand. STARTUP items
//! alone stand as they came: they are applied in that order, and never looked for.
//!
//! Each change gives the record a version that no context had before.

use super::arena::{Arena, Content, Full};
use super::control::{Control, CounterPool, NO_COUNTER};
use crate::dispatcher::link::backend_message::Counters;
use crate::dispatcher::link::layout::shared::*;
use crate::dispatcher::link::layout::Item;
use std::cmp::Ordering;
use std::ops::Range;

/// One change that waits to be applied.
#[derive(Debug)]
pub enum Change {
    Put {
        entry: u32,
        counters: Option<Counters>,
        aux: i64,
    },
    Delete {
        kind: u16,
        key: Vec<u8>,
    },
}

/// Changes of one session, in the order they came.
#[derive(Debug, Default)]
pub struct Staged {
    pub session: u64,
    changes: Vec<Change>,
    /// What they take, whether or not others have the same.
    bytes: usize,
    /// A change did not fit: the context must not be applied.
    overflow: bool,
}

/// What one change takes beside key and value.
const CHANGE_BYTES: usize =
    std::mem::size_of::<Change>() + (ITEM_SIZE + ENTRY_HEADER_SIZE) as usize;
/// While half of the heap's headroom is gone, each backend may stage no more than
/// this: the rest is for what others have on its way.
const ON_THEIR_WAY: usize = 1 << 20;

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

    /// A change of this size comes. Who stages more than there may be of all contexts
    /// loses what he has staged, and so does who stages much while there is hardly
    /// room: that is no session's context, and must not be others' loss. False: it is not
    /// to be kept.
    fn may_stage(&mut self, staged: &mut Staged, bytes: usize) -> bool {
        staged.bytes += CHANGE_BYTES + bytes;
        let (used, limit) = (self.arena.used(), self.arena.limit());
        // Half of the headroom is gone.
        let is_scarce = used > limit + self.arena.capacity().saturating_sub(limit) / 2;
        let most = if is_scarce {
            ON_THEIR_WAY
        } else {
            limit.max(ON_THEIR_WAY)
        };
        if staged.bytes > most {
            self.stage_too_much(staged);
        }
        !staged.overflow
    }

    /// A change has come that is larger than anything that could be stored.
    pub fn stage_too_much(&mut self, staged: &mut Staged) {
        let session = staged.session;
        self.discard(staged);
        staged.session = session;
        staged.overflow = true;
    }

    /// The longest value that is of use.
    pub fn longest_value(&self) -> usize {
        self.arena.limit().max(ON_THEIR_WAY)
    }

    /// Stages a PUT.
    pub fn stage_put(
        &mut self,
        staged: &mut Staged,
        content: Content<'_>,
        counters: Option<Counters>,
        aux: i64,
    ) {
        if !self.may_stage(staged, content.key.len() + content.value.len()) {
            return;
        }
        match self.arena.intern(content) {
            Ok(entry) => staged.changes.push(Change::Put {
                entry,
                counters,
                aux,
            }),
            Err(Full) => staged.overflow = true,
        }
    }

    /// Stages a DELETE.
    pub fn stage_delete(&mut self, staged: &mut Staged, kind: u16, key: &[u8]) {
        if !self.may_stage(staged, key.len()) {
            return;
        }
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
        *staged = Staged::default();
    }

    fn load(&mut self, index: u32) {
        let (place, count) = self.arena.record_items(index);
        self.scratch.clear();
        for position in 0..count as usize {
            self.scratch.push(self.arena.item(place, position));
        }
    }

    /// Where the item of that kind and key is in what is loaded, or would be.
    fn find(&self, kind: u16, key: &[u8]) -> Result<usize, usize> {
        self.scratch.binary_search_by(|item| {
            let content = self.arena.content(item.entry);
            content.kind.cmp(&kind).then_with(|| content.key.cmp(key))
        })
    }

    /// Which of these items are statements.
    fn statements(&self, items: &[Item]) -> Range<usize> {
        let from = |kind: u32| {
            items.partition_point(|item| u32::from(self.arena.content(item.entry).kind) < kind)
        };
        from(KIND_STATEMENT)..from(KIND_STATEMENT + 1)
    }

    /// Makes what is staged the context of session `index`; by how many bytes it has
    /// grown. STARTUP items go if `greeted`. On `Full` the context is what it was
    /// before.
    pub fn apply(&mut self, index: u32, staged: &mut Staged, greeted: bool) -> Result<i64, Full> {
        if staged.overflow {
            self.discard(staged);
            return Err(Full);
        }
        self.load(index);
        let mut dropped: Vec<Item> = Vec::new();
        let mut allotted: Vec<u32> = Vec::new();
        let mut grown = 0;
        if greeted {
            let arena = &self.arena;
            let (gone, kept): (Vec<Item>, Vec<Item>) = self
                .scratch
                .iter()
                .partition(|item| u32::from(arena.content(item.entry).kind) == KIND_STARTUP);
            dropped = gone;
            self.scratch = kept;
        }
        for change in &staged.changes {
            match change {
                Change::Put {
                    entry,
                    counters,
                    aux,
                } => {
                    let content = self.arena.content(*entry);
                    grown += bytes_of_item(content);
                    let found = self.find(content.kind, content.key);
                    let mut number = NO_COUNTER;
                    if let Some(counters) = counters {
                        if let Some(new) = self.counters.allot() {
                            self.control.set_counters(new, counters);
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
                        Ok(position) => {
                            dropped.push(std::mem::replace(&mut self.scratch[position], item));
                        }
                        Err(position) => self.scratch.insert(position, item),
                    }
                }
                Change::Delete { kind, key } => {
                    if let Ok(position) = self.find(*kind, key) {
                        dropped.push(self.scratch.remove(position));
                    }
                }
            }
        }
        let items = std::mem::take(&mut self.scratch);
        let (old_place, old_count) = self.arena.record_items(index);
        let stored = self
            .arena
            .store_items_instead(old_place, old_count as usize, &items);
        let count = items.len() as u32;
        let statements = self.statements(&items);
        self.scratch = items;
        let Ok(place) = stored else {
            for counter in allotted {
                self.counters.release(counter);
            }
            self.discard(staged);
            return Err(Full);
        };
        for item in dropped {
            grown -= bytes_of_item(self.arena.content(item.entry));
            self.counters.release(item.counter);
            self.arena.release(item.entry);
        }
        *staged = Staged::default();
        let version = self.version();
        self.arena
            .put_record_context(index, version, (place, count), statements, 0);
        Ok(grown)
    }

    fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    /// The context of a new session: `items` with a reference each, which the
    /// context takes over; its bytes. On `Full` the references are released.
    pub fn begin(&mut self, index: u32, mut items: Vec<Item>, flags: u32) -> Result<i64, Full> {
        let arena = &self.arena;
        items.sort_by(|one, other| {
            let [one, other] = [one, other].map(|item| arena.content(item.entry));
            match one.kind.cmp(&other.kind) {
                Ordering::Equal if u32::from(one.kind) != KIND_STARTUP => one.key.cmp(other.key),
                order => order,
            }
        });
        match self.arena.store_items(&items) {
            Ok(place) => {
                let version = self.version();
                let statements = self.statements(&items);
                let place = (place, items.len() as u32);
                self.arena
                    .put_record_context(index, version, place, statements, flags);
                let contents = items.iter().map(|item| self.arena.content(item.entry));
                Ok(contents.map(bytes_of_item).sum())
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
        self.arena.put_record_context(index, 0, (0, 0), 0..0, 0);
        match self.arena.replace_authenticated(index, 0) {
            0 => {}
            entry => self.arena.release(entry),
        }
    }

    /// How the client of session `index` has proved itself, for as long as that lives.
    pub fn put_authenticated(
        &mut self,
        index: u32,
        method: &[u8],
        identity: &[u8],
    ) -> Result<(), Full> {
        let entry = self.arena.intern(Content {
            kind: KIND_AUTHENTICATED as u16,
            key: method,
            value: identity,
        })?;
        self.arena.replace_authenticated(index, entry);
        Ok(())
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
    pub fn bytes(&self, index: u32) -> i64 {
        self.items(index)
            .map(|item| bytes_of_item(self.arena.content(item.entry)))
            .sum()
    }
}

/// What an item accounts for; baton_delta_growth (delta.c) does the same sum.
fn bytes_of_item(content: Content<'_>) -> i64 {
    i64::from(ITEM_SIZE + ENTRY_HEADER_SIZE) + (content.key.len() + content.value.len()) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::sys::memory::{self, SharedMapping};
    use std::os::fd::AsRawFd;

    fn contexts() -> Contexts {
        let bytes = 1 << 20;
        let memory = Box::leak(vec![0; bytes].into_boxed_slice());
        let control = memory::unsealed(1 << 16).unwrap();
        let mapping = SharedMapping::open(control.as_raw_fd()).unwrap();
        let control = Control {
            header: &mapping.slice(0, 1).unwrap()[0],
            secret: 0,
            backends: &[],
            pools: &[],
            sessions: &[],
            counters: &[],
            identities: &[],
            pids: &[],
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

    #[test]
    fn items_stand_by_kind_and_key_and_startup_items_as_they_came() {
        let mut contexts = contexts();
        let kinds = [
            (KIND_UNNAMED, "unnamed"),
            (KIND_STARTUP, "b"),
            (KIND_STATEMENT, "two"),
            (KIND_STARTUP, "a"),
            (KIND_STATEMENT, "one"),
            (KIND_STARTUP, "b"),
            (KIND_PARAMETER, "work_mem"),
        ];
        let items = kinds.map(|(kind, key)| Item {
            entry: contexts
                .arena
                .intern(Content {
                    kind: kind as u16,
                    key: key.as_bytes(),
                    value: b"",
                })
                .unwrap(),
            counter: NO_COUNTER,
            aux: 0,
        });
        contexts.begin(0, items.to_vec(), 0).unwrap();
        let keys: Vec<_> = shown(&contexts, 0)
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        assert_eq!(
            keys,
            ["b", "a", "b", "work_mem", "one", "two", "unnamed"].map(|key| key.as_bytes().to_vec())
        );
        contexts.load(0);
        let loaded = contexts.scratch.clone();
        assert_eq!(contexts.statements(&loaded), 4..6);
        contexts.end(0);
        assert_eq!(contexts.arena.entries(), 0);
    }

    #[test]
    fn who_stages_without_end_loses_what_he_has_staged_and_nobody_else_anything() {
        let mut contexts = contexts();
        contexts.arena.set_limit(1 << 18);
        for index in 0..2 {
            contexts.begin(index, Vec::new(), 0).unwrap();
        }
        let put = |contexts: &mut Contexts, staged: &mut Staged, key: &str, length: usize| {
            let (key, value) = (key.as_bytes(), vec![b'x'; length]);
            let content = Content {
                kind: KIND_PARAMETER as u16,
                key,
                value: &value,
            };
            contexts.stage_put(staged, content, None, 0);
        };
        let (mut endless, mut other) = (Staged::default(), Staged::default());
        for number in 0..10_000 {
            put(&mut contexts, &mut endless, &number.to_string(), 200);
            contexts.stage_delete(&mut endless, KIND_PARAMETER as u16, &[b'x'; 200]);
        }
        assert!(endless.changes.is_empty() && contexts.arena.used() < 1 << 18);
        put(&mut contexts, &mut other, "own", 5000);
        assert_eq!(contexts.apply(0, &mut endless, false), Err(Full));
        assert!(contexts.apply(1, &mut other, false).is_ok());
        assert_eq!(shown(&contexts, 1)[0].1.len(), 5000);
        // and what it stages then counts from nothing
        put(&mut contexts, &mut endless, "own", 5000);
        assert!(contexts.apply(0, &mut endless, false).is_ok());
    }

    /// The first session gets all changes at once, the second each by itself.
    #[test]
    fn many_changes_at_once_do_what_each_by_itself_does() {
        let mut contexts = contexts();
        for index in 0..2 {
            contexts.begin(index, Vec::new(), 0).unwrap();
        }
        let mut at_once = Staged::default();
        let mut grown = [0; 2];
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
                    contexts.stage_put(staged, content, None, 0);
                }
            }
            grown[1] += contexts.apply(1, &mut alone, false).unwrap();
            assert_eq!(grown[1], contexts.bytes(1));
        }
        grown[0] = contexts.apply(0, &mut at_once, false).unwrap();
        assert_eq!(grown, [contexts.bytes(0), contexts.bytes(1)]);
        assert!(!shown(&contexts, 0).is_empty());
        assert_eq!(shown(&contexts, 0), shown(&contexts, 1));
        contexts.end(0);
        contexts.end(1);
        assert_eq!(contexts.arena.entries(), 0);
    }
}
