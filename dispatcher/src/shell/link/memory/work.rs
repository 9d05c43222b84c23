//! The work on contexts whose amount grows with what one client has sent or owns. It is done a
//! slice per round: merging a long list of changes into a context, storing a long value, and
//! releasing what has ended.
//!
//! A unit is about one access to an entry, 100 to 250 nanoseconds.

use super::arena::{Arena, Full};
use super::bytes_of_item;
use super::context::{Change, Contexts, Sorted};
use super::control::{Control, CounterPool, NO_COUNTER};
use crate::shell::link::layout::Item;
use crate::shell::sys::memory::overwrite;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// Units of this work in one round: a millisecond at most.
pub const UNITS_A_ROUND: usize = 4096;
/// Units that are done at once, outside the rounds.
pub const UNITS_AT_ONCE: usize = 2048;
/// Bytes that are copied or overwritten for one unit.
const BYTES_A_UNIT: usize = 512;
/// Up to this many items are released at once.
const FEW: usize = 256;

/// The units that may still be used in one go. `taken` may exceed them slightly.
#[derive(Debug)]
pub struct Units {
    left: usize,
    taken: usize,
}

impl Units {
    pub fn new(left: usize) -> Units {
        Units { left, taken: 0 }
    }

    pub fn left(&self) -> usize {
        self.left
    }

    pub fn taken(&self) -> usize {
        self.taken
    }

    pub fn are_left(&self) -> bool {
        self.left > 0
    }

    pub fn take(&mut self, units: usize) {
        self.left = self.left.saturating_sub(units);
        self.taken += units;
    }
}

/// A long value that is being copied into the arena. `bytes` shrinks from its end.
pub struct Storing {
    pub entry: u32,
    pub bytes: Vec<u8>,
    pub from: usize,
}

impl Storing {
    /// Copies a piece. False: there are no units left.
    fn go_on(&mut self, arena: &mut Arena, units: &mut Units) -> bool {
        let most = units.left() * BYTES_A_UNIT;
        let begin = self.bytes.len().saturating_sub(most).max(self.from);
        let piece = &self.bytes[begin..];
        arena.write_value(self.entry, begin - self.from, piece);
        units.take(piece.len().div_ceil(BYTES_A_UNIT));
        cut_off(&mut self.bytes, begin);
        begin == self.from
    }
}

/// Overwrites what follows `end`, and gives its memory back. This happens piece by piece: doing
/// it for hundreds of megabytes at once takes milliseconds.
fn cut_off(bytes: &mut Vec<u8>, end: usize) {
    overwrite(&mut bytes[end..]);
    bytes.truncate(end);
    bytes.shrink_to_fit();
}

pub enum Task {
    Merge(Box<Merge>),
    Store(Storing),
}

/// The result of a task.
#[derive(Debug, PartialEq, Eq)]
pub enum Finished {
    /// The number of bytes by which the session's context has grown.
    Applied(Result<i64, Full>),
    /// The entry of the value.
    Stored(u32),
}

/// What is to be released.
pub enum Garbage {
    Items(Vec<Item>),
    /// The items of an array in the arena, of which `left` are left, and then the array itself.
    Array {
        place: u32,
        count: usize,
        left: usize,
    },
    Changes(Sorted),
    /// Bytes that belonged to a session, to be overwritten.
    Bytes(Vec<u8>),
}

/// All work that waits.
#[derive(Default)]
pub struct Work {
    /// Each task with its tag: the slot of the backend that it is done for.
    tasks: VecDeque<(u32, Task)>,
    garbage: Vec<Garbage>,
    /// Units used since the last `take_work`.
    taken: usize,
}

impl Contexts {
    /// Is there work to do even if no event arrives?
    pub fn has_work(&self) -> bool {
        !self.work.tasks.is_empty() || !self.work.garbage.is_empty() || self.arena.is_overwriting()
    }

