//! Session contexts at rest, and the changes that a backend has staged.
//!
//! A context is a list of items in the arena; the session's record refers to it. Backends send
//! changes, which are *staged*: each entry is interned at once, so its bytes need not be kept.
//! They become the session's context together, when the session is given back or has been
//! greeted. The [`Staged`] list owns the references to its entries; [`Contexts::apply`] hands
//! them to the context.
//!
//! Items are sorted by kind and key, so the dispatcher finds an item without a scan, and so
//! does a backend that needs one statement of a thousand. STARTUP items keep the order in which
//! they came: they are applied in that order, and are not searched for by bisection.
//!
//! What a client sends may have any size. Work that takes more than a moment is done in slices
//! ([`super::work`]).
//!
//! Each change gives the record a version that no context had before.

use super::arena::{Arena, Content, Full, SHARED_MOST};
use super::bytes_of_item;
use super::control::{Control, CounterPool, NO_COUNTER};
use super::work::{begin_storing, Finished, Garbage, Merge, Task, Units, Work, UNITS_AT_ONCE};
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::Item;
use crate::shell::link::wire::Counters;
use std::cmp::Ordering;
use std::collections::{btree_map, BTreeMap};
use std::ops::Range;

/// Bytes that a change takes beside its key and value.
const CHANGE_BYTES: usize = size_of::<Change>() + size_of::<Item>() + size_of::<Entry>();
/// Bytes that each backend may stage while half of the heap's headroom is used. The rest is for
/// changes of other backends that are under way.
const UNDER_WAY_MOST: usize = 1 << 20;
/// A value longer than this is stored in slices.
const LONG: usize = 1 << 20;
const _: () = assert!(LONG > SHARED_MOST);

/// All contexts. Owns the arena and the statement counters.
pub struct Contexts {
    pub arena: Arena,
    pub(super) counters: CounterPool,
    pub(super) control: Control,
    pub(super) work: Work,
    next_version: u64,
    /// Bytes that each session's context accounts for, by session index.
    sizes: Vec<i64>,
}

impl Contexts {
    pub fn new(arena: Arena, control: Control, version_base: u64) -> Contexts {
        Contexts {
            arena,
            counters: CounterPool::new(control.counters.len() as u32),
            control,
            work: Work::default(),
            next_version: version_base,
            sizes: Vec::new(),
        }
    }

    /// Accounts for a change of this size. A backend that stages more than all contexts may
    /// take, or that stages much while memory is scarce, loses what it has staged: staged
    /// changes are not yet a context, and must not take room from other sessions. False: the
    /// change must not be kept.
    fn may_stage(&mut self, staged: &mut Staged, bytes: usize) -> bool {
        staged.bytes += CHANGE_BYTES + bytes;
        let (used, limit) = (self.arena.used(), self.arena.limit());
        // Half of the headroom is used.
        let is_scarce = used > limit + self.arena.capacity().saturating_sub(limit) / 2;
        let most = if is_scarce {
            UNDER_WAY_MOST
        } else {
            limit.max(UNDER_WAY_MOST)
        };
        if staged.bytes > most {
            self.stage_too_much(staged);
        }
        !staged.overflow
    }

    /// Drops what is staged, because a change is larger than anything that could be stored.
    pub fn stage_too_much(&mut self, staged: &mut Staged) {
        let session = staged.session;
        self.discard(staged);
        staged.session = session;
        staged.overflow = true;
    }

    /// The longest value, in bytes, that could be stored.
    pub fn longest_value(&self) -> usize {
        self.arena.limit().max(UNDER_WAY_MOST)
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
        let account = self.arena.account(staged.session as u32);
        match self.arena.intern(account, content) {
            Ok(entry) => self.stage(
                staged,
                Change::Put {
                    entry,
                    counters,
                    aux,
                },
            ),
            Err(Full) => staged.overflow = true,
        }
    }

    fn stage(&mut self, staged: &mut Staged, change: Change) {
        for superseded in staged.changes.push(change, &self.arena) {
            self.release_change(Some(superseded));
        }
    }

    /// Must a value of `length` bytes be stored in slices (`store`)?
    pub fn is_long(length: usize) -> bool {
        length > LONG
    }

    /// Begins to store a long value, which is the last `length` bytes of `bytes`, for `tag`.
    /// `stage_stored` follows. False: the value is not kept, and nothing follows.
    pub fn store(
        &mut self,
        staged: &mut Staged,
        (kind, key): (u16, &[u8]),
        length: usize,
        bytes: Vec<u8>,
        tag: u32,
    ) -> bool {
        if !self.may_stage(staged, key.len() + length) {
            self.let_go_of(Garbage::Bytes(bytes));
            return false;
        }
        let account = self.arena.account(staged.session as u32);
        match begin_storing(&mut self.arena, account, (kind, key), length, bytes) {
            Ok(storing) => self.begin_task(tag, Task::Store(storing)),
            Err(Full) => staged.overflow = true,
        }
        !staged.overflow
    }

