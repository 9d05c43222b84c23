//! What it has cost of late to pass a backend on: a process ends, and another starts.
//!
//! A few milliseconds where there are processors for it, and many times as long where
//! all are taken; so it is measured, by the clock that the core is shown, from the events
//! that it is told anyway. How long a pool keeps what it has got follows (room.rs).

/// Of a new figure so much counts: the last ten or so are what counts.
const NEW_PART: u64 = 8;
/// A machine that slept, or a server that was stopped, says nothing of the next one.
const MOST_US: u64 = 2_000_000;

/// A moving average. None before the first.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    /// By NEW_PART.
    sum_us: Option<u64>,
}

impl Average {
    fn add(&mut self, us: u64) {
        let us = us.min(MOST_US);
        self.sum_us = Some(match self.sum_us {
            None => us * NEW_PART,
            Some(sum_us) => sum_us - sum_us / NEW_PART + us,
        });
    }

    fn us(self) -> u64 {
        self.sum_us.unwrap_or(0) / NEW_PART
    }
}

/// From the moment at which one says that it exits until its process has ended; and from
/// when one is asked for until it serves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passing {
    exit: Average,
    start: Average,
}

impl Passing {
    pub fn has_ended(&mut self, after_us: u64) {
        self.exit.add(after_us);
    }

    pub fn has_started(&mut self, after_us: u64) {
        self.start.add(after_us);
    }

    /// Both.
    pub fn us(&self) -> u64 {
        self.exit.us() + self.start.us()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_the_last_ones_took() {
        let mut passing = Passing::default();
        assert_eq!(passing.us(), 0);
        passing.has_started(8_000);
        passing.has_ended(2_000);
        assert_eq!(passing.us(), 10_000);
        for _ in 0..10 {
            passing.has_started(80_000);
            passing.has_ended(20_000);
        }
        assert!((70_000..90_000).contains(&passing.us()), "{}", passing.us());
        // One that stood still.
        passing.has_started(3_600_000_000);
        assert!(passing.us() < 90_000 + MOST_US / NEW_PART);
        for _ in 0..60 {
            passing.has_started(8_000);
            passing.has_ended(2_000);
        }
        assert!((9_900..10_500).contains(&passing.us()), "{}", passing.us());
    }
}