    pub fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work.taken)
    }

    pub(super) fn count_work(&mut self, units: &Units) {
        self.work.taken += units.taken();
    }

    pub(super) fn begin_task(&mut self, tag: u32, task: Task) {
        self.work.tasks.push_back((tag, task));
    }

    /// Does a slice of work, once a round. Returns a task that is finished, with its tag. Tasks
    /// take turns, and leave units for releasing what has ended, because other sessions need
    /// its memory.
    pub fn go_on(&mut self) -> Option<(u32, Finished)> {
        let mut units = Units::new(UNITS_A_ROUND);
        let mut finished = None;
        if let Some((tag, task)) = self.work.tasks.pop_front() {
            let mut its = Units::new(UNITS_A_ROUND / 2);
            match self.task(task, &mut its) {
                Ok(done) => finished = Some((tag, done)),
                Err(task) => self.work.tasks.push_back((tag, task)),
            }
            units.take(its.taken());
        }
        self.let_go(&mut units);
        self.work.taken += units.taken();
        finished
    }

    /// Works on a task. Returns it if it is not finished.
    pub(super) fn task(&mut self, task: Task, units: &mut Units) -> Result<Finished, Task> {
        match task {
            Task::Merge(mut merge) => {
                let (arena, counters) = (&mut self.arena, &mut self.counters);
                match merge.go_on(arena, counters, &self.control, units) {
                    Ok(false) => Err(Task::Merge(merge)),
                    Ok(true) => Ok(Finished::Applied(Ok(self.merged(*merge)))),
                    Err(Full) => {
                        self.throw_away(merge.give_up());
                        Ok(Finished::Applied(Err(Full)))
                    }
                }
            }
            Task::Store(mut storing) => match storing.go_on(&mut self.arena, units) {
                true => Ok(Finished::Stored(storing.entry)),
                false => Err(Task::Store(storing)),
            },
        }
    }

    /// Cancels the task with this tag.
    pub fn cancel_task(&mut self, tag: u32) {
        let Some(at) = (self.work.tasks.iter()).position(|(its, _)| *its == tag) else {
            return;
        };
        match self.work.tasks.remove(at) {
            Some((_, Task::Merge(merge))) => {
                let remains = merge.give_up();
                self.throw_away(remains);
            }
            Some((_, Task::Store(storing))) => {
                self.arena.release(storing.entry);
                self.let_go_of(Garbage::Bytes(storing.bytes));
            }
            None => {}
        }
    }

    pub(super) fn throw_away(&mut self, remains: Remains) {
        self.release_change(remains.change);
        self.let_go_of(Garbage::Changes(remains.changes));
        self.let_go_of(Garbage::Items(remains.items));
        self.arena.release_items(remains.array.0, remains.array.1);
    }

    pub(super) fn release_change(&mut self, change: Option<Change>) {
        if let Some(entry) = change.and_then(|change| change.entry()) {
            self.arena.release(entry);
        }
    }

    /// Releases it, at once if it is little.
    pub(super) fn let_go_of(&mut self, garbage: Garbage) {
        let size = match &garbage {
            Garbage::Items(items) => items.len(),
            Garbage::Array { left, .. } => *left,
            Garbage::Changes(changes) => changes.size_hint().0,
            Garbage::Bytes(bytes) => bytes.len().div_ceil(BYTES_A_UNIT),
        };
        let mut units = Units::new(FEW + 1);
        match size <= FEW {
            true => {
                let _ = self.let_go_on(garbage, &mut units);
                self.count_work(&units);
            }
            false => self.work.garbage.push(garbage),
        }
    }

    fn let_go(&mut self, units: &mut Units) {
        while units.are_left() {
            if let Some(garbage) = self.work.garbage.pop() {
                if let Err(rest) = self.let_go_on(garbage, units) {
                    self.work.garbage.push(rest);
                }
                continue;
            }
            let bytes = self.arena.overwrite(units.left() * BYTES_A_UNIT);
            if bytes == 0 {
                return;
            }
            units.take(bytes.div_ceil(BYTES_A_UNIT));
        }
    }

    /// Releases a part, and returns the rest if there is one.
    fn let_go_on(&mut self, mut garbage: Garbage, units: &mut Units) -> Result<(), Garbage> {
        loop {
            let item = match &mut garbage {
                Garbage::Items(items) => items.pop(),
                Garbage::Array { place, count, left } => match left.checked_sub(1) {
                    Some(at) => {
                        *left = at;
                        Some(self.arena.item(*place, at))
                    }
                    None => {
                        self.arena.release_items(*place, *count);
                        None
                    }
                },
                Garbage::Changes(changes) => match changes.next() {
                    Some(change) => {
                        self.release_change(Some(change));
                        units.take(1);
                        if units.are_left() {
                            continue;
                        }
                        return Err(garbage);
                    }
                    None => None,
                },
                Garbage::Bytes(bytes) => {
                    let end = bytes.len().saturating_sub(units.left() * BYTES_A_UNIT);
                    units.take((bytes.len() - end).div_ceil(BYTES_A_UNIT));
                    cut_off(bytes, end);
                    return if end > 0 { Err(garbage) } else { Ok(()) };
                }
            };
            let Some(item) = item else {
                return Ok(());
            };
            self.counters.release(item.counter);
            self.arena.release(item.entry);
            units.take(1);
            if !units.are_left() {
                return Err(garbage);
            }
        }
    }
}

