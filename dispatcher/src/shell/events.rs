//! The vocabulary of the event loop: the subject of an event, the table whose entries events
//! name by number, and the cost of a turn of the loop.

use super::sys::process;
use tracing::debug;

// ---- Tokens ---------------------------------------------------------------
//
// The subject of an event of the epoll.
//
// An event's data is either a session id (generation in the upper half, never 0) or, with an
// empty upper half, a [`Source`] and a number.

/// The subject of an event that is not about a session.
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
    /// The epoll of another thread has events.
    Sessions,
    Console,
    /// The process of TLS relays.
    Relays,
}

const SOURCES: [Source; 15] = [
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
    Source::Console,
    Source::Relays,
];
const NUMBER_BITS: u32 = 24;

/// The event data of a source. `number` is below 2^24.
pub fn token(source: Source, number: u32) -> u64 {
    debug_assert!(number < 1 << NUMBER_BITS);
    u64::from(((source as u32) << NUMBER_BITS) | number)
}

/// The inverse of `token`; None if the data is a session's, or not valid.
pub fn source_of(data: u64) -> Option<(Source, u32)> {
    let word = u32::try_from(data).ok()?;
    let source = SOURCES.get((word >> NUMBER_BITS).checked_sub(1)? as usize)?;
    Some((*source, word & ((1 << NUMBER_BITS) - 1)))
}

// ---- Slab -----------------------------------------------------------------
//
// A table whose entries keep their number. Freed numbers are used again, so code that keeps a
// number across rounds also compares a serial.

/// The table; it has at most `limit` entries.
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

    /// All numbers in use are below this.
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

// ---- Turns ----------------------------------------------------------------
//
// How long the loop works before it looks for events again.
//
// What one client sends or owns may be of any size, and all other clients wait while the loop
// handles it. So all work that grows with it is done in slices. The time and the work of each
// turn are measured: the view `pg_baton_dispatchers` shows the longest turn, and the log
// (`debug`) each turn longer than those before.
//
// A turn's time is processor time of its thread, which other threads cannot lengthen. To read
// that clock in each turn would cost as much as a short turn, so it is read once a millisecond.
// A turn is then at most as long as the processor time since the last reading, and at most as
// long as the elapsed time.

/// How long a reading of the processor time is used, in microseconds.
const SAMPLE_US: u64 = 1_000;
/// Turns that are shorter are not reported, in microseconds.
const NOTED_US: u64 = 1_000;

/// The readings of one thread's processor time.
#[derive(Default)]
pub struct TurnClock {
    sampled_us: Option<u64>,
    cpu_us: u64,
}

impl TurnClock {
    pub fn begins(&mut self, now_us: u64) {
        let is_fresh = |sampled_us| now_us < sampled_us + SAMPLE_US;
        if !self.sampled_us.is_some_and(is_fresh) {
            self.sampled_us = Some(now_us);
            self.cpu_us = process::thread_cpu_us();
        }
    }
}

/// The longest turns since the start.
#[derive(Default)]
pub struct Turns {
    pub longest_us: u64,
    /// The most work of a single turn, in pieces ([`work`]).
    most_work: usize,
    began_us: u64,
    /// The work of the present turn, in pieces.
    pub work: usize,
}

impl Turns {
    pub fn begins(&mut self, now_us: u64, events: usize) {
        self.began_us = now_us;
        self.work = events * work::EVENT;
    }

    pub fn ends(&mut self, clock: &TurnClock, now_us: u64) {
        let took_us = now_us - self.began_us;
        let is_most = self.work > self.most_work;
        if !is_most && took_us <= self.longest_us.max(NOTED_US) {
            return;
        }
        let took_us = took_us.min(process::thread_cpu_us() - clock.cpu_us);
        self.most_work = self.most_work.max(self.work);
        let is_longest = took_us > self.longest_us;
        self.longest_us = self.longest_us.max(took_us);
        if is_most || is_longest {
            debug!("turn of {took_us} us, work {}", self.work);
        }
    }
}

/// The work of a turn of the loop, in pieces ([`Turns`]).
///
/// A piece takes about a quarter of a microsecond on a machine of 2026: the inspection of one
/// item of a context, or 512 bytes of a long value. Other operations count for several.
pub mod work {
    pub const EVENT: usize = 8;
    pub const PACKET: usize = 8;
    /// An action of the core.
    pub const ACTION: usize = 16;
    pub const ROW: usize = 16;
    /// A step of a login.
    pub const LOGIN: usize = 32;
    /// The end of a login, and of its connection.
    pub const LOGIN_END: usize = 128;
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
