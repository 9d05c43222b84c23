//! The ARENA of a dispatcher that has ended, as another one reads it.
//!
//! The dispatcher may have ended in the middle of any change. What is read here is complete if no
//! backend's message about the session was under way (`told` and `heard` of its identity); all
//! places are checked none the less.

use super::arena::Content;
use crate::shell::link::layout::shared::*;
use crate::shell::link::layout::{ArenaHeader, Item, SessionRecord};
use crate::shell::sys::memory::value_of;

/// Heap offsets count units of this many bytes.
const UNIT: usize = 8;

pub struct Contexts<'a> {
    memory: &'a [u8],
    records: usize,
    slots: u32,
}

impl<'a> Contexts<'a> {
    /// None if that is not an ARENA of this layout.
    pub fn of(memory: &'a [u8]) -> Option<Contexts<'a>> {
        let header: ArenaHeader = value_of(memory.get(..size_of::<ArenaHeader>())?);
        let is_known = header.magic == MAGIC && header.layout_version == LAYOUT_VERSION;
        is_known.then_some(Contexts {
            memory,
            records: usize::try_from(header.session_offset).ok()?,
            slots: header.session_slots,
        })
    }

    fn get<T: Copy>(&self, at: usize) -> Option<T> {
        let end = at.checked_add(size_of::<T>())?;
        Some(value_of(self.memory.get(at..end)?))
    }

    pub fn record(&self, index: u32) -> Option<SessionRecord> {
        let at = self.records + index as usize * size_of::<SessionRecord>();
        self.get(at).filter(|_| index < self.slots)
    }

    /// The entry at that place.
    pub fn content(&self, entry: u32) -> Option<Content<'a>> {
        let at = entry as usize * UNIT;
        let header: Entry = self.get(at).filter(|_| entry != 0)?;
        let key = at + size_of::<Entry>();
        let value = key + usize::from(header.key_length);
        Some(Content {
            kind: header.kind,
            key: self.memory.get(key..value)?,
            value: self
                .memory
                .get(value..value + header.value_length as usize)?,
        })
    }

    /// The items of a session.
    pub fn items(&self, record: &SessionRecord) -> Option<Vec<(Item, Content<'a>)>> {
        let at = |number: usize| record.items as usize * UNIT + number * size_of::<Item>();
        (0..record.item_count as usize)
            .map(|number| {
                let item: Item = self.get(at(number))?;
                Some((item, self.content(item.entry)?))
            })
            .collect()
    }
}