/// Creates the entry for a long value, which is the last `length` bytes of `bytes`.
pub(super) fn begin_storing(
    arena: &mut Arena,
    account: u32,
    (kind, key): (u16, &[u8]),
    length: usize,
    bytes: Vec<u8>,
) -> Result<Storing, Full> {
    let from = bytes.len() - length;
    let entry = arena.begin_long(account, kind, key, length)?;
    Ok(Storing { entry, bytes, from })
}

// ---- Merge ----------------------------------------------------------------
//
// Merges changes into a session's context, in slices.
//
// Context and changes are both sorted. The place of the next change is searched for from the
// last place on, and the items between are copied. The session's context does not change until
// the merge has succeeded.

/// Items that are copied for one unit.
const ITEMS_A_UNIT: usize = 16;

pub struct Merge {
    pub index: u32,
    /// Place and number of the old items.
    pub old: (u32, usize),
    /// The next old item.
    at: usize,
    next: Option<Change>,
    changes: Sorted,
    items: Vec<Item>,
    /// Old items that are not in the new context.
    dropped: Vec<Item>,
    /// New items, with a reference and a counter each.
    put: Vec<Item>,
    grown: i64,
    /// The new array, and the number of its items that are written.
    array: Option<(u32, usize)>,
}

/// What remains after a merge, or after one that was given up. It must be released.
pub struct Remains {
    pub items: Vec<Item>,
    pub change: Option<Change>,
    pub changes: Sorted,
    /// Place and number of items.
    pub array: (u32, usize),
}

impl Merge {
    /// The first `from` old items are dropped.
    pub fn new(arena: &Arena, index: u32, mut changes: Sorted, from: usize) -> Merge {
        let (place, count) = arena.record_items(index);
        let old = (place, count as usize);
        let gone: Vec<Item> = (0..from).map(|at| arena.item(place, at)).collect();
        Merge {
            index,
            old,
            at: from,
            items: Vec::with_capacity(old.1 - from + changes.size_hint().0),
            next: changes.next(),
            changes,
            grown: -gone.iter().map(|item| bytes_of(arena, item)).sum::<i64>(),
            dropped: gone,
            put: Vec::new(),
            array: None,
        }
    }

    /// Works on the merge. False: there are no units left.
    pub fn go_on(
        &mut self,
        arena: &mut Arena,
        counters: &mut CounterPool,
        control: &Control,
        units: &mut Units,
    ) -> Result<bool, Full> {
        while self.array.is_none() {
            if !units.are_left() {
                return Ok(false);
            }
            let Some(change) = &self.next else {
                if self.copy_up_to(self.old.1, arena, units) {
                    let account = arena.account(self.index);
                    self.array = Some((arena.allocate_items(account, self.items.len())?, 0));
                }
                continue;
            };
            units.take(1);
            let (upto, is_there) = self.find(arena, change, units);
            if !self.copy_up_to(upto, arena, units) {
                continue;
            }
            if is_there {
                let item = arena.item(self.old.0, self.at);
                self.grown -= bytes_of(arena, &item);
                self.dropped.push(item);
                self.at += 1;
            }
            if let Some(Change::Put {
                entry,
                counters: initial,
                aux,
            }) = std::mem::replace(&mut self.next, self.changes.next())
            {
                let counter = initial.and_then(|initial| {
                    let counter = counters.allot()?;
                    control.set_counters(counter, &initial);
                    Some(counter)
                });
                let item = Item {
                    entry,
                    counter: counter.unwrap_or(NO_COUNTER),
                    aux,
                };
                self.grown += bytes_of(arena, &item);
                self.put.push(item);
                self.items.push(item);
            }
        }
        while let Some((place, written)) = &mut self.array {
            if *written == self.items.len() {
                break;
            }
            if !units.are_left() {
                return Ok(false);
            }
            let end = self.items.len().min(*written + units.left() * ITEMS_A_UNIT);
            arena.write_items(*place, *written, &self.items[*written..end]);
            units.take((end - *written).div_ceil(ITEMS_A_UNIT));
            *written = end;
        }
        Ok(true)
    }