    /// Stages a PUT of a value that has been stored.
    pub fn stage_stored(
        &mut self,
        staged: &mut Staged,
        entry: u32,
        counters: Option<Counters>,
        aux: i64,
    ) {
        let change = Change::Put {
            entry,
            counters,
            aux,
        };
        match staged.overflow {
            true => self.release_change(Some(change)),
            false => self.stage(staged, change),
        }
    }

    /// Stages a DELETE.
    pub fn stage_delete(&mut self, staged: &mut Staged, kind: u16, key: &[u8]) {
        if !self.may_stage(staged, key.len()) {
            return;
        }
        let key = key.into();
        self.stage(staged, Change::Delete { kind, key });
    }

    /// Drops what is staged.
    pub fn discard(&mut self, staged: &mut Staged) {
        let changes = std::mem::take(staged).changes;
        self.let_go_of(Garbage::Changes(changes.into_any_order()));
    }

    /// The range of statements among `count` sorted items, given the kind of each.
    fn statements<'a>(count: usize, kind_of: impl Fn(usize) -> u16 + 'a) -> Range<usize> {
        let from = |kind: u32| partition_point(count, |at| u32::from(kind_of(at)) < kind);
        from(KIND_STATEMENT)..from(KIND_STATEMENT + 1)
    }

    /// Makes what is staged part of the context of session `index`. Returns the number of bytes
    /// by which it has grown; on `Full` the context has not changed. If `greeted`, the STARTUP
    /// items are dropped. None: the work goes on in slices, and `go_on` returns `tag` when it
    /// is done. Until then nothing else may be applied to this session or by this tag.
    pub fn apply(
        &mut self,
        index: u32,
        staged: &mut Staged,
        greeted: bool,
        tag: u32,
    ) -> Option<Result<i64, Full>> {
        if staged.overflow {
            self.discard(staged);
            return Some(Err(Full));
        }
        let changes = std::mem::take(staged).changes;
        let (sorted, superseded) = changes.sort(&self.arena);
        for change in superseded {
            self.release_change(Some(change));
        }
        if !greeted {
            if let Some(grown) = self.replace(index, &sorted) {
                return Some(Ok(grown));
            }
        }
        let from = match greeted {
            true => self.startup_items(index),
            false => 0,
        };
        let merge = Merge::new(&self.arena, index, sorted, from);
        let mut units = Units::new(UNITS_AT_ONCE);
        let task = self.task(Task::Merge(Box::new(merge)), &mut units);
        self.count_work(&units);
        match task {
            Ok(Finished::Applied(result)) => Some(result),
            Ok(Finished::Stored(_)) => None,
            Err(task) => {
                self.begin_task(tag, task);
                None
            }
        }
    }

    /// The number of STARTUP items, which come first.
    fn startup_items(&self, index: u32) -> usize {
        let (place, count) = self.arena.record_items(index);
        let kind = |at| self.arena.content(self.arena.item(place, at).entry).kind;
        partition_point(count as usize, |at| u32::from(kind(at)) <= KIND_STARTUP)
    }

    /// The position of the item with that kind and key.
    fn find(&self, index: u32, kind: u16, key: &[u8]) -> Option<usize> {
        let (place, count) = self.arena.record_items(index);
        let content = |at| self.arena.content(self.arena.item(place, at).entry);
        let at = partition_point(count as usize, |at| {
            let content = content(at);
            (content.kind, content.key) < (kind, key)
        });
        let is_it = |at| {
            let content = content(at);
            (content.kind, content.key) == (kind, key)
        };
        (at < count as usize && is_it(at)).then_some(at)
    }

    /// Applies a few changes that only replace existing items: no item moves, however many
    /// there are. None if that does not suffice.
    fn replace(&mut self, index: u32, changes: &Sorted) -> Option<i64> {
        let changes = changes.as_slice()?;
        let found = changes.iter().map(|change| {
            change.entry()?;
            let (kind, key) = change.place(&self.arena);
            self.find(index, kind, key)
        });
        let places: Vec<usize> = found.collect::<Option<_>>()?;
        let (place, count) = self.arena.record_items(index);
        let mut grown = 0;
        for (change, at) in changes.iter().zip(places) {
            let Change::Put {
                entry,
                counters,
                aux,
            } = change
            else {
                continue;
            };
            let before = self.arena.item(place, at);
            let bytes = |entry| bytes_of_item(self.arena.content(entry));
            grown += bytes(*entry) - bytes(before.entry);
            let item = Item {
                entry: *entry,
                counter: self.allot_counter(counters.as_ref()),
                aux: *aux,
            };
            self.arena.write_items(place, at, &[item]);
            self.counters.release(before.counter);
            self.arena.release(before.entry);
        }
        let statements = self.arena.record_statements(index);
        self.put_context(index, (place, count), statements, grown, 0);
        Some(grown)
    }

    /// A statement counter with these values; NO_COUNTER without values, or if none is left.
    pub fn allot_counter(&mut self, counters: Option<&Counters>) -> u32 {
        let Some(counters) = counters else {
            return NO_COUNTER;
        };
        let number = self.counters.allot();
        if let Some(number) = number {
            self.control.set_counters(number, counters);
        }
        number.unwrap_or(NO_COUNTER)
    }

    /// A merge has succeeded.
    pub(super) fn merged(&mut self, merge: Merge) -> i64 {
        let index = merge.index;
        let (items, place, grown, remains) = merge.finish();
        let kind = |at: usize| self.arena.content(items[at].entry).kind;
        let statements = Self::statements(items.len(), kind);
        self.put_context(index, (place, items.len() as u32), statements, grown, 0);
        self.throw_away(remains);
        grown
    }

    fn put_context(
        &mut self,
        index: u32,
        items: (u32, u32),
        statements: Range<usize>,
        grown: i64,
        flags: u32,
    ) {
        self.next_version += 1;
        let version = self.next_version;
        (self.arena).put_record_context(index, version, items, statements, flags);
        if self.sizes.len() <= index as usize {
            self.sizes.resize(index as usize + 1, 0);
        }
        self.sizes[index as usize] += grown;
    }

    /// Stores the context of a new session and returns its bytes. The context takes over one
    /// reference for each of `items`. On `Full` these references are released.
    pub fn begin(&mut self, index: u32, mut items: Vec<Item>, flags: u32) -> Result<i64, Full> {
        let arena = &self.arena;
        items.sort_by(|one, other| {
            let [one, other] = [one, other].map(|item| arena.content(item.entry));
            match one.kind.cmp(&other.kind) {
                Ordering::Equal if u32::from(one.kind) != KIND_STARTUP => one.key.cmp(other.key),
                order => order,
            }
        });
        let account = self.arena.account(index);
        match self.arena.allocate_items(account, items.len()) {
            Ok(place) => {
                self.arena.write_items(place, 0, &items);
                let content = |at: usize| self.arena.content(items[at].entry);
                let statements = Self::statements(items.len(), |at| content(at).kind);
                let bytes = (0..items.len()).map(|at| bytes_of_item(content(at))).sum();
                let place = (place, items.len() as u32);
                self.put_context(index, place, statements, bytes, flags);
                Ok(bytes)
            }
            Err(Full) => {
                items.iter().for_each(|item| self.arena.release(item.entry));
                Err(Full)
            }
        }
    }

    /// The session has ended. The caller cancels its task, if there is one.
    pub fn end(&mut self, index: u32) {
        let (place, count) = self.arena.record_items(index);
        let count = count as usize;
        self.arena.put_record_context(index, 0, (0, 0), 0..0, 0);
        self.let_go_of(Garbage::Array {
            place,
            count,
            left: count,
        });
        if let Some(bytes) = self.sizes.get_mut(index as usize) {
            *bytes = 0;
        }
        let entries = [
            self.arena.replace_authenticated(index, 0),
            self.arena.replace_tenant(index, 0),
        ];
        for entry in entries.into_iter().filter(|entry| *entry != 0) {
            self.arena.release(entry);
        }
    }

    /// Stores how the client of session `index` was authenticated, for the life of the session.
    pub fn put_authenticated(
        &mut self,
        index: u32,
        method: &[u8],
        identity: &[u8],
    ) -> Result<(), Full> {
        let content = Content {
            kind: KIND_AUTHENTICATED as u16,
            key: method,
            value: identity,
        };
        let entry = self.arena.intern(self.arena.account(index), content)?;
        self.arena.replace_authenticated(index, entry);
        Ok(())
    }

    /// Stores of which tenant session `index` is, for the life of the session.
    pub fn put_tenant(&mut self, index: u32, value: &[u8]) -> Result<(), Full> {
        let content = Content {
            kind: KIND_TENANT as u16,
            key: b"",
            value,
        };
        let entry = self.arena.intern(self.arena.account(index), content)?;
        self.arena.replace_tenant(index, entry);
        Ok(())
    }

    /// The items of a session.
    pub fn items(&self, index: u32) -> impl Iterator<Item = Item> + '_ {
        let (place, count) = self.arena.record_items(index);
        (0..count as usize).map(move |position| self.arena.item(place, position))
    }

    /// The value of an item of a session.
    pub fn value(&self, index: u32, kind: u32, key: &[u8]) -> Option<&[u8]> {
        let (place, _) = self.arena.record_items(index);
        let content = |at| self.arena.content(self.arena.item(place, at).entry);
        if kind != KIND_STARTUP {
            let at = self.find(index, kind as u16, key)?;
            return Some(content(at).value);
        }
        (0..self.startup_items(index))
            .map(content)
            .find(|content| content.key.eq_ignore_ascii_case(key))
            .map(|content| content.value)
    }

    /// The bytes that a session's context accounts for.
    pub fn bytes(&self, index: u32) -> i64 {
        self.sizes.get(index as usize).copied().unwrap_or(0)
    }
}

