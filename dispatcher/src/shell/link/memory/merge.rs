//! A session's context and the changes that it gets, made one new context, in slices.
//!
//! Both are sorted, so this is a merge: where the next change belongs is searched from
//! the last place on, and what lies between is copied. Nothing of the session's changes
//! before all has succeeded.

use super::arena::{Arena, Full};
use super::bytes_of_item;
use super::control::{Control, CounterPool, NO_COUNTER};
use super::staged::{Change, Sorted};
use super::work::Units;
use crate::shell::link::layout::Item;
use std::cmp::Ordering;

/// Items that are copied for one unit.
const ITEMS_A_UNIT: usize = 16;

pub struct Merge {
    pub index: u32,
    /// Where the items of before are, and how many.
    pub old: (u32, usize),
    /// The next one of them.
    at: usize,
    next: Option<Change>,
    changes: Sorted,
    items: Vec<Item>,
    /// Of before, and not in the new context.
    dropped: Vec<Item>,
    /// New ones, with a reference and a counter each.
    put: Vec<Item>,
    grown: i64,
    /// The new array, and how much of it has been written.
    array: Option<(u32, usize)>,
}

/// What is left of one that is over: in either case to be released.
pub struct Remains {
    pub items: Vec<Item>,
    pub change: Option<Change>,
    pub changes: Sorted,
    /// Place and number of items.
    pub array: (u32, usize),
}

impl Merge {
    /// `from`: the items before that one go.
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

    /// Goes on. False: there are no units left.
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

    /// Where this change belongs among the items of before, and whether that is there.
    fn find(&self, arena: &Arena, change: &Change, units: &mut Units) -> (usize, bool) {
        let wanted = change.place(arena);
        let mut order = |at: usize| {
            units.take(1);
            let content = arena.content(arena.item(self.old.0, at).entry);
            (content.kind, content.key).cmp(&wanted)
        };
        // Ever further from the last place, then between the last two looks.
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

    /// False: not all of them.
    fn copy_up_to(&mut self, upto: usize, arena: &Arena, units: &mut Units) -> bool {
        let end = upto.min(self.at + units.left() * ITEMS_A_UNIT);
        units.take((end - self.at).div_ceil(ITEMS_A_UNIT));
        let place = self.old.0;
        (self.items).extend((self.at..end).map(|at| arena.item(place, at)));
        self.at = end;
        end == upto
    }

    /// The new items, where they are, and by how many bytes the context has grown; and
    /// what is left.
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

    /// It comes to nothing.
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
