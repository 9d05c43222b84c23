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