/// The number of elements, of `count` that are sorted by `is_before`, for which it is true.
fn partition_point(count: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match is_before(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

// ---- Staged changes -------------------------------------------------------
//
// The changes of a session's context that a backend has sent and not yet completed. They become
// the context together.
//
// From its 257th change on a list is kept sorted. Then only a merge ([`super::work`]) is left
// at the end, and a session that changes one item again and again does not accumulate changes.

/// One change that waits to be applied.
#[derive(Debug)]
pub enum Change {
    /// Owns a reference to the entry.
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

/// Up to this many changes stand in the order in which they came.
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

    /// Adds a change. Returns the changes that it supersedes.
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

    /// Sorts by kind and key and keeps the last change of each. Also returns the superseded
    /// ones.
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

    /// The changes in any order, to be released.
    pub fn into_any_order(self) -> Sorted {
        match self.many.is_empty() {
            true => Sorted::Few(self.few.into_iter()),
            false => Sorted::Many(self.many.into_values()),
        }
    }
}

/// The changes that are left to apply.
#[derive(Debug)]
pub enum Sorted {
    Few(std::vec::IntoIter<Change>),
    Many(btree_map::IntoValues<(u16, Box<[u8]>), Change>),
}

impl Sorted {
    /// The changes, if they are few.
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

/// The changes that a backend has staged.
#[derive(Debug, Default)]
pub struct Staged {
    pub session: u64,
    pub(super) changes: Changes,
    /// Bytes that the changes took, even where they share entries with other sessions.
    pub(super) bytes: usize,
    /// A change did not fit, so the changes must not be applied.
    pub(super) overflow: bool,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::shell::sys::memory::{self, SharedMapping};
    use std::os::fd::AsRawFd;

    fn contexts() -> Contexts {
        contexts_of(1 << 20)
    }

    pub fn contexts_of(bytes: usize) -> Contexts {
        let memory = Box::leak(vec![0; bytes].into_boxed_slice());
        let control = memory::words(1 << 16).unwrap();
        let mapping = SharedMapping::open(control.as_raw_fd()).unwrap();
        let control = Control {
            header: &mapping.slice(0, 1).unwrap()[0],
            secret: 0,
            backends: &[],
            pools: &[],
            tenants: &[],
            sessions: &[],
            counters: &[],
            identities: &[],
            totals: &[],
            tallies: &[],
            pids: &[],
        };
        Contexts::new(Arena::new(memory, 2, bytes, 1), control, 0)
    }

    pub fn shown(contexts: &Contexts, index: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
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
                .intern(
                    1,
                    Content {
                        kind: kind as u16,
                        key: key.as_bytes(),
                        value: b"",
                    },
                )
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
        assert_eq!(contexts.arena.record_statements(0), 4..6);
        contexts.end(0);
        assert_eq!(contexts.arena.entries(), 0);
    }

    #[test]
    fn session_that_stages_without_end_loses_only_what_it_staged() {
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
        while contexts.has_work() {
            contexts.go_on();
        }
        assert!(endless.changes.len() == 0 && contexts.arena.used() < 1 << 18);
        put(&mut contexts, &mut other, "own", 5000);
        assert_eq!(
            contexts.apply(0, &mut endless, false, 0).unwrap(),
            Err(Full)
        );
        assert!(contexts.apply(1, &mut other, false, 0).unwrap().is_ok());
        assert_eq!(shown(&contexts, 1)[0].1.len(), 5000);
        // What it stages afterwards counts from zero.
        put(&mut contexts, &mut endless, "own", 5000);
        assert!(contexts.apply(0, &mut endless, false, 0).unwrap().is_ok());
    }

    /// The first session gets all changes at once, the second each one separately.
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
            grown[1] += contexts.apply(1, &mut alone, false, 0).unwrap().unwrap();
            assert_eq!(grown[1], contexts.bytes(1));
        }
        grown[0] = contexts.apply(0, &mut at_once, false, 0).unwrap().unwrap();
        assert_eq!(grown, [contexts.bytes(0), contexts.bytes(1)]);
        assert!(!shown(&contexts, 0).is_empty());
        assert_eq!(shown(&contexts, 0), shown(&contexts, 1));
        contexts.end(0);
        contexts.end(1);
        assert_eq!(contexts.arena.entries(), 0);
    }
}
