//! What an event of the epoll is about.
//!
//! An event's data is either a session id (generation in the upper half, never
//! 0) or, with an empty upper half, a [`Source`] and a number.

/// What an event that is no session's is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Source {
    Listener = 1,
    ControlListener,
    Control,
    Login,
    Opening,
    Queue,
    Postmaster,
    PidFile,
    Signals,
    Jobs,
    Errand,
    Wake,
    /// Another thread's epoll has events.
    Sessions,
}

const SOURCES: [Source; 13] = [
    Source::Listener,
    Source::ControlListener,
    Source::Control,
    Source::Login,
    Source::Opening,
    Source::Queue,
    Source::Postmaster,
    Source::PidFile,
    Source::Signals,
    Source::Jobs,
    Source::Errand,
    Source::Wake,
    Source::Sessions,
];
const NUMBER_BITS: u32 = 24;

/// Event data of a source; numbers are below 2^24.
pub fn token(source: Source, number: u32) -> u64 {
    debug_assert!(number < 1 << NUMBER_BITS);
    u64::from(((source as u32) << NUMBER_BITS) | number)
}

/// The other way; None if it is a session's, or nobody's.
pub fn source_of(data: u64) -> Option<(Source, u32)> {
    let word = u32::try_from(data).ok()?;
    let source = SOURCES.get((word >> NUMBER_BITS).checked_sub(1)? as usize)?;
    Some((*source, word & ((1 << NUMBER_BITS) - 1)))
}

// ---- Slab -----------------------------------------------------------------
//
// A table whose entries keep their number. Freed numbers are used again, so
// whoever keeps a number across time compares a serial as well.

/// The table; at most `limit` entries.
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slab<T> {
    pub fn new(limit: usize) -> Slab<T> {
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
            limit,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// All are below this.
    pub fn numbers(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    /// The number of the new entry; None if the table is full.
    pub fn insert(&mut self, entry: T) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            self.entries[number as usize] = Some(entry);
            return Some(number);
        }
        if self.entries.len() >= self.limit {
            return None;
        }
        self.entries.push(Some(entry));
        Some(self.entries.len() as u32 - 1)
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(number, entry)| Some((number as u32, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_taken_for_sessions() {
        for source in SOURCES {
            let data = token(source, 0xff_ffff);
            assert_eq!(data >> 32, 0);
            assert_eq!(source_of(data), Some((source, 0xff_ffff)));
        }
        assert_eq!(source_of(0), None);
        assert_eq!(source_of(u64::from(u32::MAX)), None);
    }
}