    /// The place of this change among the old items, and whether an item with its key is there.
    fn find(&self, arena: &Arena, change: &Change, units: &mut Units) -> (usize, bool) {
        let wanted = change.place(arena);
        let mut order = |at: usize| {
            units.take(1);
            let content = arena.content(arena.item(self.old.0, at).entry);
            (content.kind, content.key).cmp(&wanted)
        };
        // In growing steps from the last place, then by bisection between the last two steps.
        let (mut low, mut high, mut step) = (self.at, self.at, 1);
        while high < self.old.1 && order(high) == Ordering::Less {
            low = high + 1;
            high += step;
            step *= 2;
        }
        high = high.min(self.old.1);
        while low < high {
            let middle = low + (high - low) / 2;
            match order(middle) {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        (low, low < self.old.1 && order(low) == Ordering::Equal)
    }

    /// Copies old items up to there. False: not all of them were copied.
    fn copy_up_to(&mut self, upto: usize, arena: &Arena, units: &mut Units) -> bool {
        let end = upto.min(self.at + units.left() * ITEMS_A_UNIT);
        units.take((end - self.at).div_ceil(ITEMS_A_UNIT));
        let place = self.old.0;
        (self.items).extend((self.at..end).map(|at| arena.item(place, at)));
        self.at = end;
        end == upto
    }

    /// The new items, their place, the bytes by which the context has grown, and what remains.
    pub fn finish(self) -> (Vec<Item>, u32, i64, Remains) {
        let place = self.array.map_or(0, |(place, _)| place);
        let remains = Remains {
            items: self.dropped,
            change: None,
            changes: self.changes,
            array: self.old,
        };
        (self.items, place, self.grown, remains)
    }

    /// Gives the merge up. Returns what remains.
    pub fn give_up(self) -> Remains {
        let array = self.array.map_or(0, |(place, _)| place);
        let count = if array == 0 { 0 } else { self.items.len() };
        Remains {
            items: self.put,
            change: self.next,
            changes: self.changes,
            array: (array, count),
        }
    }
}

fn bytes_of(arena: &Arena, item: &Item) -> i64 {
    bytes_of_item(arena.content(item.entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::link::layout::shared::*;
    use crate::shell::link::memory::arena::Content;
    use crate::shell::link::memory::context::tests::{contexts_of, shown};
    use crate::shell::link::memory::context::Staged;

    const TAG: u32 = 5;
    const MANY: u32 = 50_000;

    fn stage(contexts: &mut Contexts, staged: &mut Staged, number: u32, puts: bool) {
        let key = number.to_be_bytes();
        if !puts {
            return contexts.stage_delete(staged, KIND_STATEMENT as u16, &key);
        }
        let content = Content {
            kind: KIND_STATEMENT as u16,
            key: &key,
            value: b"a statement",
        };
        contexts.stage_put(staged, content, None, 0);
    }

    /// Runs rounds until a task is finished; returns their number and its result. No round may
    /// be long.
    fn rounds(contexts: &mut Contexts) -> (usize, Option<Finished>) {
        let mut rounds = 0;
        while contexts.has_work() {
            rounds += 1;
            contexts.take_work();
            let finished = contexts.go_on();
            let work = contexts.take_work();
            assert!(work <= UNITS_A_ROUND + 100, "{work} in one round");
            if let Some((tag, finished)) = finished {
                assert_eq!(tag, TAG);
                return (rounds, Some(finished));
            }
        }
        (rounds, None)
    }

    fn apply_later(contexts: &mut Contexts, staged: &mut Staged) {
        contexts.take_work();
        assert_eq!(contexts.apply(0, staged, false, TAG), None);
        assert!(contexts.take_work() <= UNITS_AT_ONCE + 100);
    }

    #[test]
    fn changes_without_end_are_applied_and_let_go_of_in_slices() {
        let mut contexts = contexts_of(1 << 24);
        contexts.begin(0, Vec::new(), 0).unwrap();
        let mut staged = Staged::default();
        for number in (0..MANY).rev() {
            stage(&mut contexts, &mut staged, number, true);
            assert!(contexts.take_work() <= UNITS_AT_ONCE);
        }
        apply_later(&mut contexts, &mut staged);
        assert!(shown(&contexts, 0).is_empty());
        let (count, finished) = rounds(&mut contexts);
        assert!(count > 10, "{count} rounds");
        assert_eq!(finished, Some(Finished::Applied(Ok(contexts.bytes(0)))));
        let keys: Vec<Vec<u8>> = shown(&contexts, 0).into_iter().map(|it| it.0).collect();
        let wanted: Vec<Vec<u8>> = (0..MANY).map(|it| it.to_be_bytes().to_vec()).collect();
        assert!(keys == wanted);
        assert_eq!(contexts.arena.record_statements(0), 0..MANY as usize);

        for number in (0..MANY).step_by(2) {
            stage(&mut contexts, &mut staged, number, false);
        }
        apply_later(&mut contexts, &mut staged);
        assert!(matches!(rounds(&mut contexts).1, Some(Finished::Applied(Ok(grown))) if grown < 0));
        assert_eq!(shown(&contexts, 0).len(), MANY as usize / 2);
        assert_eq!(rounds(&mut contexts).1, None);
        assert_eq!(contexts.arena.entries(), MANY as usize / 2);

        contexts.end(0);
        assert!(contexts.take_work() <= UNITS_AT_ONCE);
        let (count, _) = rounds(&mut contexts);
        assert!(count > 5, "{count} rounds");
        assert_eq!((contexts.arena.entries(), contexts.arena.used()), (0, 0));
    }

    /// The cost of replacing an item does not grow with the context.
    #[test]
    fn one_item_of_very_many_is_replaced_at_once() {
        let mut contexts = contexts_of(1 << 24);
        contexts.begin(0, Vec::new(), 0).unwrap();
        let mut staged = Staged::default();
        (0..MANY).for_each(|number| stage(&mut contexts, &mut staged, number, true));
        apply_later(&mut contexts, &mut staged);
        while contexts.has_work() {
            contexts.go_on();
        }
        let content = Content {
            kind: KIND_STATEMENT as u16,
            key: &7_u32.to_be_bytes(),
            value: b"longer than before",
        };
        contexts.stage_put(&mut staged, content, None, 0);
        assert_eq!(contexts.apply(0, &mut staged, false, TAG), Some(Ok(7)));
        assert_eq!(shown(&contexts, 0)[7].1, content.value);
        assert_eq!(contexts.arena.entries(), MANY as usize);
    }

    #[test]
    fn task_cancelled_half_way_changes_nothing_and_leaves_nothing() {
        for done in [0, 3, 11] {
            let mut contexts = contexts_of(1 << 24);
            contexts.begin(0, Vec::new(), 0).unwrap();
            let mut staged = Staged::default();
            stage(&mut contexts, &mut staged, MANY, true);
            assert!(contexts.apply(0, &mut staged, false, TAG).is_some());
            (0..MANY).for_each(|number| stage(&mut contexts, &mut staged, number, true));
            apply_later(&mut contexts, &mut staged);
            for _ in 0..done {
                assert_eq!(contexts.go_on(), None);
            }
            contexts.cancel_task(TAG);
            assert_eq!(rounds(&mut contexts).1, None);
            assert_eq!(shown(&contexts, 0).len(), 1);
            assert_eq!(contexts.arena.entries(), 1);
            contexts.end(0);
            assert_eq!(contexts.arena.used(), 0);
        }
    }

    #[test]
    fn a_long_value_comes_and_goes_in_slices() {
        let mut contexts = contexts_of(1 << 25);
        contexts.begin(0, Vec::new(), 0).unwrap();
        let value: Vec<u8> = (0..9_u32 << 20).map(|at| (at % 251) as u8).collect();
        let item = (KIND_PARAMETER as u16, &b"a.b"[..]);
        let mut staged = Staged::default();
        for is_cancelled in [true, false] {
            let payload = [b"before", value.as_slice()].concat();
            let stored = contexts.store(&mut staged, item, value.len(), payload, TAG);
            assert!(stored && contexts.go_on().is_none());
            if is_cancelled {
                contexts.cancel_task(TAG);
                assert!(rounds(&mut contexts).0 > 2);
                assert_eq!(contexts.arena.used(), 0);
            }
        }
        let (count, finished) = rounds(&mut contexts);
        assert!(count > 2, "{count} rounds");
        let Some(Finished::Stored(entry)) = finished else {
            panic!("{finished:?}");
        };
        contexts.stage_stored(&mut staged, entry, None, 0);
        assert!(contexts.apply(0, &mut staged, false, TAG).is_some());
        assert!(shown(&contexts, 0) == [(b"a.b".to_vec(), value)]);
        contexts.end(0);
        assert!(rounds(&mut contexts).0 > 2);
        assert_eq!((contexts.arena.entries(), contexts.arena.used()), (0, 0));
    }
}
