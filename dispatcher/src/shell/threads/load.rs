//! When one thread does not do any more.
//!
//! By its share of a core, not by how much there is to do: where others have the
//! cores, more threads would only wait for them, too.

/// Between two looks.
const LOOK_US: u64 = 100_000;
/// Of a core, in percent: beyond that the others help.
const MUCH: u64 = 70;
/// They do so until there has been less than half of the work for so many looks.
const QUIET_LOOKS: u32 = 10;

/// What the main thread knows of its work.
#[derive(Default)]
pub struct Load {
    events: usize,
    looked_us: u64,
    cpu_us: u64,
    /// Events a look when help was called for; 0: there is none.
    much: usize,
    quiet: u32,
}

impl Load {
    /// So many events have been handled. Are more threads wanted than one?
    /// `thread_cpu_us` tells what this one has used, and is asked now and then.
    pub fn are_more_wanted(
        &mut self,
        events: usize,
        now_us: u64,
        thread_cpu_us: impl FnOnce() -> u64,
    ) -> bool {
        self.events += events;
        let passed_us = now_us.saturating_sub(self.looked_us);
        if passed_us < LOOK_US {
            return self.much > 0;
        }
        let cpu_us = thread_cpu_us();
        let used_us = cpu_us - self.cpu_us;
        // As many as there would have been by the next look.
        let events = (self.events as u64 * LOOK_US / passed_us) as usize;
        (self.events, self.looked_us, self.cpu_us) = (0, now_us, cpu_us);
        if used_us * 100 > passed_us * MUCH {
            self.much = self.much.max(events).max(1);
        }
        self.quiet = if 2 * events < self.much {
            self.quiet + 1
        } else {
            0
        };
        if self.quiet >= QUIET_LOOKS {
            (self.much, self.quiet) = (0, 0);
        }
        self.much > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many looks, each with that many events and so much of a core.
    fn looks(load: &mut Load, from: u64, count: u64, events: usize, percent: u64) -> Vec<bool> {
        let mut look = |number: u64| {
            let cpu_us = load.cpu_us + LOOK_US * percent / 100;
            load.are_more_wanted(events, (from + number) * LOOK_US, || cpu_us)
        };
        (1..=count).map(&mut look).collect()
    }

    #[test]
    fn a_thread_that_does_alone_is_left_alone() {
        let mut load = Load::default();
        assert!(!looks(&mut load, 0, 100, 5000, 60).contains(&true));
    }

    #[test]
    fn the_others_help_until_there_is_half_as_much_to_do() {
        let mut load = Load::default();
        assert!(looks(&mut load, 0, 1, 10_000, 90) == [true]);
        // It does less itself, now that it has help.
        assert!(!looks(&mut load, 1, 100, 12_000, 30).contains(&false));
        assert!(!looks(&mut load, 101, 9, 4000, 10).contains(&false));
        assert!(
            looks(&mut load, 110, 1, 9000, 20) == [true],
            "for a moment only"
        );
        assert!(!looks(&mut load, 111, 9, 4000, 10).contains(&false));
        assert!(looks(&mut load, 120, 1, 4000, 10) == [false]);
    }
}
