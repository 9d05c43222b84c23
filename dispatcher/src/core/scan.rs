//! Scans that are too long for one round of the event loop are cut into slices.
//!
//! A round lasts about a millisecond at most. Backends (a few thousand, 2 to 130 ns each) fit into
//! a round and are passed by plain loops. Sessions (100,000), pools that wait for a backend (2.5 us
//! each) and scans that cost an action for each item (waking a backend, ending a session, asking
//! the launcher, telling backends of a tenant) do not: docs/design/scheduler.md has the figures.
//! Such a scan keeps a [`Cursor`] and is one of the [`JOBS`].

use super::{Core, Words};

/// The position of a scan. It passes each item once, by number, from where the last scan ended and
/// around the end. Items that come or go meanwhile need no care: a new item behind the cursor is
/// still passed, and a new item before it has been seen as it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    next: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Done,
    /// To the end, and then the items before this one.
    ToEnd(u32),
    /// The items before this one.
    ToStart(u32),
}

impl Cursor {
    /// From now on, each item is to be passed once.
    pub fn begin(&mut self) {
        self.stage = Stage::ToEnd(self.next);
    }

    pub fn stop(&mut self) {
        self.stage = Stage::Done;
    }

    pub fn is_running(&self) -> bool {
        self.stage != Stage::Done
    }

    /// The next item; `first_from`: the first item of that number or a higher one.
    pub fn next(&mut self, first_from: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        if let Stage::ToEnd(start) = self.stage {
            match first_from(self.next) {
                Some(item) => return Some(self.pass(item)),
                None => (self.next, self.stage) = (0, Stage::ToStart(start)),
            }
        }
        if let Stage::ToStart(start) = self.stage {
            match first_from(self.next).filter(|item| *item < start) {
                Some(item) => return Some(self.pass(item)),
                None => (self.next, self.stage) = (start, Stage::Done),
            }
        }
        None
    }

    /// The next of the numbers below `end`.
    pub fn next_below(&mut self, end: u32) -> Option<u32> {
        self.next(|from| (from < end).then_some(from))
    }

    /// The next items, at most this number.
    pub fn take(&mut self, most: usize, first_from: impl Fn(u32) -> Option<u32>) -> Vec<u32> {
        let next = || self.next(&first_from);
        std::iter::from_fn(next).take(most).collect()
    }

    fn pass(&mut self, item: u32) -> u32 {
        self.next = item + 1;
        item
    }
}

/// Work that continues from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Ends waits that have reached their limit.
    ExpireWaits,
    /// Ends clients that no backend will greet.
    EndUngreeted,
    /// Looks for sessions that ended backends had.
    Reap,
    /// Ends sessions at a shutdown, and those of databases that are dropped by force.
    EndSessions,
    /// Looks at sessions once a second.
    Sweep,
    /// Wakes backends that no longer keep their sessions.
    Wake,
    /// Asks the launcher about limits that have changed.
    AskLimits,
    /// Tells backends of new limits of roles and of the memory that is left to them.
    FollowGroups,
    /// Tells backends of pauses, and looks for sessions that are in the way.
    Pause,
    /// Hands out sessions and starts backends.
    Serve,
}

/// The jobs of a round's end in their order. Jobs that end sessions come first: what the sessions
/// leave is handed out in the same round. Backends are told of new limits next, and sleeping
/// backends are woken after that. Serving is last: it uses the newest limits, and every job before
/// it may have freed a backend or a place.
pub const JOBS: [Job; 10] = [
    Job::ExpireWaits,
    Job::EndUngreeted,
    Job::Reap,
    Job::EndSessions,
    Job::Sweep,
    Job::AskLimits,
    Job::FollowGroups,
    Job::Pause,
    Job::Wake,
    Job::Serve,
];

impl Core {
    /// Runs the next slice of each job.
    pub(super) fn round_ends(&mut self, words: &impl Words) {
        for job in JOBS {
            match job {
                Job::ExpireWaits => self.expire_on(),
                Job::EndUngreeted => self.end_ungreeted_on(),
                Job::Reap => self.bury_on(words),
                Job::EndSessions => self.end_on(words),
                Job::Sweep => self.sweep_on(words),
                Job::Wake => self.wake_on(),
                Job::AskLimits => self.ask_limits_on(),
                Job::FollowGroups => self.follow_groups(),
                Job::Pause => self.pause_on(words),
                Job::Serve => self.serve(words),
            }
        }
    }

    /// Has the job more to do without any event?
    pub(super) fn is_running(&self, job: Job) -> bool {
        match job {
            Job::ExpireWaits => !self.expiring.is_empty(),
            Job::EndUngreeted => !self.ungreeted.is_empty(),
            Job::Reap => !self.burials.is_empty(),
            Job::EndSessions => self.is_ending(),
            Job::Sweep => self.sweeping.is_running(),
            Job::Wake => self.waking.has_more(),
            Job::AskLimits => self.groups.are_to_be_asked_for(),
            Job::FollowGroups => self.groups.are_followed(),
            Job::Pause => self.pauses.is_running(),
            Job::Serve => !self.dirty.is_empty() || self.wants.has_more(),
        }
    }

    /// Is another round needed though no event has come?
    pub fn has_more(&self) -> bool {
        JOBS.iter().any(|job| self.is_running(*job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_item_is_passed_once_in_slices() {
        let mut cursor = Cursor::default();
        assert!(!cursor.is_running() && cursor.next_below(5).is_none());
        for _ in 0..3 {
            cursor.begin();
            let mut seen: Vec<u32> = (0..3).filter_map(|_| cursor.next_below(5)).collect();
            while let Some(item) = cursor.next_below(7) {
                seen.push(item);
            }
            assert!(!cursor.is_running());
            assert_eq!(seen.len(), 7, "{seen:?}");
            assert_eq!(seen.into_iter().collect::<BTreeSet<u32>>().len(), 7);
            // The next scan begins elsewhere.
            cursor.begin();
            cursor.next_below(7);
            cursor.stop();
        }
        cursor.begin();
        assert!(cursor.next_below(0).is_none() && !cursor.is_running());
    }

    #[test]
    fn a_scan_that_begins_anew_passes_the_last_items_too() {
        let all: BTreeSet<u32> = (0..10).collect();
        let mut cursor = Cursor::default();
        let mut seen = BTreeSet::new();
        for _ in 0..4 {
            cursor.begin();
            seen.extend(cursor.take(3, |from| all.range(from..).next().copied()));
        }
        assert_eq!(seen, all);
    }

    #[test]
    fn items_that_go_or_come_do_not_stop_a_scan() {
        let mut all: BTreeSet<u32> = (0..10).collect();
        let mut cursor = Cursor::default();
        cursor.begin();
        let first_from = |all: &BTreeSet<u32>, from: u32| all.range(from..).next().copied();
        let mut seen = cursor.take(3, |from| first_from(&all, from));
        for gone in [1, 5, 9] {
            all.remove(&gone);
        }
        all.insert(20);
        seen.extend(cursor.take(99, |from| first_from(&all, from)));
        assert_eq!(seen, [0, 1, 2, 3, 4, 6, 7, 8, 20]);
    }
}
